"""The controller's metrics, under Kafka's names. Written on the control loop, read from anywhere."""

from __future__ import annotations

from collections.abc import Callable

from klamm.controller.context import ControllerContext
from klamm.controller.controller import KafkaController
from klamm.controller.states import ControllerState, ReplicaState
from klamm.metrics import Histogram, MetricsRegistry, Peak

_GROUP = "kafka.controller"


class ControllerMetrics:
    def __init__(self, registry: MetricsRegistry, controller: KafkaController) -> None:
        self._registry = registry
        self._controller = controller
        self._queue_time = registry.histogram(_GROUP, "ControllerEventManager", "EventQueueTimeMs")
        self._timers = {
            state: registry.timer(_GROUP, "ControllerStats", state.timer_name)
            for state in ControllerState
            if state.timer_name is not None
        }
        self._unclean = registry.meter(_GROUP, "ControllerStats", "UncleanLeaderElectionsPerSec")
        self._unclean_seen = 0
        self._queue_peak: Peak | None = None
        self._register_gauges()

    def _register_gauges(self) -> None:
        def context() -> ControllerContext:
            return self._controller.context

        gauges: dict[str, Callable[[], object]] = {
            "ActiveControllerCount": lambda: int(context().is_active),
            "OfflinePartitionsCount": lambda: context().states.offline_partition_count,
            "PreferredReplicaImbalanceCount": lambda: context().states.preferred_replica_imbalance_count,
            "GlobalTopicCount": lambda: len(context().topics),
            "GlobalPartitionCount": lambda: len(context().states.leadership),
            "TopicsToDeleteCount": lambda: len(context().deletions.queued),
            "TopicsIneligibleToDeleteCount": lambda: len(context().deletions.ineligible),
            "ReplicasToDeleteCount": self._replicas_to_delete,
            "ReplicasIneligibleToDeleteCount": self._replicas_ineligible,
            "ActiveBrokerCount": lambda: len(context().brokers.live_or_shutting_down),
            "FencedBrokerCount": lambda: 0,  # as in Kafka with ZooKeeper, where no broker is fenced
        }
        for name, fn in gauges.items():
            self._registry.gauge(_GROUP, "KafkaController", name, fn)

    def _replicas_to_delete(self) -> int:
        context = self._controller.context
        return sum(
            context.states.replica_count(topic)
            for topic in tuple(context.deletions.queued)  # a copy: the control loop continues
        )

    def _replicas_ineligible(self) -> int:
        context = self._controller.context
        return sum(
            context.states.count_in_state(topic, ReplicaState.DELETION_INELIGIBLE)
            for topic in list(context.deletions.queued)
        )

    def watch_queue(self, size: Callable[[], int], state: Callable[[], ControllerState]) -> None:
        own = ("control", "klamm.controller", "ControllerEventManager")
        self._queue_peak = self._registry.peak(*own, "EventQueueSizeMax", size)
        self._registry.gauge(_GROUP, "ControllerEventManager", "EventQueueSize", size)
        self._registry.gauge(_GROUP, "KafkaController", "ControllerState", lambda: int(state()))

    def on_queued(self, queue_size: int) -> None:
        if self._queue_peak is not None and queue_size > self._queue_peak.highest:
            self._queue_peak.highest = queue_size

    def on_dequeued(self, queue_time_ms: float) -> None:
        self._queue_time.update(queue_time_ms)

    def reset_queue_time(self) -> None:
        """Nothing happened for a long time, so the old percentiles no longer mean anything."""
        self._queue_time = self._registry.register(
            _GROUP, "ControllerEventManager", "EventQueueTimeMs", None, Histogram()
        )

    def on_processed(self, state: ControllerState, duration_ms: float) -> None:
        timer = self._timers.get(state)
        if timer is not None:
            timer.update(duration_ms)
        elections = self._controller.context.unclean_elections
        if elections > self._unclean_seen:
            self._unclean.mark(elections - self._unclean_seen)
        self._unclean_seen = elections
