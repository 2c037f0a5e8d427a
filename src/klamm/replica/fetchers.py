"""The interface of the tasks that copy from leaders on other brokers, as the ReplicaManager needs it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from klamm.model import TopicPartition
from klamm.replica.partition import Partition


class ReplicaFetchers(Protocol):
    """Copies partitions from their leaders. A broker that is alone has `NoFetchers`."""

    def remove(self, partitions: Collection[TopicPartition]) -> None: ...

    def add(self, partitions: Iterable[Partition]) -> None: ...

    def has_failed(self, tp: TopicPartition) -> bool:
        """Whether copying the partition has stopped until its next leader epoch."""

    def on_metadata_change(self) -> None: ...


class NoFetchers:
    def remove(self, partitions: Collection[TopicPartition]) -> None: ...

    def add(self, partitions: Iterable[Partition]) -> None: ...

    def has_failed(self, tp: TopicPartition) -> bool:
        return False

    def on_metadata_change(self) -> None: ...
