"""What the ReplicaManager needs of the tasks that copy from the leaders on other brokers."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from klamm.model import TopicPartition
from klamm.replica.partition import Partition


class ReplicaFetchers(Protocol):
    """Copies partitions from their leaders. A broker that is alone has `NoFetchers`."""

    def remove(self, partitions: Collection[TopicPartition]) -> None: ...

    def add(self, partitions: Iterable[Partition]) -> None: ...

    def on_metadata_change(self) -> None: ...


class NoFetchers:
    def remove(self, partitions: Collection[TopicPartition]) -> None: ...

    def add(self, partitions: Iterable[Partition]) -> None: ...

    def on_metadata_change(self) -> None: ...
