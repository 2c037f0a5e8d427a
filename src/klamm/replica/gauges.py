"""The replica manager's metrics: counts over all partitions, the state of each partition, and delayed operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sized
from typing import TYPE_CHECKING, Final

from klamm.metrics import GaugeTable, MetricsRegistry
from klamm.purgatory import DelayedOperationPurgatory

if TYPE_CHECKING:
    from klamm.model import TopicPartition
    from klamm.replica.counters import PartitionCounters
    from klamm.replica.fetch_state import PartitionFetchState
    from klamm.replica.partition import Partition
    from klamm.replica.transaction_watch import TransactionWatch

_SERVER: Final = "kafka.server"
_PARTITION: Final = ("kafka.cluster", "Partition")
_LAG: Final = (_SERVER, "FetcherLagMetrics", "ConsumerLag")


class IsrMeters:
    def __init__(self, metrics: MetricsRegistry) -> None:
        self.expands = metrics.meter(_SERVER, "ReplicaManager", "IsrExpandsPerSec")
        self.shrinks = metrics.meter(_SERVER, "ReplicaManager", "IsrShrinksPerSec")
        self.failed_updates = metrics.meter(_SERVER, "ReplicaManager", "FailedIsrUpdatesPerSec")


def register(
    metrics: MetricsRegistry,
    counters: PartitionCounters,
    partitions: Mapping[TopicPartition, Partition],
    offline: Sized,
    purgatories: Iterable[DelayedOperationPurgatory],
    transactions: TransactionWatch,
) -> None:
    gauges: dict[str, Callable[[], object]] = {
        "LeaderCount": lambda: counters.leader_count,
        "PartitionCount": lambda: len(partitions),
        "OfflineReplicaCount": lambda: len(offline),
        "UnderReplicatedPartitions": lambda: counters.under_replicated_partitions,
        "UnderMinIsrPartitionCount": lambda: counters.under_min_isr_partition_count,
        "AtMinIsrPartitionCount": lambda: counters.at_min_isr_partition_count,
        "ReassigningPartitions": lambda: counters.reassigning_partitions,
        "PartitionsWithLateTransactionsCount": lambda: transactions.late_partitions_count,
        "ProducerIdCount": lambda: transactions.producer_id_count,
    }
    for name, value in gauges.items():
        metrics.gauge(_SERVER, "ReplicaManager", name, value)
    for purgatory in purgatories:
        register_purgatory(metrics, purgatory)
    for name, value_of in _PARTITION_GAUGES.items():
        metrics.gauge_table(*_PARTITION, name, GaugeTable(partitions, _tags, value_of))


def register_purgatory(metrics: MetricsRegistry, purgatory: DelayedOperationPurgatory) -> None:
    tags = {"delayedOperation": purgatory.name}
    metrics.gauge(_SERVER, "DelayedOperationPurgatory", "PurgatorySize", lambda: purgatory.watched, tags)
    metrics.gauge(_SERVER, "DelayedOperationPurgatory", "NumDelayedOperations", lambda: purgatory.size, tags)
    own = ("klamm.server", "DelayedOperationPurgatory")
    metrics.counter(*own, "CompletedOperationsPerSec", lambda: purgatory.completed_count, tags)
    metrics.counter(*own, "ExpiredOperationsPerSec", lambda: purgatory.expired_count, tags)


def register_lag(metrics: MetricsRegistry, client_id: str, state: PartitionFetchState) -> None:
    """Register the number of records that a follower lags behind its leader; -1 until known."""
    metrics.gauge(*_LAG, lambda: state.lag, _lag_tags(client_id, state.tp))


def remove_lag(metrics: MetricsRegistry, client_id: str, tp: TopicPartition) -> None:
    metrics.remove(*_LAG, _lag_tags(client_id, tp))


def _lag_tags(client_id: str, tp: TopicPartition) -> dict[str, str]:
    return {"clientId": client_id, "topic": tp.topic, "partition": str(tp.partition)}


def _tags(tp: TopicPartition) -> dict[str, str]:
    return {"topic": tp.topic, "partition": str(tp.partition)}


def _last_stable_offset_lag(partition: Partition) -> int:
    log = partition.log
    return log.high_watermark - log.last_stable_offset if log is not None and partition.is_leader else 0


_PARTITION_GAUGES: Final[dict[str, Callable[[Partition], object]]] = {
    "UnderReplicated": lambda partition: int(partition.standing.under_replicated),
    "UnderMinIsr": lambda partition: int(partition.standing.under_min_isr),
    "AtMinIsr": lambda partition: int(partition.standing.at_min_isr),
    "InSyncReplicasCount": lambda partition: len(partition.isr) if partition.is_leader else 0,
    "ReplicasCount": lambda partition: len(partition.replicas) if partition.is_leader else 0,
    "LastStableOffsetLag": _last_stable_offset_lag,
}
"""Kafka's `kafka.cluster:type=Partition` gauges; zero on a broker that does not lead the partition."""
