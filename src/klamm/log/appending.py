"""Appending to a log: batches of clients and coordinators on a leader, fetched batches on a follower.

`Log` only writes. These functions check the batches and return the results.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from klamm.errors import ErrorCode, ProtocolError
from klamm.log.disk_guard import TOO_MANY_FILES
from klamm.log.log import Log
from klamm.log.producer_state import AppendOrigin
from klamm.log.results import AppendResult
from klamm.log.validator import Checked, Prepared, Rejection, check_batch, check_replicated, validate
from klamm.log.verification_state import TransactionCheck
from klamm.protocol.record_batch import NO_TIMESTAMP, PREFIX, RecordBatch

Checkable: TypeAlias = "memoryview | bytes | bytearray | Checked"
"""A batch as it was sent, or the result of its validation."""
_OFFLINE: Final = "the log directory is offline"
# Members under names of their own: Python 3.11 takes ten times as long to find `ErrorCode.NONE`.
_NONE: Final = ErrorCode.NONE
_CLIENT: Final = AppendOrigin.CLIENT


def append_as_leader(
    log: Log,
    records: Checkable,
    leader_epoch: int,
    *,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    transaction: TransactionCheck | None = None,
) -> AppendResult:
    """Append the one batch of `records` at the end of the log, in the given leader epoch.

    `records` may also be the result of `validate` for them. Without `transaction`, transactional batches are not
    checked for their transaction.
    """
    if not log.is_usable():
        return _not_usable(log, records, origin)
    now_ms = log.clock.now_ms()
    checked: Checked
    if isinstance(records, memoryview):
        checked = validate(records, log.config, origin, now_ms, is_plain=log.is_plain)
    elif isinstance(records, bytes | bytearray):
        checked = validate(memoryview(records), log.config, origin, now_ms, is_plain=log.is_plain)
    else:
        checked = records
    if isinstance(checked, RecordBatch):
        return _append_batch(log, checked, NO_TIMESTAMP, leader_epoch, origin, now_ms, transaction)
    if isinstance(checked, Prepared):
        time_ms = checked.log_append_time_ms
        return _append_batch(log, checked.batch, time_ms, leader_epoch, origin, now_ms, transaction)
    return AppendResult.rejected(checked.error, checked.message, log.log_start_offset, checked.record_errors)


def _append_batch(
    log: Log,
    batch: RecordBatch,
    append_time_ms: int,
    leader_epoch: int,
    origin: AppendOrigin,
    now_ms: int,
    transaction: TransactionCheck | None,
) -> AppendResult:
    if batch.producer_id >= 0 and (known := _check_producer(log, batch, origin, transaction)) is not None:
        return known
    view = batch.view
    size = len(view)
    if size > log.config.segment_bytes:
        message = f"the record batch has {size} bytes, segment.bytes is {log.config.segment_bytes}"
        return _rejected(log, ErrorCode.RECORD_LIST_TOO_LARGE, message)
    batch.base_offset = base_offset = log.log_end_offset
    batch.partition_leader_epoch = leader_epoch
    last_offset = base_offset + batch.last_offset_delta
    prefix = PREFIX.pack(base_offset, batch.batch_length, leader_epoch)
    try:
        log.write(batch, (prefix, view[PREFIX.size :]), size, last_offset, now_ms)
        flush_pending = log.has_flush_limits and log.flush_if_due()
    except OSError as e:
        if origin is _CLIENT and batch.producer_id >= 0 and log.log_end_offset == base_offset:
            log.unwritten.note(batch, log.clock.monotonic())
        return _rejected(log, ErrorCode.KAFKA_STORAGE_ERROR, log.disk.failed(e, "appending to"))
    if log.unwritten:
        log.unwritten.written(batch.producer_id)
    start, count = log.log_start_offset, batch.record_count
    return AppendResult(_NONE, base_offset, last_offset, append_time_ms, start, count, size, flush_pending)


def append_as_follower(log: Log, records: memoryview | bytes | bytearray) -> AppendResult:
    """Append the batches of a leader with their offsets and epochs. Leave out an unfinished batch at the end.

    OFFSET_OUT_OF_RANGE: the first batch begins before the end of the log. CORRUPT_MESSAGE: a checksum is wrong.
    """
    if not log.is_usable():
        return _not_usable(log, records, AppendOrigin.REPLICATION)
    sent = check_replicated(records, log.log_end_offset)
    if isinstance(sent, Rejection):
        return _rejected(log, sent.error, sent.message)
    if not sent:
        return AppendResult(ErrorCode.NONE, log_start_offset=log.log_start_offset)
    now_ms = log.clock.now_ms()
    log.unwritten.clear()
    try:
        for batch in sent:
            log.write(batch, (batch.view,), batch.size_bytes, batch.last_offset, now_ms)
        flush_pending = log.has_flush_limits and log.flush_if_due()
    except OSError as e:
        return _rejected(log, ErrorCode.KAFKA_STORAGE_ERROR, log.disk.failed(e, "appending to"))
    return AppendResult(
        ErrorCode.NONE,
        sent[0].base_offset,
        sent[-1].last_offset,
        log_start_offset=log.log_start_offset,
        records_count=sum(b.record_count for b in sent),
        bytes=sum(b.size_bytes for b in sent),
        flush_pending=flush_pending,
    )


def find_duplicate(log: Log, records: Checkable) -> AppendResult | None:
    """Return what `append_as_leader` returns for a client's batch that the log has already; None for other batches."""
    batch = _batch_of_producer(log, records)
    return None if batch is None or not log.is_usable() else _duplicate(log, batch)


def note_refused(log: Log, records: Checkable, origin: AppendOrigin) -> None:
    """Remember that a client's batch found a log that cannot be opened: its later batches wait until it comes again."""
    if not log.disk.is_failed and origin is _CLIENT and (batch := _batch_of_producer(log, records)) is not None:
        log.unwritten.note(batch, log.clock.monotonic())


def _batch_of_producer(log: Log, records: Checkable) -> RecordBatch | None:
    """Return a valid batch that has a producer id; its records are not checked."""
    checked: Checked
    if isinstance(records, memoryview | bytes | bytearray):
        checked = check_batch(memoryview(records), log.config, AppendOrigin.CLIENT)
    else:
        checked = records
    batch = checked.batch if isinstance(checked, Prepared) else checked
    return None if isinstance(batch, Rejection) or batch.producer_id < 0 else batch


def _not_usable(log: Log, records: Checkable, origin: AppendOrigin) -> AppendResult:
    """Reject a batch because the log cannot be opened, or its disk has failed."""
    note_refused(log, records, origin)
    return _rejected(log, ErrorCode.KAFKA_STORAGE_ERROR, _OFFLINE if log.disk.is_failed else TOO_MANY_FILES)


def _check_producer(
    log: Log, batch: RecordBatch, origin: AppendOrigin, transaction: TransactionCheck | None
) -> AppendResult | None:
    """Return the result for a duplicate or for a batch out of order; None if the batch may be appended."""
    if origin is _CLIENT and (duplicate := _duplicate(log, batch)) is not None:
        return duplicate
    try:
        refusal = log.producers.validate(batch, origin, transaction)
    except ProtocolError as e:
        return _rejected(log, ErrorCode.INVALID_RECORD, str(e))
    if log.unwritten and origin is _CLIENT:
        entry = log.producers.entries.get(batch.producer_id)
        refusal = log.unwritten.refusal(batch, refusal, entry, log.clock.monotonic())
    return _rejected(log, refusal.error, refusal.message) if refusal is not None else None


def _duplicate(log: Log, batch: RecordBatch) -> AppendResult | None:
    known = log.producers.find_duplicate(batch)
    if known is None:
        return None
    flush_pending = log.recovery_point <= known.last_offset < log.flusher.requested_offset
    return AppendResult.duplicate(known, log.log_start_offset, batch.record_count, flush_pending)


def _rejected(log: Log, error: ErrorCode, message: str) -> AppendResult:
    return AppendResult.rejected(error, message, log.log_start_offset)
