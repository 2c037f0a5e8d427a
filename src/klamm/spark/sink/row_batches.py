"""Collects rows into record batches per partition: columns of Arrow in, encoded records out."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from klamm.client.transactional_producer import RecordSet
from klamm.model import TopicPartition
from klamm.protocol.record_batch import Record, encode_record
from klamm.spark.sink import encode_kernels as k
from klamm.spark.sink.writer_errors import PermanentWriteError

MAX_RECORDS: Final = 1 << 20
_NO_BYTES: Final = np.zeros(0, np.uint8)
Emit = Callable[[dict[TopicPartition, RecordSet]], None]


class _Column(NamedTuple):
    """A binary column as arrays that the kernels read."""

    offsets: NDArray[np.int32]
    data: NDArray[np.uint8]
    valid: NDArray[np.bool_]

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets).astype(np.int64)


class _Open:
    """The records of one partition that were not emitted yet."""

    __slots__ = ("count", "parts", "size")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0
        self.count = 0

    def add(self, data: bytes, count: int) -> None:
        self.parts.append(data)
        self.size += len(data)
        self.count += count


class RowBatches:
    """Emits record batches of at most `batch_bytes`, and all that is left at `close`.

    `partitions` returns the number of partitions of a topic. Rows without key and partition go to one random partition
    after the other, a batch each.
    """

    def __init__(
        self,
        emit: Emit,
        partitions: Callable[[str], int],
        *,
        batch_bytes: int,
        memory_bytes: int,
        ignore_keys: bool = False,
        chance: random.Random | None = None,
    ) -> None:
        self._emit = emit
        self._partitions = partitions
        self._batch_bytes = batch_bytes
        self._memory_bytes = memory_bytes
        self._ignore_keys = ignore_keys
        self._chance = chance or random.Random()
        self._open: dict[TopicPartition, _Open] = {}
        self._held = 0
        self._sticky: dict[str, int] = {}
        self._scratch = np.empty(1 << 16, np.uint8)

    def add(self, topic: str, rows: pa.RecordBatch) -> None:
        keys = _column(rows.column("key")) if "key" in rows.schema.names else None
        values = _column(rows.column("value"))
        chosen = self._chosen(topic, rows, keys)
        if "headers" in rows.schema.names:
            self._add_with_headers(topic, rows, chosen)
            return
        if keys is None:
            keys = _Column(np.zeros(rows.num_rows + 1, np.int32), _NO_BYTES, np.zeros(rows.num_rows, np.bool_))
        sizes = keys.lengths + values.lengths + k.RECORD_OVERHEAD
        order = np.argsort(chosen, kind="stable")
        numbers, starts = np.unique(chosen[order], return_index=True)
        ends = [*starts[1:].tolist(), rows.num_rows]
        for number, start, end in zip(numbers.tolist(), starts.tolist(), ends, strict=True):
            self._encode(TopicPartition(topic, number), order[start:end], sizes, keys, values)

    def close(self) -> None:
        """Emit all that is left."""
        self._emit_where(lambda _: True)

    # --- inside ---

    def _encode(
        self, tp: TopicPartition, rows: NDArray[np.int64], sizes: NDArray[np.int64], keys: _Column, values: _Column
    ) -> None:
        ends = np.cumsum(sizes[rows])
        done, before = 0, 0
        while done < len(rows):
            open_ = self._room(tp, int(sizes[rows[done]]))
            room = before + self._batch_bytes - open_.size
            last = max(done + 1, int(np.searchsorted(ends, room, side="right")))
            last = min(last, done + MAX_RECORDS - open_.count)
            needed = int(ends[last - 1]) - before
            if needed > len(self._scratch):
                self._scratch = np.empty(needed + needed // 4, np.uint8)
            size = k.encode_records(
                rows[done:last],
                keys.offsets,
                keys.data,
                keys.valid,
                values.offsets,
                values.data,
                values.valid,
                open_.count,
                self._scratch,
            )
            self._hold(open_, self._scratch[:size].tobytes(), last - done)
            done, before = last, int(ends[last - 1])

    def _room(self, tp: TopicPartition, size: int) -> _Open:
        """Return the open batch of a partition. If a record of this size does not fit, it is a new one."""
        open_ = self._open.get(tp)
        if open_ is not None and (open_.size + size > self._batch_bytes or open_.count >= MAX_RECORDS):
            # Send nearly full batches together with the full one, so that each leader gets one request.
            self._emit_where(lambda other: other is open_ or other.size * 2 > self._batch_bytes)
            open_ = None
        if open_ is None:
            open_ = self._open[tp] = _Open()
        return open_

    def _hold(self, open_: _Open, data: bytes, count: int) -> None:
        open_.add(data, count)
        self._held += len(data)
        if self._held > self._memory_bytes:
            self._emit_where(lambda _: True)

    def _emit_where(self, condition: Callable[[_Open], bool]) -> None:
        chosen = {tp: each for tp, each in self._open.items() if each.count and condition(each)}
        for tp, each in chosen.items():
            del self._open[tp]
            self._held -= each.size
            self._sticky.pop(tp.topic, None)
        if chosen:
            self._emit({tp: RecordSet(b"".join(each.parts), each.count) for tp, each in chosen.items()})

    def _chosen(self, topic: str, rows: pa.RecordBatch, keys: _Column | None) -> NDArray[np.int64]:
        """Return the partition of each row: its column, else its key, else any."""
        count = self._partitions(topic)
        if topic not in self._sticky:
            self._sticky[topic] = self._chance.randrange(count)
        chosen = np.full(rows.num_rows, self._sticky[topic], np.int64)
        if keys is not None and not self._ignore_keys:
            hashed = np.empty(rows.num_rows, np.int64)
            k.hash_keys(keys.offsets, keys.data, count, hashed)
            chosen = np.where(keys.valid, hashed, chosen)
        if "partition" in rows.schema.names:
            column = rows.column("partition")
            given = column.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
            is_given = column.is_valid().to_numpy(zero_copy_only=False)
            chosen = np.where(is_given, given, chosen)
            _check_partitions(topic, given[is_given], count)
        return chosen

    def _add_with_headers(self, topic: str, rows: pa.RecordBatch, chosen: NDArray[np.int64]) -> None:
        """Record by record: headers are rare, and lists of lists."""
        for number, record in zip(chosen.tolist(), _records(rows), strict=True):
            tp = TopicPartition(topic, number)
            size = len(record.key or b"") + len(record.value or b"") + k.RECORD_OVERHEAD
            size += sum(len(name) * 4 + len(content or b"") + 10 for name, content in record.headers)
            open_ = self._room(tp, size)
            self._hold(open_, encode_record(record, open_.count, 0), 1)


def _check_partitions(topic: str, given: NDArray[np.int64], count: int) -> None:
    if not len(given):
        return
    lowest, highest = int(given.min()), int(given.max())
    if lowest < 0:
        raise PermanentWriteError(
            f"A row has the partition {lowest}: expected 0 or more, or null to leave it to its key."
        )
    if highest >= count:
        raise PermanentWriteError(
            f"A record for {topic}-{highest} was not delivered: UNKNOWN_PARTITION. The topic has {count} partitions, "
            "counted from 0."
        )


def _records(rows: pa.RecordBatch) -> Iterator[Record]:
    values = rows.column("value").cast(pa.binary()).to_pylist()
    names = rows.schema.names
    keys = rows.column("key").cast(pa.binary()).to_pylist() if "key" in names else [None] * rows.num_rows
    for key, value, headers in zip(keys, values, rows.column("headers").to_pylist(), strict=True):
        yield Record(key=key, value=value, headers=tuple(_header(header) for header in headers or ()))


def _header(header: Any) -> tuple[str, bytes | None]:
    if header is None or header["key"] is None:
        raise PermanentWriteError("A row has a header without a key.")
    return header["key"], header["value"]


def _column(column: pa.Array) -> _Column:
    column = column.cast(pa.binary())
    _, offsets, data = column.buffers()
    positions = np.frombuffer(offsets, np.int32, column.offset + len(column) + 1)[column.offset :]
    content = np.frombuffer(data, np.uint8) if data is not None and len(data) else _NO_BYTES
    return _Column(positions, content, column.is_valid().to_numpy(zero_copy_only=False))
