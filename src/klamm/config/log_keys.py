"""Broker keys of the log: directories, segments, retention, flushing and compaction."""

from __future__ import annotations

from klamm.config.definition import (
    Importance,
    Support,
    UpdateMode,
    boolean,
    double,
    int32,
    int64,
    optional_int32,
    optional_int64,
    optional_string,
    string,
    strings,
)
from klamm.config.values import DOUBLE_MAX, LONG_MAX, at_least, between, one_of

HIGH, LOW = Importance.HIGH, Importance.LOW
CLUSTER_WIDE = UpdateMode.CLUSTER_WIDE
NO_EFFECT = Support.NO_EFFECT

COMPRESSION_TYPES = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")


class LogDirKeys:
    log_dir = string("log.dir", "/tmp/kafka-logs", "The log directory, if `log.dirs` is not set.", importance=HIGH)
    log_dirs = optional_string(
        "log.dirs", None, "The directories that hold the partitions, separated by commas.", importance=HIGH
    )
    num_recovery_threads_per_data_dir = int32(
        "num.recovery.threads.per.data.dir",
        1,
        "Kafka's threads per directory for loading and flushing logs.",
        importance=HIGH,
        check=at_least(1),
        update=CLUSTER_WIDE,
        support=NO_EFFECT,
    )
    log_flush_offset_checkpoint_interval_ms = int32(
        "log.flush.offset.checkpoint.interval.ms",
        60000,
        "How often recovery points are written.",
        importance=HIGH,
        check=at_least(0),
    )
    log_flush_start_offset_checkpoint_interval_ms = int32(
        "log.flush.start.offset.checkpoint.interval.ms",
        60000,
        "How often log start offsets are written.",
        importance=HIGH,
        check=at_least(0),
    )


class SegmentKeys:
    log_segment_bytes = int32(
        "log.segment.bytes",
        1073741824,
        "Size at which a segment is closed and a new one begins.",
        importance=HIGH,
        check=at_least(14),
        update=CLUSTER_WIDE,
    )
    log_roll_ms = optional_int64(
        "log.roll.ms",
        None,
        "Age at which a segment is closed and a new one begins; without it `log.roll.hours` applies.",
        importance=HIGH,
        update=CLUSTER_WIDE,
    )
    log_roll_hours = int32(
        "log.roll.hours", 168, "The age in hours at which a segment is closed.", importance=HIGH, check=at_least(1)
    )
    log_roll_jitter_ms = optional_int64(
        "log.roll.jitter.ms",
        None,
        "The maximum random reduction of `log.roll.ms`; without it `log.roll.jitter.hours` applies.",
        importance=HIGH,
        update=CLUSTER_WIDE,
    )
    log_roll_jitter_hours = int32(
        "log.roll.jitter.hours",
        0,
        "The maximum random reduction of `log.roll.hours`, in hours.",
        importance=HIGH,
        check=at_least(0),
    )
    log_index_size_max_bytes = int32(
        "log.index.size.max.bytes", 10485760, "The size of an offset index.", check=at_least(4), update=CLUSTER_WIDE
    )
    log_index_interval_bytes = int32(
        "log.index.interval.bytes",
        4096,
        "Bytes of records between two entries of the offset index.",
        check=at_least(0),
        update=CLUSTER_WIDE,
    )
    log_preallocate = boolean(
        "log.preallocate", False, "Whether a segment file gets its full size at once.", update=CLUSTER_WIDE
    )
    log_segment_delete_delay_ms = int64(
        "log.segment.delete.delay.ms",
        60000,
        "How long a file is kept after its segment was removed from the log.",
        importance=HIGH,
        check=at_least(0),
        update=CLUSTER_WIDE,
    )


class RetentionKeys:
    log_retention_ms = optional_int64(
        "log.retention.ms",
        None,
        "How long records are kept; without it `log.retention.minutes` applies, -1 keeps them for ever.",
        importance=HIGH,
        update=CLUSTER_WIDE,
    )
    log_retention_minutes = optional_int32(
        "log.retention.minutes",
        None,
        "How many minutes records are kept; without it `log.retention.hours` applies.",
        importance=HIGH,
    )
    log_retention_hours = int32("log.retention.hours", 168, "How many hours records are kept.", importance=HIGH)
    log_retention_bytes = int64(
        "log.retention.bytes",
        -1,
        "The size of a partition above which old segments are deleted; -1 sets no limit.",
        importance=HIGH,
        update=CLUSTER_WIDE,
    )
    log_retention_check_interval_ms = int64(
        "log.retention.check.interval.ms", 300000, "How often retention is applied.", check=at_least(1)
    )
    log_cleanup_policy = strings(
        "log.cleanup.policy",
        ("delete",),
        "Whether old segments are deleted, compacted, or both.",
        check=one_of("compact", "delete"),
        update=CLUSTER_WIDE,
    )
    log_initial_task_delay_ms = int64(
        "log.initial.task.delay.ms",
        30000,
        "How long after the start the first retention pass runs.",
        importance=LOW,
        check=at_least(0),
    )


class FlushKeys:
    log_flush_interval_messages = int64(
        "log.flush.interval.messages",
        LONG_MAX,
        "Records after which a log is flushed to the disk.",
        importance=HIGH,
        check=at_least(1),
        update=CLUSTER_WIDE,
    )
    log_flush_interval_ms = optional_int64(
        "log.flush.interval.ms",
        None,
        "Time after which a log is flushed to the disk; without it `log.flush.scheduler.interval.ms` applies.",
        importance=HIGH,
        update=CLUSTER_WIDE,
    )
    log_flush_scheduler_interval_ms = int64(
        "log.flush.scheduler.interval.ms", LONG_MAX, "How often logs are checked for a flush.", importance=HIGH
    )


class CleanerKeys:
    log_cleaner_enable = boolean("log.cleaner.enable", True, "Whether compaction runs at all.")
    log_cleaner_threads = int32(
        "log.cleaner.threads",
        1,
        "Kafka's compaction threads; klamm compacts in one.",
        check=at_least(0),
        update=CLUSTER_WIDE,
        support=NO_EFFECT,
    )
    log_cleaner_io_max_bytes_per_second = double(
        "log.cleaner.io.max.bytes.per.second",
        DOUBLE_MAX,
        "Maximum bytes per second that compaction reads and writes.",
        update=CLUSTER_WIDE,
        support=NO_EFFECT,
    )
    log_cleaner_dedupe_buffer_size = int64(
        "log.cleaner.dedupe.buffer.size",
        134217728,
        "Memory for the keys of one compaction pass.",
        update=CLUSTER_WIDE,
        support=NO_EFFECT,
    )
    log_cleaner_io_buffer_size = int32(
        "log.cleaner.io.buffer.size",
        524288,
        "Memory for reading and writing in compaction.",
        check=at_least(0),
        update=CLUSTER_WIDE,
        support=NO_EFFECT,
    )
    log_cleaner_io_buffer_load_factor = double(
        "log.cleaner.io.buffer.load.factor",
        0.9,
        "How full the key memory of compaction may get.",
        update=CLUSTER_WIDE,
        support=NO_EFFECT,
    )
    log_cleaner_backoff_ms = int64(
        "log.cleaner.backoff.ms",
        15000,
        "Pause of compaction if there was nothing to do.",
        check=at_least(0),
        update=CLUSTER_WIDE,
    )
    log_cleaner_min_cleanable_ratio = double(
        "log.cleaner.min.cleanable.ratio",
        0.5,
        "The share of uncompacted bytes from which a log is compacted.",
        check=between(0, 1),
        update=CLUSTER_WIDE,
    )
    log_cleaner_delete_retention_ms = int64(
        "log.cleaner.delete.retention.ms",
        86400000,
        "How long delete markers are kept in a compacted log.",
        check=at_least(0),
        update=CLUSTER_WIDE,
    )
    log_cleaner_min_compaction_lag_ms = int64(
        "log.cleaner.min.compaction.lag.ms",
        0,
        "The shortest time that a record stays uncompacted.",
        check=at_least(0),
        update=CLUSTER_WIDE,
    )
    log_cleaner_max_compaction_lag_ms = int64(
        "log.cleaner.max.compaction.lag.ms",
        LONG_MAX,
        "The longest time that a record may stay uncompacted.",
        check=at_least(1),
        update=CLUSTER_WIDE,
    )


class RecordKeys:
    message_max_bytes = int32(
        "message.max.bytes",
        1048588,
        "The largest record batch that is accepted.",
        importance=HIGH,
        check=at_least(0),
        update=CLUSTER_WIDE,
    )
    compression_type = string(
        "compression.type",
        "producer",
        "How record batches are compressed on the disk; `producer` keeps them as they were sent.",
        importance=HIGH,
        check=one_of(*COMPRESSION_TYPES),
        update=CLUSTER_WIDE,
    )
    compression_gzip_level = int32(
        "compression.gzip.level",
        -1,
        "The gzip level when `compression.type` is gzip.",
        check=between(-1, 9),
        update=CLUSTER_WIDE,
    )
    compression_lz4_level = int32(
        "compression.lz4.level",
        9,
        "Kafka's lz4 level when `compression.type` is lz4; klamm's lz4 has one level.",
        check=between(1, 17),
        support=NO_EFFECT,
        update=CLUSTER_WIDE,
    )
    compression_zstd_level = int32(
        "compression.zstd.level",
        3,
        "The zstd level when `compression.type` is zstd.",
        check=between(-131072, 22),
        update=CLUSTER_WIDE,
    )
    log_message_timestamp_type = string(
        "log.message.timestamp.type",
        "CreateTime",
        "Whether records keep the producer's timestamp or get the broker's.",
        check=one_of(*TIMESTAMP_TYPES),
        update=CLUSTER_WIDE,
    )
    log_message_timestamp_difference_max_ms = int64(
        "log.message.timestamp.difference.max.ms",
        LONG_MAX,
        "Kafka's older bound on the distance of a record's timestamp from the broker's time.",
        check=at_least(0),
        update=CLUSTER_WIDE,
    )
    log_message_timestamp_before_max_ms = int64(
        "log.message.timestamp.before.max.ms",
        LONG_MAX,
        "How far a record's timestamp may lie before the broker's time.",
        check=at_least(0),
        update=CLUSTER_WIDE,
    )
    log_message_timestamp_after_max_ms = int64(
        "log.message.timestamp.after.max.ms",
        LONG_MAX,
        "How far a record's timestamp may lie after the broker's time.",
        check=at_least(0),
        update=CLUSTER_WIDE,
    )
    log_message_format_version = string(
        "log.message.format.version",
        "3.0-IV1",
        "Kafka's former choice of the record format; klamm always writes format 2.",
        support=NO_EFFECT,
    )
    log_message_downconversion_enable = boolean(
        "log.message.downconversion.enable",
        True,
        "Kafka's switch for the conversion of records for very old consumers; klamm always converts.",
        importance=LOW,
        update=CLUSTER_WIDE,
        support=NO_EFFECT,
    )
