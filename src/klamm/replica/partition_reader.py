"""Reading a partition: records, offsets by time, offsets by leader epoch. Nothing here changes the partition."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from klamm.errors import ErrorCode
from klamm.model import NO_EPOCH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.log.log import Log
    from klamm.replica.partition import Partition

LATEST_TIMESTAMP: Final = -1
EARLIEST_TIMESTAMP: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL_TIMESTAMP: Final = -4
LATEST_TIERED_TIMESTAMP: Final = -5
UNKNOWN_OFFSET: Final = -1
NO_TIMESTAMP: Final = -1

NO_RECORDS: Final = b""


class Isolation(Enum):
    """Read limit: followers read to the end, consumers to the committed end."""

    LOG_END = "log end"
    HIGH_WATERMARK = "high watermark"
    TXN_COMMITTED = "transactions committed"


# Members under names of their own: Python 3.11 takes ten times as long to find `Isolation.LOG_END`.
_LOG_END: Final = Isolation.LOG_END
_HIGH_WATERMARK: Final = Isolation.HIGH_WATERMARK
_TXN_COMMITTED: Final = Isolation.TXN_COMMITTED
_NONE: Final = ErrorCode.NONE


class PartitionFetch(NamedTuple):
    """The request for one partition."""

    fetch_offset: int
    max_bytes: int
    log_start_offset: int = UNKNOWN_OFFSET
    current_leader_epoch: int = NO_EPOCH
    last_fetched_epoch: int = NO_EPOCH


@dataclass(slots=True)
class PartitionRead:
    """The answer for one partition; `records` is bytes-like (whole batches)."""

    error: ErrorCode = ErrorCode.NONE
    high_watermark: int = UNKNOWN_OFFSET
    last_stable_offset: int = UNKNOWN_OFFSET
    log_start_offset: int = UNKNOWN_OFFSET
    records: Any = NO_RECORDS
    size_bytes: int = 0
    aborted: Sequence[Any] | None = None
    diverging_epoch: tuple[int, int] | None = None
    preferred_read_replica: int = -1
    """A follower that the consumer should read from instead (KIP-392)."""


class TimestampAndOffset(NamedTuple):
    error: ErrorCode
    timestamp: int = NO_TIMESTAMP
    offset: int = UNKNOWN_OFFSET
    leader_epoch: int = NO_EPOCH


class EpochEndOffset(NamedTuple):
    error: ErrorCode
    leader_epoch: int = NO_EPOCH
    end_offset: int = UNKNOWN_OFFSET


def end_of(log: Log, isolation: Isolation) -> int:
    """Return the end offset for a reader with `isolation`."""
    if isolation is _LOG_END:
        return log.log_end_offset
    return log.high_watermark if isolation is _HIGH_WATERMARK else log.last_stable_offset


def readable_log(partition: Partition, current_leader_epoch: int, require_leader: bool) -> Log | ErrorCode:
    """Return the log if this replica may serve a reader with this `current_leader_epoch`, else the error."""
    if current_leader_epoch not in (NO_EPOCH, partition.leader_epoch):
        return partition.check_leader_epoch(current_leader_epoch)
    log = partition.log
    if log is None or (require_leader and partition.leader != partition.broker_id):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return log


def read_records(
    partition: Partition,
    fetch: PartitionFetch,
    isolation: Isolation,
    max_bytes: int,
    *,
    min_one_message: bool,
    require_leader: bool = True,
) -> PartitionRead:
    """Read whole batches from the fetch offset up to the end that `isolation` allows.

    With `last_fetched_epoch` (v12+) the log is first compared with the reader's: the divergence is returned instead of
    records, and the reader truncates.
    """
    log = readable_log(partition, fetch.current_leader_epoch, require_leader)
    if isinstance(log, ErrorCode):
        return PartitionRead(log)
    read = PartitionRead(_NONE, log.high_watermark, log.last_stable_offset, log.log_start_offset)
    if fetch.last_fetched_epoch != NO_EPOCH:
        _compare_epochs(log, fetch, read)
        if read.error or read.diverging_epoch is not None:
            return read
    end = end_of(log, isolation)
    if fetch.fetch_offset == end:
        return read
    wants_aborted = isolation is _TXN_COMMITTED
    found = log.read(
        fetch.fetch_offset,
        max_bytes,
        max_offset=end,
        min_one_message=min_one_message,
        include_aborted=wants_aborted,
    )
    if isinstance(found, ErrorCode):
        read.error = found
        return read
    read.records = found.records
    read.size_bytes = len(found.records)
    if wants_aborted:
        read.aborted = found.aborted
    return read


def _compare_epochs(log: Log, fetch: PartitionFetch, read: PartitionRead) -> None:
    epoch, end_offset = log.end_offset_for_epoch(fetch.last_fetched_epoch)
    if epoch == NO_EPOCH or end_offset == UNKNOWN_OFFSET or fetch.fetch_offset < log.log_start_offset:
        read.error = ErrorCode.OFFSET_OUT_OF_RANGE
    elif epoch < fetch.last_fetched_epoch or end_offset < fetch.fetch_offset:
        read.diverging_epoch = (epoch, end_offset)


def offset_for_leader_epoch(
    partition: Partition, current_leader_epoch: int, leader_epoch: int, *, require_leader: bool = True
) -> EpochEndOffset:
    """Return where `leader_epoch` ends in this log, so that a reader detects divergence."""
    log = readable_log(partition, current_leader_epoch, require_leader)
    if isinstance(log, ErrorCode):
        return EpochEndOffset(log)
    epoch, end_offset = log.end_offset_for_epoch(leader_epoch)
    return EpochEndOffset(ErrorCode.NONE, epoch, end_offset)


def offset_for_timestamp(
    partition: Partition,
    timestamp: int,
    isolation: Isolation,
    current_leader_epoch: int,
    *,
    require_leader: bool = True,
) -> TimestampAndOffset:
    """Return the first record at or after `timestamp`, or the offset of a special negative timestamp.

    Right after an election a leader cannot report the end to clients until its high watermark has reached the start
    of its epoch: OFFSET_NOT_AVAILABLE.
    """
    log = readable_log(partition, current_leader_epoch, require_leader)
    if isinstance(log, ErrorCode):
        return TimestampAndOffset(log)
    end = end_of(log, isolation)
    epoch_start = partition.leader_epoch_start_offset
    is_lagging = isolation is not Isolation.LOG_END and epoch_start is not None and epoch_start > log.high_watermark
    if timestamp == LATEST_TIMESTAMP:
        if is_lagging:
            return TimestampAndOffset(ErrorCode.OFFSET_NOT_AVAILABLE)
        return TimestampAndOffset(ErrorCode.NONE, NO_TIMESTAMP, end, partition.leader_epoch)
    if timestamp in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
        start = log.log_start_offset
        epoch = log.leader_epochs.epoch_for_offset(start)
        return TimestampAndOffset(ErrorCode.NONE, NO_TIMESTAMP, start, NO_EPOCH if epoch is None else epoch)
    if timestamp == LATEST_TIERED_TIMESTAMP:
        return TimestampAndOffset(ErrorCode.NONE)
    found = log.max_timestamp_offset() if timestamp == MAX_TIMESTAMP else log.offset_for_timestamp(timestamp)
    if isinstance(found, ErrorCode):
        return TimestampAndOffset(found)
    if found is not None and found.offset < end:
        return TimestampAndOffset(ErrorCode.NONE, found.timestamp, found.offset, found.leader_epoch)
    return TimestampAndOffset(ErrorCode.OFFSET_NOT_AVAILABLE if is_lagging else ErrorCode.NONE)
