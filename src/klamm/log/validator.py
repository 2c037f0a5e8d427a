"""What a leader checks before it appends a batch, and what it changes in it.

The header is enough in the common case. Records are decoded only for a compacted topic, bounded timestamps or a
broker-side codec. Old formats (magic 0 and 1) are refused with INVALID_RECORD, as Kafka does from Produce v3 on.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from klamm.errors import ErrorCode, ProtocolError
from klamm.log.log_config import INT64_MAX, LogConfig
from klamm.log.producer_state import AppendOrigin
from klamm.protocol.compression import DEFAULT_MAX_DECOMPRESSED_BYTES
from klamm.protocol.record_batch import (
    COMPRESSION_MASK,
    CONTROL_BIT,
    CRC_POSITION,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    MAGIC_V2,
    NO_TIMESTAMP,
    OFFSET_AND_LENGTH,
    RECORD_BATCH_OVERHEAD,
    TIMESTAMP_TYPE_BIT,
    Record,
    RecordBatch,
    TimestampType,
    build_batch,
    records,
    with_max_timestamp,
)

_MIN_OLD_MESSAGE_BYTES: Final = 14
_MIN_RECORD_BYTES: Final = 7
_ZSTD: Final = 4


class RecordError(NamedTuple):
    batch_index: int
    message: str


class Rejection(NamedTuple):
    error: ErrorCode
    message: str
    record_errors: tuple[RecordError, ...] = ()


class Prepared(NamedTuple):
    """The batch to write, and the append time when the topic has one."""

    batch: RecordBatch
    log_append_time_ms: int


def is_plain(config: LogConfig) -> bool:
    """Whether the header of a batch is all that has to be looked at."""
    return (
        config.message_timestamp_type is TimestampType.CREATE_TIME
        and not config.is_compacted
        and config.target_compression is None
        and config.message_timestamp_before_max_ms == INT64_MAX
        and config.message_timestamp_after_max_ms == INT64_MAX
    )


def check_batch(view: memoryview, config: LogConfig, origin: AppendOrigin) -> RecordBatch | Rejection:
    """The one batch that `view` has to be, checked by its header and its checksum."""
    size = len(view)
    if size < RECORD_BATCH_OVERHEAD or view[MAGIC_POSITION] != MAGIC_V2:
        return _not_a_batch(view)
    batch = RecordBatch(view)
    batch_bytes = LOG_OVERHEAD + batch.batch_length
    if batch_bytes != size:
        return _wrong_length(batch_bytes, size)
    if size > config.max_message_bytes:
        return Rejection(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the record batch has {size} bytes, max.message.bytes is {config.max_message_bytes}",
        )
    if not batch.is_valid():
        return Rejection(ErrorCode.CORRUPT_MESSAGE, f"the checksum {batch.crc:#010x} is not that of the record batch")
    count = batch.record_count
    if count <= 0 or batch.last_offset_delta != count - 1:
        return Rejection(
            ErrorCode.INVALID_RECORD,
            f"the record batch has {count} records and a last offset delta of {batch.last_offset_delta}",
        )
    codec = batch.attributes & COMPRESSION_MASK
    if codec == 0 and count * _MIN_RECORD_BYTES > size - RECORD_BATCH_OVERHEAD:
        return Rejection(ErrorCode.INVALID_RECORD, f"{size} bytes cannot hold the {count} records that are announced")
    if codec > _ZSTD:
        return Rejection(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression type {codec} is not known")
    if origin is AppendOrigin.CLIENT:
        return _check_client_batch(batch)
    return batch


def _check_client_batch(batch: RecordBatch) -> RecordBatch | Rejection:
    if batch.base_offset != 0:
        message = f"the base offset of a produced batch is 0, not {batch.base_offset}"
    elif batch.attributes & CONTROL_BIT:
        message = "clients cannot write control records"
    elif batch.producer_id >= 0 and batch.base_sequence < 0:
        message = f"producer {batch.producer_id} sent the sequence {batch.base_sequence}"
    else:
        return batch
    return Rejection(ErrorCode.INVALID_RECORD, message)


def _not_a_batch(view: memoryview) -> Rejection:
    if len(view) < CRC_POSITION:
        return Rejection(ErrorCode.INVALID_RECORD, "there is no record batch")
    length, magic = OFFSET_AND_LENGTH.unpack_from(view)[1], view[MAGIC_POSITION]
    if magic > MAGIC_V2 or length < _MIN_OLD_MESSAGE_BYTES:
        return Rejection(ErrorCode.CORRUPT_MESSAGE, f"a record batch of {length} bytes and magic {magic} cannot be")
    if magic < MAGIC_V2:
        return Rejection(
            ErrorCode.INVALID_RECORD, f"message format {magic} is not supported: send record batches with magic 2"
        )
    return Rejection(ErrorCode.CORRUPT_MESSAGE, f"{len(view)} bytes are too few for a record batch")


def _wrong_length(batch_bytes: int, size: int) -> Rejection:
    if batch_bytes < RECORD_BATCH_OVERHEAD:
        return Rejection(ErrorCode.CORRUPT_MESSAGE, f"a record batch cannot have {batch_bytes} bytes")
    if batch_bytes > size:
        return Rejection(ErrorCode.INVALID_RECORD, f"the record batch has {batch_bytes} bytes and {size} were sent")
    return Rejection(ErrorCode.INVALID_RECORD, "exactly one record batch is expected for a partition")


def prepare(batch: RecordBatch, config: LogConfig, now_ms: int) -> Prepared | Rejection:
    """Checks records where the topic wants it, and gives the batch the topic's timestamps and codec."""
    is_append_time = config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
    if is_append_time and batch.attributes & TIMESTAMP_TYPE_BIT:
        return _reject(ErrorCode.INVALID_TIMESTAMP, _every_record(batch, "producers cannot set LogAppendTime"))
    target = config.target_compression
    recompress = target is not None and target != batch.compression and not batch.attributes & CONTROL_BIT
    rows: list[Record] = []
    if recompress or _needs_records(batch, config, now_ms):
        try:
            rows = list(records(batch, DEFAULT_MAX_DECOMPRESSED_BYTES))
        except ProtocolError as e:
            return Rejection(ErrorCode.INVALID_RECORD, str(e))
        if (rejection := _check_records(rows, batch, config, now_ms)) is not None:
            return rejection
    append_time_ms = now_ms if is_append_time else NO_TIMESTAMP
    if recompress and target is not None:
        return _recompress(batch, rows, config, target, append_time_ms)
    if is_append_time:
        changed = with_max_timestamp(batch, TimestampType.LOG_APPEND_TIME, now_ms)
        return Prepared(RecordBatch(memoryview(changed)), now_ms)
    if batch.attributes & TIMESTAMP_TYPE_BIT:
        changed = with_max_timestamp(batch, TimestampType.CREATE_TIME, batch.max_timestamp)
        return Prepared(RecordBatch(memoryview(changed)), NO_TIMESTAMP)
    return Prepared(batch, NO_TIMESTAMP)


def _recompress(
    batch: RecordBatch, rows: list[Record], config: LogConfig, codec: int, append_time_ms: int
) -> Prepared | Rejection:
    data = build_batch(
        [row._replace(offset=-1) for row in rows],
        compression=codec,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        is_transactional=batch.is_transactional,
        timestamp_type=config.message_timestamp_type,
        max_timestamp=append_time_ms if append_time_ms >= 0 else None,
    )
    if len(data) > config.max_message_bytes:
        return Rejection(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the record batch has {len(data)} bytes as {config.compression_type}, "
            f"max.message.bytes is {config.max_message_bytes}",
        )
    return Prepared(RecordBatch(memoryview(data)), append_time_ms)


def _needs_records(batch: RecordBatch, config: LogConfig, now_ms: int) -> bool:
    if batch.attributes & CONTROL_BIT:
        return False
    if config.is_compacted:
        return True
    if config.message_timestamp_type is TimestampType.LOG_APPEND_TIME:
        return False
    if config.message_timestamp_before_max_ms != INT64_MAX:
        return True
    return batch.max_timestamp - now_ms > config.message_timestamp_after_max_ms


def _check_records(rows: list[Record], batch: RecordBatch, config: LogConfig, now_ms: int) -> Rejection | None:
    keyless: list[RecordError] = []
    untimely: list[RecordError] = []
    bounds = None
    if config.message_timestamp_type is TimestampType.CREATE_TIME:
        bounds = (now_ms - config.message_timestamp_before_max_ms, now_ms + config.message_timestamp_after_max_ms)
    for i, record in enumerate(rows):
        if config.is_compacted and record.key is None:
            keyless.append(RecordError(i, "a record of a compacted topic needs a key"))
        elif bounds is not None and record.timestamp != NO_TIMESTAMP and not bounds[0] <= record.timestamp <= bounds[1]:
            untimely.append(RecordError(i, f"timestamp {record.timestamp} is outside of {bounds[0]} to {bounds[1]}"))
    if not keyless and not untimely:
        return None
    error = ErrorCode.INVALID_TIMESTAMP if untimely else ErrorCode.INVALID_RECORD
    return _reject(error, sorted(keyless + untimely))


def _every_record(batch: RecordBatch, message: str) -> list[RecordError]:
    return [RecordError(i, message) for i in range(min(batch.record_count, batch.size_bytes))]


def _reject(error: ErrorCode, errors: list[RecordError]) -> Rejection:
    what = "their timestamp" if error is ErrorCode.INVALID_TIMESTAMP else "record errors"
    return Rejection(error, f"{len(errors)} of the records were refused because of {what}", tuple(errors))
