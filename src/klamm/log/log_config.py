"""The configuration of one log: Kafka's topic keys, typed, with the defaults of Kafka 3.9."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Final

from klamm.errors import ConfigError
from klamm.lazy_dataclass import lazy_dataclass
from klamm.protocol.compression import CompressionType
from klamm.protocol.record_batch import TimestampType

INT64_MAX: Final = (1 << 63) - 1
_WEEK_MS: Final = 7 * 24 * 3600 * 1000
_OLD_TIMESTAMP_BOUND: Final = "message.timestamp.difference.max.ms"
"""The bound in both directions, for each of the newer keys that is not set."""
_DAY_MS: Final = 24 * 3600 * 1000


@lazy_dataclass(frozen=True, slots=True)
class LogConfig:
    """The attribute is the topic key with underscores. A limit of -1 means none, as in Kafka."""

    segment_bytes: int = 1 << 30
    segment_ms: int = _WEEK_MS
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 * 1024 * 1024
    index_interval_bytes: int = 4096
    retention_ms: int = _WEEK_MS
    retention_bytes: int = -1
    flush_messages: int = INT64_MAX
    flush_ms: int = INT64_MAX
    file_delete_delay_ms: int = 60_000
    max_message_bytes: int = 1024 * 1024 + 12
    message_timestamp_type: TimestampType = TimestampType.CREATE_TIME
    message_timestamp_before_max_ms: int = INT64_MAX
    message_timestamp_after_max_ms: int = INT64_MAX
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    delete_retention_ms: int = _DAY_MS
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = INT64_MAX
    min_cleanable_dirty_ratio: float = 0.5
    unclean_leader_election_enable: bool = False
    min_insync_replicas: int = 1
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_zstd_level: int = 3
    preallocate: bool = False

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def is_deleted(self) -> bool:
        """Whether retention by time and size applies; without it only the log start offset removes segments."""
        return "delete" in self.cleanup_policy

    @property
    def max_segment_ms(self) -> int:
        """A compacted log also rolls at `max.compaction.lag.ms`, so that the cleaner can process its records."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.is_compacted else self.segment_ms

    @property
    def target_compression(self) -> CompressionType | None:
        """The codec of stored batches; None keeps the codec of the producer."""
        if self.compression_type == "producer":
            return None
        name = "none" if self.compression_type == "uncompressed" else self.compression_type
        return CompressionType[name.upper()]

    @property
    def compression_level(self) -> int | None:
        """The level of the codec of stored batches, if it has levels."""
        return {"gzip": self.compression_gzip_level, "zstd": self.compression_zstd_level}.get(self.compression_type)

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> LogConfig:
        """Read Kafka's topic keys (`segment.bytes`) and ignore other keys. Invalid values raise ConfigError."""
        values: dict[str, Any] = {}
        for field in fields(cls):
            key = field.name.replace("_", ".")
            if key in properties:
                values[field.name] = _parse(key, properties[key], _PARSERS.get(field.name, int))
        if _OLD_TIMESTAMP_BOUND in properties:
            bound = _parse(_OLD_TIMESTAMP_BOUND, properties[_OLD_TIMESTAMP_BOUND], int)
            for name in ("message_timestamp_before_max_ms", "message_timestamp_after_max_ms"):
                if values.get(name, INT64_MAX) == INT64_MAX:
                    values[name] = bound
        return cls(**values)


def _parse(key: str, text: str, parser: Callable[[str], Any]) -> Any:
    try:
        return parser(text.strip())
    except (ValueError, KeyError) as e:
        raise ConfigError(f"{key} cannot be {text!r}") from e


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def _cleanup_policy(text: str) -> frozenset[str]:
    policies = frozenset(p.strip().lower() for p in text.split(",") if p.strip())
    if not policies <= {"delete", "compact"}:
        raise ValueError(text)
    return policies


def _compression_type(text: str) -> str:
    if text not in ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"):
        raise ValueError(text)
    return text


def _timestamp_type(text: str) -> TimestampType:
    return {"CreateTime": TimestampType.CREATE_TIME, "LogAppendTime": TimestampType.LOG_APPEND_TIME}[text]


_PARSERS: Final[dict[str, Callable[[str], Any]]] = {
    "cleanup_policy": _cleanup_policy,
    "compression_type": _compression_type,
    "message_timestamp_type": _timestamp_type,
    "min_cleanable_dirty_ratio": float,
    "preallocate": _boolean,
    "unclean_leader_election_enable": _boolean,
}
