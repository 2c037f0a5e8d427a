"""What a log answers: values, whatever happened."""

from __future__ import annotations

from typing import NamedTuple

from klamm.errors import ErrorCode
from klamm.log.transaction_index import AbortedTxn
from klamm.log.validator import RecordError
from klamm.protocol.record_batch import NO_TIMESTAMP


class AppendResult(NamedTuple):
    """`log_append_time_ms` is -1 unless the topic uses it; a duplicate answers with the original's timestamp.

    `flush_pending`: this append reached `flush.messages` and a flush is under way: `log.recovery_point` passes
    `last_offset` when it is on the disk.
    """

    error: ErrorCode
    base_offset: int = -1
    last_offset: int = -1
    log_append_time_ms: int = NO_TIMESTAMP
    log_start_offset: int = -1
    record_errors: tuple[RecordError, ...] = ()
    error_message: str | None = None
    records_count: int = 0
    bytes: int = 0
    is_duplicate: bool = False
    flush_pending: bool = False


class ReadResult(NamedTuple):
    """Whole batches; the first one may begin before the offset that was asked for."""

    records: bytes | memoryview
    aborted: tuple[AbortedTxn, ...] = ()


class TimestampOffsetResult(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int
