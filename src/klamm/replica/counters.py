"""Counts over all partitions of the broker, updated with every change, so that no gauge walks the partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from klamm.model import TopicPartition
    from klamm.replica.partition import Partition


class _Standing(NamedTuple):
    leader: bool
    under_replicated: bool
    under_min_isr: bool
    at_min_isr: bool
    reassigning: bool


_NOT_COUNTED = _Standing(False, False, False, False, False)


class PartitionCounters:
    """Kafka's ReplicaManager gauges. Code that changes a partition calls `refresh`, code that drops it `forget`."""

    def __init__(self) -> None:
        self.leader_count = 0
        self.under_replicated_partitions = 0
        self.under_min_isr_partition_count = 0
        self.at_min_isr_partition_count = 0
        self.reassigning_partitions = 0
        self._standing: dict[TopicPartition, _Standing] = {}

    def refresh(self, partition: Partition) -> None:
        self._move(
            partition.topic_partition,
            _Standing(
                partition.is_leader,
                partition.is_under_replicated,
                partition.is_under_min_isr,
                partition.is_at_min_isr,
                partition.is_reassigning,
            ),
        )

    def forget(self, tp: TopicPartition) -> None:
        self._move(tp, _NOT_COUNTED)
        self._standing.pop(tp, None)

    def _move(self, tp: TopicPartition, now: _Standing) -> None:
        before = self._standing.get(tp, _NOT_COUNTED)
        self._standing[tp] = now
        self.leader_count += now.leader - before.leader
        self.under_replicated_partitions += now.under_replicated - before.under_replicated
        self.under_min_isr_partition_count += now.under_min_isr - before.under_min_isr
        self.at_min_isr_partition_count += now.at_min_isr - before.at_min_isr
        self.reassigning_partitions += now.reassigning - before.reassigning
