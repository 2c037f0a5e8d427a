"""The coordinator's storage: it appends to and reads from the partitions of `__consumer_offsets` that it leads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from klamm.coordinator.deferred import Deferred
from klamm.errors import ErrorCode
from klamm.lazy_dataclass import lazy_dataclass


@lazy_dataclass(frozen=True, slots=True)
class Appended:
    """Result of an append, and the offset of its first record."""

    error: ErrorCode
    base_offset: int = -1


class OffsetsLog(Protocol):
    def append(self, partition: int, batch: bytes, timeout_ms: int) -> Deferred[Appended]:
        """Appends as leader; done when all in-sync replicas have the batch, in the order of the calls."""

    def build(self, work: Callable[[], bytes]) -> Deferred[bytes | None]:
        """Runs `work`, which builds a large batch from frozen values, off the loop. None: it failed."""

    def bounds(self, partition: int) -> tuple[int, int] | ErrorCode:
        """The log's start offset and end offset."""

    def read(self, partition: int, offset: int, max_bytes: int) -> bytes | memoryview | ErrorCode:
        """Whole batches from `offset` on, at least one, up to the log's end."""


def group_store_error(error: ErrorCode) -> ErrorCode:
    """Return the error for a member whose group's record could not be written."""
    match error:
        case (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            | ErrorCode.NOT_ENOUGH_REPLICAS
            | ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        ):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        case ErrorCode.NOT_LEADER_OR_FOLLOWER | ErrorCode.KAFKA_STORAGE_ERROR:
            return ErrorCode.NOT_COORDINATOR
        case ErrorCode.REQUEST_TIMED_OUT:
            return ErrorCode.REBALANCE_IN_PROGRESS
        case ErrorCode.MESSAGE_TOO_LARGE | ErrorCode.RECORD_LIST_TOO_LARGE | ErrorCode.INVALID_FETCH_SIZE:
            return ErrorCode.UNKNOWN_SERVER_ERROR
        case _:
            return error


def offset_commit_error(error: ErrorCode) -> ErrorCode:
    """Return the error for a consumer whose offsets could not be written."""
    match error:
        case ErrorCode.NETWORK_EXCEPTION:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        case (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            | ErrorCode.NOT_ENOUGH_REPLICAS
            | ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        ):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        case ErrorCode.NOT_LEADER_OR_FOLLOWER | ErrorCode.KAFKA_STORAGE_ERROR:
            return ErrorCode.NOT_COORDINATOR
        case ErrorCode.MESSAGE_TOO_LARGE | ErrorCode.RECORD_LIST_TOO_LARGE | ErrorCode.INVALID_FETCH_SIZE:
            return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        case _:
            return error
