"""The settings of the group coordinator, under the names and with the defaults of Kafka's configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

OFFSETS_TOPIC_COMPRESSION_CODEC: Final = 0
"""Records of `__consumer_offsets` are written uncompressed unless `offsets.topic.compression.codec` says otherwise."""


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """All durations in milliseconds; one field for each key that `from_kafka` reads."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 2**31 - 1
    offset_metadata_max_bytes: int = 4_096
    offsets_load_buffer_size: int = 5 * 1024 * 1024
    offsets_retention_ms: int = 7 * 24 * 60 * 60 * 1000
    offsets_retention_check_interval_ms: int = 600_000
    offsets_commit_timeout_ms: int = 5_000
    offsets_topic_num_partitions: int = 50
    offsets_topic_replication_factor: int = 3
    offsets_topic_segment_bytes: int = 100 * 1024 * 1024
    offsets_topic_compression_codec: int = OFFSETS_TOPIC_COMPRESSION_CODEC

    @classmethod
    def from_kafka(cls, get: Callable[[str], Any]) -> GroupConfig:
        """The settings as `get("group.max.size")` and so on gives them."""
        return cls(
            min_session_timeout_ms=get("group.min.session.timeout.ms"),
            max_session_timeout_ms=get("group.max.session.timeout.ms"),
            initial_rebalance_delay_ms=get("group.initial.rebalance.delay.ms"),
            max_size=get("group.max.size"),
            offset_metadata_max_bytes=get("offset.metadata.max.bytes"),
            offsets_load_buffer_size=get("offsets.load.buffer.size"),
            offsets_retention_ms=get("offsets.retention.minutes") * 60_000,
            offsets_retention_check_interval_ms=get("offsets.retention.check.interval.ms"),
            offsets_commit_timeout_ms=get("offsets.commit.timeout.ms"),
            offsets_topic_num_partitions=get("offsets.topic.num.partitions"),
            offsets_topic_replication_factor=get("offsets.topic.replication.factor"),
            offsets_topic_segment_bytes=get("offsets.topic.segment.bytes"),
            offsets_topic_compression_codec=get("offsets.topic.compression.codec"),
        )

    @property
    def offsets_topic_configs(self) -> dict[str, str]:
        """What `__consumer_offsets` is created with."""
        return {
            "cleanup.policy": "compact",
            "segment.bytes": str(self.offsets_topic_segment_bytes),
            "compression.type": "producer",
        }
