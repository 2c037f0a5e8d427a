"""The settings of the group coordinator, under the names and with the defaults of Kafka's configuration."""

from __future__ import annotations

from klamm.config import KafkaConfig
from klamm.lazy_dataclass import lazy_dataclass


@lazy_dataclass(frozen=True, slots=True)
class GroupConfig:
    """All durations in milliseconds; one field for each key that `from_kafka` reads."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 2**31 - 1
    offset_metadata_max_bytes: int = 4_096
    record_max_bytes: int = 8 * 1024 * 1024
    """A larger group record is not encoded; below this size, the log decides."""
    members_max_bytes: int = 256 * 1024 * 1024
    """Memory limit of the members of all groups: ids, subscriptions and assignments."""
    offset_metadata_total_bytes: int = 128 * 1024 * 1024
    """Memory limit of the metadata of all committed offsets."""
    offsets_load_buffer_size: int = 5 * 1024 * 1024
    offsets_retention_ms: int = 7 * 24 * 60 * 60 * 1000
    offsets_retention_check_interval_ms: int = 600_000
    offsets_commit_timeout_ms: int = 5_000
    offsets_topic_num_partitions: int = 50
    offsets_topic_compression_codec: int = 0

    @classmethod
    def from_kafka(cls, config: KafkaConfig) -> GroupConfig:
        return cls(
            min_session_timeout_ms=config.group_min_session_timeout_ms,
            max_session_timeout_ms=config.group_max_session_timeout_ms,
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            max_size=config.group_max_size,
            offset_metadata_max_bytes=config.offset_metadata_max_bytes,
            record_max_bytes=max(8 * 1024 * 1024, config.message_max_bytes),
            offsets_load_buffer_size=config.offsets_load_buffer_size,
            offsets_retention_ms=config.offsets_retention_minutes * 60_000,
            offsets_retention_check_interval_ms=config.offsets_retention_check_interval_ms,
            offsets_commit_timeout_ms=config.offsets_commit_timeout_ms,
            offsets_topic_num_partitions=config.offsets_topic_num_partitions,
            offsets_topic_compression_codec=config.offsets_topic_compression_codec,
        )
