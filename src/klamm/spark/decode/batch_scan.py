"""Finds and checks the record batches in a piece of a log, and reports which belong to aborted transactions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

import crc32c
import numpy as np
from numpy.typing import NDArray

from klamm.errors import KlammError, ProtocolError
from klamm.model import TopicPartition
from klamm.protocol.record_batch import (
    ATTRIBUTES_POSITION,
    COMPRESSION_MASK,
    CONTROL_BIT,
    MAGIC_POSITION,
    MAGIC_V2,
    TRANSACTIONAL_BIT,
    RecordBatch,
    records,
)
from klamm.spark.decode import kernels as k
from klamm.spark.decode.legacy_messages import to_batches

_SCAN_ROWS: Final = 4096
_SPECIAL: Final = COMPRESSION_MASK | TRANSACTIONAL_BIT | CONTROL_BIT
_ABORT_MARKER: Final = b"\x00\x00\x00\x00"
PROBLEMS: Final = {
    k.OLD_FORMAT: "has an unknown format",
    k.BAD_LENGTH: "has an impossible header",
    k.BAD_RECORD: "holds records that are not what its header promises",
    k.BAD_TIMESTAMP: "holds a timestamp that Spark cannot hold",
    k.NO_ROOM: "holds more records than its header promises",
}


class CorruptBatchError(KlammError):
    """Bytes are not a valid record batch."""


class Aborted(Protocol):
    """Decides for each batch, in log order, whether an aborted transaction wrote it."""

    def skips(self, batch: ScannedBatch, data: memoryview) -> bool: ...


class ScannedBatch(NamedTuple):
    """A row of `scan_batches`, in its order of columns."""

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    crc: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    record_count: int


class Chunk(NamedTuple):
    """Consecutive whole batches, checked: one row each in the table of `scan_batches`."""

    data: memoryview
    table: NDArray[np.int64]
    consumed_bytes: int

    @property
    def is_empty(self) -> bool:
        return not len(self.table)

    @property
    def next_offset(self) -> int:
        """Offset after the last batch; it may be greater than the offset after its last record."""
        return int(self.table[-1, k.LAST_OFFSET]) + 1

    @property
    def is_plain(self) -> bool:
        """Whether nothing is compressed, transactional or a marker, so that all batches are decoded in place."""
        return not (self.table[:, k.ATTRIBUTES] & _SPECIAL).any()

    def batches(self) -> Iterator[ScannedBatch]:
        return map(ScannedBatch._make, self.table.tolist())


def scan(data: memoryview, tp: TopicPartition, *, check_crcs: bool = True) -> Chunk:
    """Return the whole batches of `data`, without an incomplete one at the end. Raises CorruptBatchError.

    Messages of formats 0 and 1 are rewritten and returned in separate chunks.
    """
    array = readonly(data)
    found: list[NDArray[np.int64]] = []
    at = 0
    while True:
        part = np.empty((_SCAN_ROWS, k.SCAN_COLUMNS), np.int64)
        status, count, at = k.scan_batches(array, at, part)
        found.append(part[:count])
        is_first = count == 0 and len(found) == 1
        if status == k.OLD_FORMAT and is_first and data[at + MAGIC_POSITION] < MAGIC_V2:
            return _scan_old(data, tp)
        if status == k.OLD_FORMAT and not is_first and data[at + MAGIC_POSITION] < MAGIC_V2:
            break
        if status != k.OK:
            raise CorruptBatchError(f"A batch of {tp} at byte {at} {PROBLEMS[status]}.")
        if count < _SCAN_ROWS:
            break
    table = found[0] if len(found) == 1 else np.concatenate(found)
    _check_order(table, tp)
    if check_crcs:
        _check_crcs(data, table, tp)
    return Chunk(data, table, at)


def _check_order(table: NDArray[np.int64], tp: TopicPartition) -> None:
    wrong = np.flatnonzero(table[1:, k.BASE_OFFSET] <= table[:-1, k.LAST_OFFSET])
    if len(wrong):
        offset, before = table[wrong[0] + 1, k.BASE_OFFSET], table[wrong[0], k.LAST_OFFSET]
        raise CorruptBatchError(f"A batch of {tp} at offset {offset} stands after offset {before}.")


def _check_crcs(data: memoryview, table: NDArray[np.int64], tp: TopicPartition) -> None:
    starts = (table[:, k.POSITION] + ATTRIBUTES_POSITION).tolist()
    ends = (table[:, k.POSITION] + table[:, k.SIZE]).tolist()
    checksum = crc32c.crc32c
    for number, (start, end, crc) in enumerate(zip(starts, ends, table[:, k.CRC].tolist(), strict=True)):
        if checksum(data[start:end]) != crc:
            offset = table[number, k.BASE_OFFSET]
            raise CorruptBatchError(f"The checksum of the batch of {tp} at offset {offset} is wrong.")


def _scan_old(data: memoryview, tp: TopicPartition) -> Chunk:
    try:
        rewritten, consumed_bytes = to_batches(data)
    except ProtocolError as e:
        raise CorruptBatchError(f"{tp} has a message set that cannot be read: {e}.") from e
    if not rewritten:
        return Chunk(data, np.empty((0, k.SCAN_COLUMNS), np.int64), 0)
    return scan(memoryview(rewritten), tp, check_crcs=False)._replace(consumed_bytes=consumed_bytes)


class NothingAborted:
    """For read_uncommitted."""

    def skips(self, batch: ScannedBatch, data: memoryview) -> bool:
        return False


class AbortedByMarkers:
    """The list of a Fetch response: a transaction is skipped from its first offset to its abort marker."""

    def __init__(self, aborted: Sequence[tuple[int, int]], tp: TopicPartition) -> None:
        """(producer id, first offset), in any order."""
        self._tp = tp
        self._waiting = sorted(aborted, key=lambda txn: txn[1], reverse=True)
        self._open: set[int] = set()

    def skips(self, batch: ScannedBatch, data: memoryview) -> bool:
        while self._waiting and self._waiting[-1][1] <= batch.last_offset:
            self._open.add(self._waiting.pop()[0])
        if batch.producer_id not in self._open or not batch.attributes & TRANSACTIONAL_BIT:
            return False
        if batch.attributes & CONTROL_BIT and self._is_abort(batch, data):
            self._open.discard(batch.producer_id)
        return True

    def _is_abort(self, batch: ScannedBatch, data: memoryview) -> bool:
        try:
            marker = next(records(RecordBatch(data, batch.position)), None)
        except ProtocolError as e:
            raise CorruptBatchError(f"The marker of {self._tp} at offset {batch.base_offset} is broken: {e}.") from e
        return marker is not None and (marker.key or b"")[:4] == _ABORT_MARKER


class AbortedIntervals:
    """The transaction indexes of a log: (producer id, first offset, last offset), the last being the marker's."""

    def __init__(self, aborted: Sequence[tuple[int, int, int]]) -> None:
        self._by_producer: dict[int, list[tuple[int, int]]] = {}
        for producer_id, first, last in aborted:
            self._by_producer.setdefault(producer_id, []).append((first, last))

    def skips(self, batch: ScannedBatch, data: memoryview) -> bool:
        if not batch.attributes & TRANSACTIONAL_BIT:
            return False
        spans = self._by_producer.get(batch.producer_id, ())
        return any(first <= batch.base_offset <= last for first, last in spans)


def readonly(data: Any) -> NDArray[np.uint8]:
    """One array type for all kinds of buffers, so that the kernels are compiled once."""
    array = np.frombuffer(data, np.uint8)
    array.flags.writeable = False
    return array
