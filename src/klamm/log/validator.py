"""The checks of a leader before it appends a batch, and its changes to the batch.

Header and checksum of every batch. Batches of clients are unpacked and every record is parsed, because a record that
consumers cannot parse would stop them forever. Timestamps and keys of all records are inspected only for compacted
topics, bounded timestamps, a broker-side codec or implausible header times. No objects are created per record, and
`max.message.bytes` bounds the unpacked size. A broken batch is INVALID_RECORD; Kafka returns UNKNOWN_SERVER_ERROR if
the codec itself fails, which is less helpful. Old formats (magic 0 and 1) are INVALID_RECORD here, as in Kafka from
Produce v3 on; `protocol/message_set.py` converts those of older requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from klamm.errors import ErrorCode, ProtocolError
from klamm.log.log_config import INT64_MAX, LogConfig
from klamm.log.producer_state import AppendOrigin
from klamm.protocol.compression import DEFAULT_MAX_DECOMPRESSED_BYTES, UnpackedTooLargeError
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
    TRANSACTIONAL_BIT,
    RecordBatch,
    TimestampType,
    batches,
    with_body,
    with_max_timestamp,
)
from klamm.protocol.record_scan import MIN_RECORD_BYTES, body_outlines, check_records, unpacked

MAX_CLOCK_SKEW_MS: Final = 3_600_000
"""If a header claims records that are further in the future, the records are inspected."""
_MIN_OLD_MESSAGE_BYTES: Final = 14
_MIN_LIMIT_BYTES: Final = 1 << 20
_MAX_COMPRESSION_RATIO: Final = 32
_MAX_RECORD_ERRORS: Final = 1000
_CLIENT: Final = AppendOrigin.CLIENT  # Python 3.11 takes ten times as long to find the member.
_ZSTD: Final = 4
_INT64_MIN: Final = -(1 << 63)
_TRANSACTION_BITS: Final = CONTROL_BIT | TRANSACTIONAL_BIT


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


Checked: TypeAlias = RecordBatch | Prepared | Rejection
"""The result of `validate`: the batch as it was sent, the batch to write instead, or the reason for its rejection."""


def is_plain(config: LogConfig) -> bool:
    """Whether only the header of a batch has to be inspected."""
    return (
        config.message_timestamp_type is TimestampType.CREATE_TIME
        and not config.is_compacted
        and config.target_compression is None
        and config.message_timestamp_before_max_ms == INT64_MAX
        and config.message_timestamp_after_max_ms == INT64_MAX
    )


def check_batch(view: memoryview, config: LogConfig, origin: AppendOrigin) -> RecordBatch | Rejection:
    """Return the single batch in `view`, checked by its header and its checksum."""
    size = len(view)
    if size < RECORD_BATCH_OVERHEAD or view[MAGIC_POSITION] != MAGIC_V2:
        return _not_a_batch(view)
    batch = RecordBatch(view)
    batch_bytes = LOG_OVERHEAD + batch.batch_length
    if batch_bytes != size:
        return _wrong_length(batch_bytes, size)
    if size > config.max_message_bytes and (origin is _CLIENT or not batch.attributes & CONTROL_BIT):
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
    if codec == 0 and count * MIN_RECORD_BYTES > size - RECORD_BATCH_OVERHEAD:
        return Rejection(
            ErrorCode.INVALID_RECORD, f"{size} bytes cannot hold the {count} records that the header claims"
        )
    if codec and (rejection := _check_codec(codec, count, config)) is not None:
        return rejection
    if origin is _CLIENT:
        return _check_client_batch(batch)
    return batch


def _check_codec(codec: int, count: int, config: LogConfig) -> Rejection | None:
    """Allow at most as many records as fit uncompressed. Producers split batches on MESSAGE_TOO_LARGE."""
    if codec > _ZSTD:
        return Rejection(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression type {codec} is unknown")
    most = max(config.max_message_bytes, _MIN_LIMIT_BYTES) // MIN_RECORD_BYTES
    if count > most:
        return Rejection(ErrorCode.MESSAGE_TOO_LARGE, f"the record batch has {count} records, {most} are allowed")
    return None


def max_unpacked_bytes(config: LogConfig) -> int:
    """Return how many bytes a batch of the topic may unpack to."""
    return min(_MAX_COMPRESSION_RATIO * max(config.max_message_bytes, _MIN_LIMIT_BYTES), DEFAULT_MAX_DECOMPRESSED_BYTES)


def _check_client_batch(batch: RecordBatch) -> RecordBatch | Rejection:
    if batch.base_offset != 0:
        message = f"the base offset of a produced batch is 0, not {batch.base_offset}"
    elif batch.attributes & _TRANSACTION_BITS and (problem := _transaction_problem(batch)) is not None:
        message = problem
    elif batch.producer_id >= 0 and batch.base_sequence < 0:
        message = f"producer {batch.producer_id} sent the sequence {batch.base_sequence}"
    elif batch.attributes & COMPRESSION_MASK:
        return batch
    else:
        try:
            check_records(batch.view[RECORD_BATCH_OVERHEAD:], batch.record_count)
            return batch
        except ProtocolError as e:
            message = str(e)
    return Rejection(ErrorCode.INVALID_RECORD, message)


def _transaction_problem(batch: RecordBatch) -> str | None:
    if batch.attributes & CONTROL_BIT:
        return "clients cannot write control records"
    return "a transactional batch needs a producer id" if batch.producer_id < 0 else None


def _not_a_batch(view: memoryview) -> Rejection:
    if len(view) < CRC_POSITION:
        return Rejection(ErrorCode.INVALID_RECORD, "there is no record batch")
    length, magic = OFFSET_AND_LENGTH.unpack_from(view)[1], view[MAGIC_POSITION]
    if magic > MAGIC_V2 or length < _MIN_OLD_MESSAGE_BYTES:
        return Rejection(ErrorCode.CORRUPT_MESSAGE, f"a record batch of {length} bytes and magic {magic} is impossible")
    if magic < MAGIC_V2:
        return Rejection(
            ErrorCode.INVALID_RECORD, f"message format {magic} is not supported: send record batches with magic 2"
        )
    return Rejection(ErrorCode.INVALID_RECORD, f"{len(view)} bytes are too few for a record batch")


def _wrong_length(batch_bytes: int, size: int) -> Rejection:
    if batch_bytes < RECORD_BATCH_OVERHEAD:
        return Rejection(ErrorCode.CORRUPT_MESSAGE, f"a record batch cannot have {batch_bytes} bytes")
    if batch_bytes > size:
        return Rejection(ErrorCode.INVALID_RECORD, f"the record batch has {batch_bytes} bytes, but {size} were sent")
    return Rejection(ErrorCode.INVALID_RECORD, "exactly one record batch is expected for a partition")


def validate(view: memoryview, config: LogConfig, origin: AppendOrigin, now_ms: int, *, is_plain: bool) -> Checked:
    """Check a batch and give it the topic's timestamps and codec. A pure function: any thread may call it."""
    batch = check_batch(view, config, origin)
    if not isinstance(batch, RecordBatch):
        return batch
    flags = batch.attributes
    if (
        is_plain
        and not flags & TIMESTAMP_TYPE_BIT
        and (not flags & COMPRESSION_MASK or origin is not _CLIENT)
        and has_plausible_times(batch, now_ms)
    ):
        return batch
    return prepare(batch, config, now_ms, origin)


def validate_packed(view: memoryview, config: LogConfig, now_ms: int, max_unpacked: int) -> Checked | None:
    """Like `validate`, for a compressed batch of a client; None if it unpacks to more than `max_unpacked` bytes."""
    batch = check_batch(view, config, AppendOrigin.CLIENT)
    if not isinstance(batch, RecordBatch):
        return batch
    try:
        return prepare(batch, config, now_ms, AppendOrigin.CLIENT, max_unpacked)
    except UnpackedTooLargeError:
        return None


def check_replicated(records: memoryview | bytes | bytearray, end_offset: int) -> list[RecordBatch] | Rejection:
    """Return the whole batches that a leader sent to a follower whose log ends at `end_offset`."""
    try:
        sent = list(batches(records if isinstance(records, memoryview) else memoryview(records)))
    except ProtocolError as e:
        return Rejection(ErrorCode.CORRUPT_MESSAGE, str(e))
    expected = end_offset
    for batch in sent:
        if batch.base_offset < expected or batch.last_offset_delta < 0:
            message = f"a batch begins at offset {batch.base_offset}, the next offset is {expected}"
            return Rejection(ErrorCode.OFFSET_OUT_OF_RANGE, message)
        if not batch.is_valid():
            return Rejection(ErrorCode.CORRUPT_MESSAGE, f"the batch at offset {batch.base_offset} has a wrong checksum")
        expected = batch.next_offset
    return sent


def has_plausible_times(batch: RecordBatch, now_ms: int) -> bool:
    oldest, newest = batch.base_timestamp, batch.max_timestamp
    if oldest < 0:
        return oldest == newest == NO_TIMESTAMP
    return oldest <= newest <= now_ms + MAX_CLOCK_SKEW_MS


def prepare(
    batch: RecordBatch,
    config: LogConfig,
    now_ms: int,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    max_unpacked: int | None = None,
) -> Prepared | Rejection:
    """Check the records and give the batch the topic's timestamps and codec.

    Raises UnpackedTooLargeError only if `max_unpacked` is given: the caller then retries elsewhere.
    """
    is_append_time = config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
    if is_append_time and batch.attributes & TIMESTAMP_TYPE_BIT:
        return _reject(ErrorCode.INVALID_TIMESTAMP, _every_record(batch, "producers cannot set LogAppendTime"))
    target = config.target_compression
    recompress = target is not None and target != batch.compression and not batch.attributes & CONTROL_BIT
    body = memoryview(b"")
    max_timestamp = batch.max_timestamp
    needs_records = recompress or _needs_records(batch, config, now_ms, origin)
    if needs_records or (origin is AppendOrigin.CLIENT and batch.attributes & COMPRESSION_MASK):
        limit = max_unpacked_bytes(config)
        try:
            body = unpacked(batch, limit if max_unpacked is None else min(limit, max_unpacked))
            if needs_records:
                checked = _check_records(body_outlines(batch, body), config, now_ms)
            else:
                check_records(body, batch.record_count)
                checked = max_timestamp
        except UnpackedTooLargeError as e:
            if max_unpacked is not None and max_unpacked < limit:
                raise
            return Rejection(ErrorCode.MESSAGE_TOO_LARGE, str(e))
        except ProtocolError as e:
            return Rejection(ErrorCode.INVALID_RECORD, str(e))
        if isinstance(checked, Rejection):
            return checked
        max_timestamp = checked
    append_time_ms = now_ms if is_append_time else NO_TIMESTAMP
    if is_append_time:
        max_timestamp = now_ms
    timestamp_type = config.message_timestamp_type
    if recompress and target is not None:
        data = with_body(batch, body, target, config.compression_level, timestamp_type, max_timestamp)
        if len(data) > config.max_message_bytes:
            return _too_large_recompressed(len(data), config)
        return Prepared(RecordBatch(memoryview(data)), append_time_ms)
    if max_timestamp != batch.max_timestamp or timestamp_type is not batch.timestamp_type:
        data = with_max_timestamp(batch, timestamp_type, max_timestamp)
        return Prepared(RecordBatch(memoryview(data)), append_time_ms)
    return Prepared(batch, append_time_ms)


def _too_large_recompressed(size: int, config: LogConfig) -> Rejection:
    return Rejection(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"the record batch has {size} bytes as {config.compression_type}, "
        f"max.message.bytes is {config.max_message_bytes}",
    )


def _needs_records(batch: RecordBatch, config: LogConfig, now_ms: int, origin: AppendOrigin) -> bool:
    if batch.attributes & CONTROL_BIT:
        return False
    if config.is_compacted and origin is AppendOrigin.CLIENT:
        # Records of coordinators have keys, and the leader has checked replicated ones. To look for the keys of 20,000
        # offsets took 30 ms.
        return True
    if config.message_timestamp_type is TimestampType.LOG_APPEND_TIME:
        return False
    if config.message_timestamp_before_max_ms != INT64_MAX:
        return True
    is_late = batch.max_timestamp - now_ms > config.message_timestamp_after_max_ms
    return is_late or not has_plausible_times(batch, now_ms)


def _check_records(rows: Iterator[tuple[int, bool]], config: LogConfig, now_ms: int) -> Rejection | int:
    """Return the newest timestamp of the records, or the reason for their rejection."""
    low = high = None
    if config.message_timestamp_type is TimestampType.CREATE_TIME:
        before = config.message_timestamp_before_max_ms
        low = now_ms - before if before != INT64_MAX else _INT64_MIN
        high = now_ms + config.message_timestamp_after_max_ms
    needs_key = config.is_compacted
    newest = NO_TIMESTAMP
    errors: list[RecordError] = []
    is_untimely = False
    for i, (timestamp, has_key) in enumerate(rows):
        if timestamp > newest:
            newest = timestamp
        if needs_key and not has_key:
            errors.append(RecordError(i, "a record of a compacted topic needs a key"))
        elif low is not None and high is not None and timestamp != NO_TIMESTAMP and not low <= timestamp <= high:
            errors.append(RecordError(i, f"timestamp {timestamp} is outside of {low} to {high}"))
            is_untimely = True
        if len(errors) >= _MAX_RECORD_ERRORS:
            break
    if not errors:
        return newest
    return _reject(ErrorCode.INVALID_TIMESTAMP if is_untimely else ErrorCode.INVALID_RECORD, errors)


def _every_record(batch: RecordBatch, message: str) -> list[RecordError]:
    return [RecordError(i, message) for i in range(min(batch.record_count, _MAX_RECORD_ERRORS))]


def _reject(error: ErrorCode, errors: list[RecordError]) -> Rejection:
    what = "their timestamp" if error is ErrorCode.INVALID_TIMESTAMP else "record errors"
    return Rejection(error, f"{len(errors)} records were rejected because of {what}", tuple(errors))
