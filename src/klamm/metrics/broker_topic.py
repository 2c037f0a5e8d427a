"""BrokerTopicMetrics: records, bytes and requests of the broker, for all topics and for each topic."""

from __future__ import annotations

from typing import Final

from klamm.metrics.instruments import Meter
from klamm.metrics.registry import MetricsRegistry

_GROUP: Final = "kafka.server"
_TYPE: Final = "BrokerTopicMetrics"


class BrokerTopicMetrics:
    """The meters of one topic, or (`topic=None`) of all topics together."""

    def __init__(self, registry: MetricsRegistry, topic: str | None = None) -> None:
        tags = None if topic is None else {"topic": topic}
        self._registry = registry
        self._tags = tags
        self._names: list[str] = []

        def meter(name: str) -> Meter:
            self._names.append(name)
            return registry.meter(_GROUP, _TYPE, name, tags)

        self.messages_in = meter("MessagesInPerSec")
        self.bytes_in = meter("BytesInPerSec")
        self.bytes_out = meter("BytesOutPerSec")
        self.bytes_rejected = meter("BytesRejectedPerSec")
        self.failed_produce_requests = meter("FailedProduceRequestsPerSec")
        self.failed_fetch_requests = meter("FailedFetchRequestsPerSec")
        self.total_produce_requests = meter("TotalProduceRequestsPerSec")
        self.total_fetch_requests = meter("TotalFetchRequestsPerSec")
        self.fetch_message_conversions = meter("FetchMessageConversionsPerSec")
        self.produce_message_conversions = meter("ProduceMessageConversionsPerSec")
        self.no_key_compacted_topic_records = meter("NoKeyCompactedTopicRecordsPerSec")
        self.invalid_magic_number_records = meter("InvalidMagicNumberRecordsPerSec")
        self.invalid_message_crc_records = meter("InvalidMessageCrcRecordsPerSec")
        self.invalid_offset_or_sequence_records = meter("InvalidOffsetOrSequenceRecordsPerSec")

    def close(self) -> None:
        """Remove the meters from the registry."""
        for name in self._names:
            self._registry.remove(_GROUP, _TYPE, name, self._tags)


class BrokerTopicStats:
    """The meters by topic. They are created when a topic is first used and removed with its last replica."""

    def __init__(self, registry: MetricsRegistry) -> None:
        self._registry = registry
        self._topics: dict[str, BrokerTopicMetrics] = {}
        self.all_topics = BrokerTopicMetrics(registry)
        self.replication_bytes_in = registry.meter(_GROUP, _TYPE, "ReplicationBytesInPerSec")
        self.replication_bytes_out = registry.meter(_GROUP, _TYPE, "ReplicationBytesOutPerSec")
        self.reassignment_bytes_in = registry.meter(_GROUP, _TYPE, "ReassignmentBytesInPerSec")
        self.reassignment_bytes_out = registry.meter(_GROUP, _TYPE, "ReassignmentBytesOutPerSec")

    def topic(self, topic: str) -> BrokerTopicMetrics:
        metrics = self._topics.get(topic)
        if metrics is None:
            metrics = self._topics[topic] = BrokerTopicMetrics(self._registry, topic)
        return metrics

    def remove(self, topic: str) -> None:
        metrics = self._topics.pop(topic, None)
        if metrics is not None:
            metrics.close()
