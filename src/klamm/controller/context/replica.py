"""Values that name a replica and a change of leadership."""

from __future__ import annotations

from typing import NamedTuple

from klamm.model import LeaderAndIsr, TopicPartition


class PartitionReplica(NamedTuple):
    """One replica of one partition, on one broker."""

    partition: TopicPartition
    replica: int

    def __str__(self) -> str:
        return f"{self.partition}@{self.replica}"


class LeadershipChange(NamedTuple):
    """A change of a partition's leader or ISR. `strategy` is empty unless the change is the outcome of an election."""

    partition: TopicPartition
    strategy: str
    before: LeaderAndIsr | None
    after: LeaderAndIsr
