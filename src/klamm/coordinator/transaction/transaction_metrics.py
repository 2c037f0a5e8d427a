"""The metrics of the transaction coordinator: Kafka's, and the number of transactional ids per state."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from klamm.coordinator.transaction.transaction_metadata import TransactionState
from klamm.metrics import MetricsRegistry

_GROUP: Final = "kafka.coordinator.transaction"
_SHOWN: Final = tuple(
    state for state in TransactionState if state not in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE)
)


class TransactionMetrics:
    """The gauges of states read counts that the coordinator keeps: there may be very many transactional ids."""

    def __init__(self, registry: MetricsRegistry) -> None:
        self._registry = registry
        self._load_time = registry.histogram("kafka.server", "transaction-coordinator-metrics", "partition-load-time")
        self.refused_late_requests = registry.meter(_GROUP, "TransactionCoordinator", "RefusedLateRequestsPerSec")

    def register(self, count: Callable[[TransactionState], int]) -> None:
        for state in _SHOWN:
            gauge = partial(count, state)
            self._registry.gauge(_GROUP, "TransactionStateManager", f"NumTransactions{state.title}", gauge)

    def register_queues(self, unknown_destination: Callable[[], int], log_append_retry: Callable[[], int]) -> None:
        name = "TransactionMarkerChannelManager"
        self._registry.gauge(_GROUP, name, "UnknownDestinationQueueSize", unknown_destination)
        self._registry.gauge(_GROUP, name, "LogAppendRetryQueueSize", log_append_retry)

    def on_loaded(self, duration_ms: float) -> None:
        self._load_time.update(duration_ms)
