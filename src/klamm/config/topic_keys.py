"""Every topic key of Kafka 3.9, with the broker keys that give its default, strongest first."""

from __future__ import annotations

from klamm.config.definition import (
    AnyKey,
    Importance,
    Support,
    boolean,
    collect_keys,
    double,
    int32,
    int64,
    string,
    strings,
)
from klamm.config.log_keys import COMPRESSION_TYPES, TIMESTAMP_TYPES
from klamm.config.values import LONG_MAX, at_least, between, one_of, throttled_replicas

LOW = Importance.LOW
NO_EFFECT = Support.NO_EFFECT


class SegmentTopicKeys:
    segment_bytes = int32(
        "segment.bytes",
        1073741824,
        "Size at which a segment is closed and a new one begins.",
        check=at_least(14),
        synonyms=("log.segment.bytes",),
    )
    segment_ms = int64(
        "segment.ms",
        604800000,
        "Age at which a segment is closed and a new one begins.",
        check=at_least(1),
        synonyms=("log.roll.ms", "log.roll.hours"),
    )
    segment_jitter_ms = int64(
        "segment.jitter.ms",
        0,
        "The maximum random reduction of `segment.ms`.",
        check=at_least(0),
        synonyms=("log.roll.jitter.ms", "log.roll.jitter.hours"),
    )
    segment_index_bytes = int32(
        "segment.index.bytes",
        10485760,
        "The size of an offset index.",
        check=at_least(4),
        synonyms=("log.index.size.max.bytes",),
    )
    index_interval_bytes = int32(
        "index.interval.bytes",
        4096,
        "Bytes of records between two entries of the offset index.",
        check=at_least(0),
        synonyms=("log.index.interval.bytes",),
    )
    preallocate = boolean(
        "preallocate", False, "Whether a segment file gets its full size at once.", synonyms=("log.preallocate",)
    )
    file_delete_delay_ms = int64(
        "file.delete.delay.ms",
        60000,
        "How long a file is kept after its segment was removed from the log.",
        check=at_least(0),
        synonyms=("log.segment.delete.delay.ms",),
    )
    flush_messages = int64(
        "flush.messages",
        LONG_MAX,
        "Records after which the log is flushed to the disk.",
        check=at_least(1),
        synonyms=("log.flush.interval.messages",),
    )
    flush_ms = int64(
        "flush.ms",
        LONG_MAX,
        "Time after which the log is flushed to the disk.",
        check=at_least(0),
        synonyms=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    )


class RetentionTopicKeys:
    retention_bytes = int64(
        "retention.bytes",
        -1,
        "The size of a partition above which old segments are deleted; -1 sets no limit.",
        synonyms=("log.retention.bytes",),
    )
    retention_ms = int64(
        "retention.ms",
        604800000,
        "How long records are kept; -1 keeps them for ever.",
        check=at_least(-1),
        synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    )
    cleanup_policy = strings(
        "cleanup.policy",
        ("delete",),
        "Whether old segments are deleted, compacted, or both.",
        check=one_of("compact", "delete"),
        synonyms=("log.cleanup.policy",),
    )
    delete_retention_ms = int64(
        "delete.retention.ms",
        86400000,
        "How long delete markers are kept in a compacted log.",
        check=at_least(0),
        synonyms=("log.cleaner.delete.retention.ms",),
    )
    min_compaction_lag_ms = int64(
        "min.compaction.lag.ms",
        0,
        "The shortest time that a record stays uncompacted.",
        check=at_least(0),
        synonyms=("log.cleaner.min.compaction.lag.ms",),
    )
    max_compaction_lag_ms = int64(
        "max.compaction.lag.ms",
        LONG_MAX,
        "The longest time that a record may stay uncompacted.",
        check=at_least(1),
        synonyms=("log.cleaner.max.compaction.lag.ms",),
    )
    min_cleanable_dirty_ratio = double(
        "min.cleanable.dirty.ratio",
        0.5,
        "The share of uncompacted bytes from which the log is compacted.",
        check=between(0, 1),
        synonyms=("log.cleaner.min.cleanable.ratio",),
    )
    local_retention_ms = int64(
        "local.retention.ms",
        -2,
        "Kafka's local retention of tiered storage, which klamm does not have.",
        check=at_least(-2),
        support=NO_EFFECT,
    )
    local_retention_bytes = int64(
        "local.retention.bytes",
        -2,
        "Kafka's local retention of tiered storage, which klamm does not have.",
        check=at_least(-2),
        support=NO_EFFECT,
    )
    remote_storage_enable = boolean(
        "remote.storage.enable",
        False,
        "Kafka's tiered storage, which klamm does not have.",
        check=lambda value: "false: klamm does not have tiered storage yet" if value else None,
        support=Support.ONLY_DEFAULT,
    )
    remote_log_copy_disable = boolean(
        "remote.log.copy.disable",
        False,
        "Whether Kafka stops copying segments to tiered storage.",
        support=NO_EFFECT,
    )
    remote_log_delete_on_disable = boolean(
        "remote.log.delete.on.disable",
        False,
        "Whether Kafka deletes tiered data when tiering is switched off.",
        support=NO_EFFECT,
    )


class RecordTopicKeys:
    max_message_bytes = int32(
        "max.message.bytes",
        1048588,
        "The largest record batch that is accepted.",
        check=at_least(0),
        synonyms=("message.max.bytes",),
    )
    compression_type = string(
        "compression.type",
        "producer",
        "How record batches are compressed on the disk; `producer` keeps them as they were sent.",
        check=one_of(*COMPRESSION_TYPES),
        synonyms=("compression.type",),
    )
    compression_gzip_level = int32(
        "compression.gzip.level",
        -1,
        "The gzip level when `compression.type` is gzip.",
        check=between(-1, 9),
        synonyms=("compression.gzip.level",),
    )
    compression_lz4_level = int32(
        "compression.lz4.level",
        9,
        "Kafka's lz4 level when `compression.type` is lz4; klamm's lz4 has one level.",
        check=between(1, 17),
        support=NO_EFFECT,
        synonyms=("compression.lz4.level",),
    )
    compression_zstd_level = int32(
        "compression.zstd.level",
        3,
        "The zstd level when `compression.type` is zstd.",
        check=between(-131072, 22),
        synonyms=("compression.zstd.level",),
    )
    message_format_version = string(
        "message.format.version",
        "3.0-IV1",
        "Kafka's former choice of the record format; klamm always writes format 2.",
        synonyms=("log.message.format.version",),
        support=NO_EFFECT,
    )
    message_timestamp_type = string(
        "message.timestamp.type",
        "CreateTime",
        "Whether records keep the producer's timestamp or get the broker's.",
        check=one_of(*TIMESTAMP_TYPES),
        synonyms=("log.message.timestamp.type",),
    )
    message_timestamp_difference_max_ms = int64(
        "message.timestamp.difference.max.ms",
        LONG_MAX,
        "Kafka's older bound on the distance of a record's timestamp from the broker's time.",
        check=at_least(0),
        synonyms=("log.message.timestamp.difference.max.ms",),
    )
    message_timestamp_before_max_ms = int64(
        "message.timestamp.before.max.ms",
        LONG_MAX,
        "How far a record's timestamp may lie before the broker's time.",
        check=at_least(0),
        synonyms=("log.message.timestamp.before.max.ms",),
    )
    message_timestamp_after_max_ms = int64(
        "message.timestamp.after.max.ms",
        LONG_MAX,
        "How far a record's timestamp may lie after the broker's time.",
        check=at_least(0),
        synonyms=("log.message.timestamp.after.max.ms",),
    )
    message_downconversion_enable = boolean(
        "message.downconversion.enable",
        True,
        "Kafka's switch for the conversion of records for very old consumers; klamm always converts.",
        importance=LOW,
        synonyms=("log.message.downconversion.enable",),
        support=NO_EFFECT,
    )


class ReplicationTopicKeys:
    min_insync_replicas = int32(
        "min.insync.replicas",
        1,
        "In-sync replicas that a produce request with acks=all needs.",
        check=at_least(1),
        synonyms=("min.insync.replicas",),
    )
    unclean_leader_election_enable = boolean(
        "unclean.leader.election.enable",
        False,
        "Whether a replica that is not in sync may become leader, losing records, if no other is left.",
        synonyms=("unclean.leader.election.enable",),
    )
    leader_replication_throttled_replicas = strings(
        "leader.replication.throttled.replicas",
        (),
        "The replicas that `leader.replication.throttled.rate` applies to: partition:broker of the leader, or `*`.",
        check=throttled_replicas,
    )
    follower_replication_throttled_replicas = strings(
        "follower.replication.throttled.replicas",
        (),
        "The replicas that `follower.replication.throttled.rate` applies to: partition:broker of the follower, or `*`.",
        check=throttled_replicas,
    )


TOPIC_KEYS: dict[str, AnyKey] = collect_keys(
    SegmentTopicKeys, RetentionTopicKeys, RecordTopicKeys, ReplicationTopicKeys
)
