"""The coordinator's storage: it appends to and reads from the partitions of `__consumer_offsets` that it leads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from klamm.coordinator.deferred import Deferred
from klamm.errors import ErrorCode
from klamm.lazy_dataclass import lazy_dataclass
from klamm.model import ConnectionOrder, TransactionVersion


@lazy_dataclass(frozen=True, slots=True)
class Appended:
    """Result of an append, and the offset of its first record."""

    error: ErrorCode
    base_offset: int = -1


GIVEN_UP: Final = ErrorCode.NETWORK_EXCEPTION
"""The producer has given up the connection that a request arrived on: the request is late and must not act."""


@lazy_dataclass(frozen=True, slots=True)
class TransactionalProducer:
    """The producer of a TxnOffsetCommit. `connection` is the order of the connection that the request came on."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    version: TransactionVersion
    connection: ConnectionOrder | None = None

    def is_older_than(self, last_before_election: ConnectionOrder) -> bool:
        """Whether the request may have been sent to this broker in an earlier leadership, in another transaction.

        With `TV_2` each transaction has its own epoch. With older versions all have the same epoch, and the broker
        does not know which connections acted while another one led the partition.
        """
        is_recent = self.connection is None or self.connection > last_before_election
        return not is_recent and not self.version.bumps_epoch


class OffsetsLog(Protocol):
    def append(self, partition: int, batch: bytes, timeout_ms: int) -> Deferred[Appended]:
        """Appends as leader; done when all in-sync replicas have the batch, in the order of the calls."""

    def build(self, work: Callable[[], bytes]) -> Deferred[bytes | None]:
        """Runs `work`, which builds a large batch from frozen values, off the loop. None: it failed."""

    def await_replication(self, partition: int, timeout_ms: int) -> Deferred[ErrorCode]:
        """Done when all in-sync replicas have all records that are in the log now."""

    def bounds(self, partition: int) -> tuple[int, int] | ErrorCode:
        """The log's start offset and end offset."""

    def read(self, partition: int, offset: int, max_bytes: int) -> bytes | memoryview | ErrorCode:
        """Whole batches from `offset` on, at least one, up to the log's end."""

    def is_confirmed(self, partition: int) -> bool:
        """Whether no other broker can have become the leader some time ago without this one knowing."""


class GroupLog(OffsetsLog, Protocol):
    """The log of a group coordinator: producers write to it in their transactions as well."""

    def append_transactional(
        self,
        partition: int,
        batch: bytes,
        timeout_ms: int,
        producer: TransactionalProducer,
        admit: Callable[[], ErrorCode],
    ) -> Deferred[Appended]:
        """Appends if the transaction coordinator confirms that the partition belongs to the producer's transaction.

        `admit` is called once, directly before the append; its error refuses the batch. A result with an error and an
        offset is a batch that is in the log, although too few replicas have acknowledged it.
        """


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


def transactional_commit_error(error: ErrorCode) -> ErrorCode:
    """Like `offset_commit_error`, except for GIVEN_UP: it is never sent to a client, so it is not translated."""
    return error if error is GIVEN_UP else offset_commit_error(error)
