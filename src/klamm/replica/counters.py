"""Counts over all partitions of the broker, updated with every change, so that no gauge walks the partitions."""

from __future__ import annotations

from klamm.model import TopicPartition
from klamm.replica.partition import NOT_LEADING, Partition, Standing


class PartitionCounters:
    """Kafka's ReplicaManager gauges. Code that changes a partition calls `refresh`, code that drops it `forget`."""

    def __init__(self) -> None:
        self.leader_count = 0
        self.under_replicated_partitions = 0
        self.under_min_isr_partition_count = 0
        self.at_min_isr_partition_count = 0
        self.reassigning_partitions = 0
        self._standing: dict[TopicPartition, Standing] = {}
        """Of the partitions that this broker leads."""

    def refresh(self, partition: Partition) -> None:
        self._move(partition.topic_partition, partition.standing)

    def forget(self, tp: TopicPartition) -> None:
        self._move(tp, NOT_LEADING)

    def _move(self, tp: TopicPartition, now: Standing) -> None:
        before = self._standing.get(tp, NOT_LEADING)
        if now == before:
            return
        if now.leader:
            self._standing[tp] = now
        else:
            del self._standing[tp]
        self.leader_count += now.leader - before.leader
        self.under_replicated_partitions += now.under_replicated - before.under_replicated
        self.under_min_isr_partition_count += now.under_min_isr - before.under_min_isr
        self.at_min_isr_partition_count += now.at_min_isr - before.at_min_isr
        self.reassigning_partitions += now.reassigning - before.reassigning
