"""Return values of a log. Failures are values as well."""

from __future__ import annotations

from typing import NamedTuple

from klamm.errors import ErrorCode
from klamm.log.producer_entry import BatchMetadata
from klamm.log.transaction_index import AbortedTxn
from klamm.log.validator import RecordError
from klamm.protocol.record_batch import NO_TIMESTAMP


class AppendResult:
    """The outcome of an append. It is not changed after it was returned.

    `log_append_time_ms` is -1 unless the topic uses it; for a duplicate it is the timestamp of the original batch.
    `flush_pending`: this append reached `flush.messages` and a flush is in progress. The batch is on the disk when
    `log.recovery_point` has passed `last_offset`.
    """

    __slots__ = (
        "base_offset",
        "bytes",
        "error",
        "error_message",
        "flush_pending",
        "is_duplicate",
        "last_offset",
        "log_append_time_ms",
        "log_start_offset",
        "record_errors",
        "records_count",
    )

    def __init__(
        self,
        error: ErrorCode,
        base_offset: int = -1,
        last_offset: int = -1,
        log_append_time_ms: int = NO_TIMESTAMP,
        log_start_offset: int = -1,
        records_count: int = 0,
        bytes: int = 0,
        flush_pending: bool = False,
    ) -> None:
        self.error = error
        self.base_offset = base_offset
        self.last_offset = last_offset
        self.log_append_time_ms = log_append_time_ms
        self.log_start_offset = log_start_offset
        self.records_count = records_count
        self.bytes = bytes
        self.flush_pending = flush_pending
        self.is_duplicate = False
        self.record_errors: tuple[RecordError, ...] = ()
        self.error_message: str | None = None

    @classmethod
    def rejected(
        cls,
        error: ErrorCode,
        message: str | None,
        log_start_offset: int = -1,
        record_errors: tuple[RecordError, ...] = (),
    ) -> AppendResult:
        result = cls(error, log_start_offset=log_start_offset)
        result.error_message = message
        result.record_errors = record_errors
        return result

    @classmethod
    def duplicate(
        cls, known: BatchMetadata, log_start_offset: int, records_count: int, flush_pending: bool
    ) -> AppendResult:
        """Return the result for a batch that the log has already, as `known`."""
        result = cls(ErrorCode.NONE, known.first_offset, known.last_offset, known.timestamp, log_start_offset)
        result.records_count = records_count
        result.flush_pending = flush_pending
        result.is_duplicate = True
        return result

    def with_error(self, error: ErrorCode) -> AppendResult:
        """Return a copy with another error code."""
        changed = AppendResult.rejected(error, self.error_message, self.log_start_offset, self.record_errors)
        changed.base_offset, changed.last_offset = self.base_offset, self.last_offset
        changed.log_append_time_ms = self.log_append_time_ms
        changed.records_count, changed.bytes = self.records_count, self.bytes
        changed.is_duplicate, changed.flush_pending = self.is_duplicate, self.flush_pending
        return changed

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"AppendResult({fields})"


class ReadResult(NamedTuple):
    """Whole batches; the first one may begin before the requested offset."""

    records: bytes | memoryview
    aborted: tuple[AbortedTxn, ...] = ()


class TimestampOffsetResult(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int
