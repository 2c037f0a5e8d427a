"""Metrics of conversions between message formats: records per topic, time and memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from klamm.metrics.broker_topic import BrokerTopicStats
from klamm.metrics.registry import MetricsRegistry

_GROUP: Final = "kafka.network"
_TYPE: Final = "RequestMetrics"


class ConversionStats:
    """The histograms of one API, Produce or Fetch, and the meters of topics that belong to it."""

    def __init__(self, registry: MetricsRegistry, topics: BrokerTopicStats, request: str) -> None:
        self._topics = topics
        self._is_produce = request == "Produce"
        self._times = registry.histogram(_GROUP, _TYPE, "MessageConversionsTimeMs", {"request": request})
        self._memory = registry.histogram(_GROUP, _TYPE, "TemporaryMemoryBytes", {"request": request})

    def record(self, converted: Iterable[tuple[str, int]], time_ms: float, memory_bytes: int) -> None:
        """Record the conversions of one request: the records per topic, and the time and memory of all together."""
        has_any = False
        for topic, count in converted:
            has_any = True
            for metrics in (self._topics.topic(topic), self._topics.all_topics):
                meter = metrics.produce_message_conversions if self._is_produce else metrics.fetch_message_conversions
                meter.mark(count)
        if has_any:
            self._times.update(time_ms)
            self._memory.update(memory_bytes)
