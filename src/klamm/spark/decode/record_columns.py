"""Converts record batches to Arrow batches: grouping and decompression here, records in `kernels`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from klamm.errors import ProtocolError
from klamm.model import TopicPartition
from klamm.protocol.compression import DEFAULT_MAX_DECOMPRESSED_BYTES, UnpackedTooLargeError, decompress
from klamm.protocol.record_batch import COMPRESSION_MASK, CONTROL_BIT, RECORD_BATCH_OVERHEAD, TIMESTAMP_TYPE_BIT
from klamm.spark.decode import kernels as k
from klamm.spark.decode.batch_scan import PROBLEMS, Aborted, Chunk, CorruptBatchError, ScannedBatch, readonly

_MIN_RECORD_BYTES: Final = 7
_ROW_BYTES: Final = 48
"""Approximate size of a row without its key and value."""
Bodies = NDArray[np.int64] | list[tuple[int, ...]]
"""Positions of the batches' records: one row of `BODY_COLUMNS` numbers each."""


class ValueDecoder(Protocol):
    """The interface of the objects that `formats.decoder` returns."""

    @property
    def arrow_fields(self) -> Sequence[pa.Field]: ...

    def decode(self, values: pa.BinaryArray) -> tuple[Sequence[pa.Array], pa.StringArray]:
        """Return (columns, error text or null), one row per value."""


class RecordDecoder:
    """Decodes chunks of one partition into Arrow batches of a schema, about `batch_bytes` each."""

    def __init__(
        self,
        tp: TopicPartition,
        schema: pa.Schema,
        *,
        batch_bytes: int,
        max_unpacked_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
        value_decoder: ValueDecoder | None = None,
    ) -> None:
        self._tp = tp
        self._schema = schema
        self._batch_bytes = batch_bytes
        self._max_unpacked_bytes = max_unpacked_bytes
        self._value_decoder = value_decoder
        names = {name.lower() for name in schema.names}
        typed = {f.name.lower() for f in value_decoder.arrow_fields} if value_decoder is not None else set()
        self._wants_values = bool(names & ({"value", "_raw", "_error"} if value_decoder is not None else {"value"}))
        self._wants_typed = bool(names & (typed | {"_raw", "_error"}))
        self._wants_values |= self._wants_typed
        self._wants_keys = "key" in names - typed
        self._wants_headers = "headers" in names - typed
        self._constants: tuple[pa.Array, pa.Array] | None = None

    def decode(self, chunk: Chunk, first: int, last: int, aborted: Aborted) -> Iterator[pa.RecordBatch]:
        """Yield the records with offsets from `first` up to `last`."""
        if chunk.is_plain:
            groups = _plain_groups(chunk, first, last, self._batch_bytes, self._tp)
        else:
            groups = _Groups(self._batch_bytes, self._max_unpacked_bytes, chunk, first, last).of(
                chunk, aborted, self._tp
            )
        for data, bodies in groups:
            batch = self._columns(data, bodies, first, last)
            if batch.num_rows:
                yield batch

    def _columns(self, data: Any, bodies: Bodies, first: int, last: int) -> pa.RecordBatch:
        array = readonly(data)
        table = np.asarray(bodies, np.int64)
        rows = int(table[:, k.BODY_COUNT].sum())
        size = int((table[:, k.BODY_END] - table[:, k.BODY_START]).sum())
        counters = np.zeros(k.COUNTERS, np.int64)
        fixed = _Column(rows, np.int64), _Column(rows, np.int64), _Column(rows, np.int32)
        keys = _Binary(rows, size, wanted=self._wants_keys)
        values = _Binary(rows, size, wanted=self._wants_values)
        status = k.decode_records(
            array, table, first, last, counters, *(c.array for c in fixed), *keys.arguments(), *values.arguments()
        )
        self._check(status, table, counters)
        n = int(counters[k.ROWS])
        columns = {
            "offset": fixed[0].to_arrow(pa.int64(), n),
            "timestamp": fixed[1].to_arrow(pa.timestamp("us", "UTC"), n),
            "timestamptype": fixed[2].to_arrow(pa.int32(), n),
        }
        if self._wants_keys:
            columns["key"] = keys.to_arrow(n, int(counters[k.KEY_BYTES]))
        if self._wants_values:
            columns["value"] = values.to_arrow(n, int(counters[k.VALUE_BYTES]))
        if self._wants_headers:
            columns["headers"] = self._headers(array, table, first, last, n)
        return self._assemble(columns, n)

    def _headers(self, array: Any, table: Any, first: int, last: int, n: int) -> pa.Array:
        counters = np.zeros(k.COUNTERS, np.int64)
        self._check(k.measure_headers(array, table, first, last, counters), table, counters)
        count = int(counters[k.HEADERS])
        key_bytes, value_bytes = int(counters[k.HEADER_KEY_BYTES]), int(counters[k.HEADER_VALUE_BYTES])
        lists = _Binary(n, 0)
        keys, values = _Binary(count, key_bytes), _Binary(count, value_bytes)
        status = k.decode_headers(
            array, table, first, last, lists.ends.array, lists.valid, keys.ends.array, keys.data.array,
            values.ends.array, values.valid, values.data.array,
        )  # fmt: skip
        self._check(status, table, counters)
        keys.valid[:] = 1
        kind = self._schema.field(self._schema.get_all_field_indices("headers")[0]).type
        names = _as_strings(keys.to_arrow(count, key_bytes))
        pairs = pa.StructArray.from_arrays([names, values.to_arrow(count, value_bytes)], fields=list(kind.value_type))
        nulls, validity = _validity(lists.valid[:n])
        return pa.ListArray.from_buffers(kind, n, [validity, lists.ends.buffer], nulls, children=[pairs])

    def _check(self, status: int, table: Any, counters: Any) -> None:
        if status != k.OK:
            offset = int(table[int(counters[k.FAILED_BATCH]), k.BODY_BASE_OFFSET])
            raise CorruptBatchError(f"The batch of {self._tp} at offset {offset} {PROBLEMS[status]}.")

    def _assemble(self, columns: dict[str, pa.Array], n: int) -> pa.RecordBatch:
        topics, partitions = self._repeated(n)
        if self._value_decoder is not None:
            columns = {f"_{name}": column for name, column in columns.items() if name not in ("key", "headers")} | {
                name: column for name, column in columns.items() if name in ("key", "headers")
            }
            columns |= {"_topic": topics, "_partition": partitions}
            if self._wants_typed:
                typed, errors = self._value_decoder.decode(columns["_value"])
                for field, column in zip(self._value_decoder.arrow_fields, typed, strict=True):
                    columns[field.name.lower()] = column
                raw = pc.if_else(pc.is_valid(errors), columns["_value"], pa.scalar(None, pa.binary()))
                columns |= {"_error": errors, "_raw": raw}
        else:
            columns |= {"topic": topics, "partition": partitions}
        return pa.RecordBatch.from_arrays([columns[f.name.lower()] for f in self._schema], schema=self._schema)

    def _repeated(self, n: int) -> tuple[pa.Array, pa.Array]:
        """The topic and the partition, `n` times."""
        if self._constants is None or len(self._constants[0]) < n:
            size = max(n, 1024)
            topics = pa.repeat(pa.scalar(self._tp.topic, pa.string()), size)
            self._constants = topics, pa.repeat(pa.scalar(self._tp.partition, pa.int32()), size)
        return self._constants[0].slice(0, n), self._constants[1].slice(0, n)


def _plain_groups(
    chunk: Chunk, first: int, last: int, batch_bytes: int, tp: TopicPartition
) -> Iterator[tuple[memoryview | bytes, Bodies]]:
    """Return all batches as one group: none of them needs individual handling."""
    table = chunk.table
    wanted = (table[:, k.LAST_OFFSET] >= first) & (table[:, k.BASE_OFFSET] < last) & (table[:, k.COUNT] != 0)
    if not wanted.all():
        table = table[wanted]
    ends = table[:, k.POSITION] + table[:, k.SIZE]
    counts = table[:, k.COUNT]
    sizes = table[:, k.SIZE] - RECORD_BATCH_OVERHEAD
    if (wrong := np.flatnonzero((counts < 0) | (counts > sizes // _MIN_RECORD_BYTES))).size:
        offset = table[wrong[0], k.BASE_OFFSET]
        raise CorruptBatchError(f"The batch of {tp} at offset {offset} {PROBLEMS[k.BAD_RECORD]}.")
    bodies = np.empty((len(table), k.BODY_COLUMNS), np.int64)
    bodies[:, k.BODY_START] = table[:, k.POSITION] + RECORD_BATCH_OVERHEAD
    bodies[:, k.BODY_END] = ends
    bodies[:, k.BODY_BASE_OFFSET] = table[:, k.BASE_OFFSET]
    bodies[:, k.BODY_LAST_OFFSET] = table[:, k.LAST_OFFSET]
    bodies[:, k.BODY_BASE_TIMESTAMP] = table[:, k.BASE_TIMESTAMP]
    bodies[:, k.BODY_APPEND_TIMESTAMP] = table[:, k.MAX_TIMESTAMP]
    bodies[:, k.BODY_IS_APPEND] = (table[:, k.ATTRIBUTES] & TIMESTAMP_TYPE_BIT) != 0
    bodies[:, k.BODY_COUNT] = counts
    costs = np.cumsum(sizes + counts * _ROW_BYTES)
    groups = max(1, -(-int(costs[-1]) // batch_bytes)) if len(costs) else 0
    begin = 0
    for number in range(1, groups + 1):
        end = len(bodies) if number == groups else int(np.searchsorted(costs, costs[-1] * number / groups)) + 1
        if end > begin:
            yield chunk.data, bodies[begin:end]
        begin = max(begin, end)


class _Groups:
    """Groups neighbouring batches until there is enough for an Arrow batch."""

    def __init__(self, batch_bytes: int, max_unpacked_bytes: int, chunk: Chunk, first: int, last: int) -> None:
        self._first, self._last = first, last
        self._batches = list(chunk.batches())
        wanted = [b for b in self._batches if b.last_offset >= first and b.base_offset < last]
        cost = sum(_cost(b.size_bytes, b.record_count) for b in wanted)
        self._target = cost / max(1, -(-cost // batch_bytes))
        self._limit = batch_bytes
        self._max_unpacked_bytes = max_unpacked_bytes

    def of(self, chunk: Chunk, aborted: Aborted, tp: TopicPartition) -> Iterator[tuple[memoryview | bytes, Bodies]]:
        """(data, bodies) for the kernels: plain batches where they are, unpacked ones joined."""
        bodies: list[tuple[int, ...]] = []
        unpacked: list[bytes | memoryview] = []
        cost = 0
        for batch in self._batches:
            if aborted.skips(batch, chunk.data) or batch.attributes & CONTROL_BIT:
                continue
            if batch.last_offset < self._first or batch.base_offset >= self._last or batch.record_count == 0:
                continue
            is_packed = bool(batch.attributes & COMPRESSION_MASK)
            if bodies and is_packed != bool(unpacked):
                yield _joined(chunk.data, unpacked), bodies
                bodies, unpacked, cost = [], [], 0
            start, end = batch.position + RECORD_BATCH_OVERHEAD, batch.position + batch.size_bytes
            if is_packed:
                unpacked.append(_unpack(batch, chunk.data[start:end], tp, self._max_unpacked_bytes))
                start = sum(map(len, unpacked[:-1])) if len(unpacked) < 3 else bodies[-1][k.BODY_END]
                end = start + len(unpacked[-1])
            if batch.record_count < 0 or batch.record_count * _MIN_RECORD_BYTES > end - start:
                raise CorruptBatchError(f"The batch of {tp} at offset {batch.base_offset} {PROBLEMS[k.BAD_RECORD]}.")
            bodies.append(_body(batch, start, end))
            cost += _cost(end - start, batch.record_count)
            if cost >= min(self._target, self._limit) and (is_packed or cost >= self._target):
                yield _joined(chunk.data, unpacked), bodies
                bodies, unpacked, cost = [], [], 0
        if bodies:
            yield _joined(chunk.data, unpacked), bodies


def _cost(size_bytes: int, count: int) -> int:
    return size_bytes + max(count, 0) * _ROW_BYTES


def _joined(data: memoryview, unpacked: list[bytes | memoryview]) -> memoryview | bytes:
    if not unpacked:
        return data
    return memoryview(unpacked[0]) if len(unpacked) == 1 else b"".join(unpacked)


def _unpack(batch: ScannedBatch, body: memoryview, tp: TopicPartition, max_bytes: int) -> bytes | memoryview:
    try:
        return decompress(batch.attributes & COMPRESSION_MASK, body, max_bytes)
    except UnpackedTooLargeError as e:
        raise CorruptBatchError(
            f"The batch of {tp} at offset {batch.base_offset} unpacks to more than {max_bytes} bytes; "
            "set option 'maxUnpackedBytes' to allow more."
        ) from e
    except ProtocolError as e:
        raise CorruptBatchError(f"The batch of {tp} at offset {batch.base_offset} cannot be unpacked: {e}.") from e


def _body(batch: ScannedBatch, start: int, end: int) -> tuple[int, ...]:
    is_append = bool(batch.attributes & TIMESTAMP_TYPE_BIT)
    return (
        start,
        end,
        batch.base_offset,
        batch.last_offset,
        batch.base_timestamp,
        batch.max_timestamp,
        int(is_append),
        batch.record_count,
    )


class _Column:
    """Memory of Arrow's pool as a numpy array: the pool reuses freed memory without new pages."""

    __slots__ = ("array", "buffer")

    def __init__(self, count: int, kind: Any) -> None:
        self.buffer = pa.allocate_buffer(count * np.dtype(kind).itemsize)
        self.array = np.frombuffer(self.buffer, kind)

    def to_arrow(self, kind: pa.DataType, n: int) -> pa.Array:
        return pa.Array.from_buffers(kind, n, [None, self.buffer.slice(0, n * self.array.itemsize)], 0)


class _Binary:
    """The three buffers of a binary column while they are filled."""

    __slots__ = ("data", "ends", "valid", "wanted")

    def __init__(self, rows: int, size: int, *, wanted: bool = True) -> None:
        self.wanted = wanted
        self.ends = _Column(rows + 1 if wanted else 1, np.int32)
        self.ends.array[0] = 0
        self.valid = np.empty(rows if wanted else 0, np.uint8)
        self.data = _Column(size if wanted else 0, np.uint8)

    def arguments(self) -> tuple[Any, ...]:
        return self.wanted, self.ends.array, self.valid, self.data.array

    def to_arrow(self, n: int, size: int) -> pa.Array:
        nulls, validity = _validity(self.valid[:n])
        ends = self.ends.buffer.slice(0, (n + 1) * 4)
        return pa.Array.from_buffers(pa.binary(), n, [validity, ends, self.data.buffer.slice(0, size)], nulls)


def _validity(valid: NDArray[np.uint8]) -> tuple[int, pa.Buffer | None]:
    """(how many nulls, the bitmap, None when there are none)."""
    nulls = len(valid) - int(np.count_nonzero(valid))
    return nulls, pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None


def _as_strings(keys: pa.Array) -> pa.Array:
    """Header keys as text; invalid UTF-8 becomes replacement characters, as in Java."""
    text = keys.view(pa.string())
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array([key.decode(errors="replace") for key in keys.to_pylist()], pa.string())
    return text
