"""The coordinator's metrics: Kafka's `kafka.coordinator.group` gauges and `group-coordinator-metrics`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from klamm.coordinator.group_metadata import GroupMetadata, GroupState
from klamm.metrics import MetricsRegistry

_GROUP: Final = "kafka.coordinator.group"
_TYPE: Final = "GroupMetadataManager"
_SENSORS: Final = ("kafka.server", "group-coordinator-metrics")


class GroupMetrics:
    """Gauges count the groups when they are read: there is no second count to keep in step."""

    def __init__(self, registry: MetricsRegistry) -> None:
        self._registry = registry
        self.offset_commits = registry.meter(*_SENSORS, "offset-commit-count")
        self.offset_expirations = registry.meter(*_SENSORS, "offset-expiration-count")
        self.offset_deletions = registry.meter(*_SENSORS, "offset-deletion-count")
        self.completed_rebalances = registry.meter(*_SENSORS, "group-completed-rebalance-count")
        self._load_time = registry.histogram(*_SENSORS, "partition-load-time")

    def register(self, groups: Callable[[], Iterator[GroupMetadata]]) -> None:
        def gauge(name: str, fn: Callable[[], int]) -> None:
            self._registry.gauge(_GROUP, _TYPE, name, fn)

        def in_state(state: GroupState) -> Callable[[], int]:
            return lambda: sum(group.state is state for group in groups())

        gauge("NumGroups", lambda: sum(1 for _ in groups()))
        gauge("NumOffsets", lambda: sum(len(group.offsets.committed) for group in groups()))
        for state in GroupState:
            gauge(f"NumGroups{state.value}", in_state(state))

    def on_loaded(self, duration_ms: float) -> None:
        self._load_time.update(duration_ms)
