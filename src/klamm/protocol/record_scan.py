"""Inspect the records of a batch without creating objects.

`check_records` runs for every batch of a client. `body_outlines` also yields the timestamp of each record and whether
it has a key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from klamm.errors import ProtocolError
from klamm.protocol.compression import decompress
from klamm.protocol.record_batch import RECORD_BATCH_OVERHEAD, TIMESTAMP_TYPE_BIT, RecordBatch
from klamm.protocol.record_shapes import FIRST_UNUSUAL, FIRST_WIDE, WINDOW_BYTES, end_of_equal, end_of_similar
from klamm.protocol.record_varint import read_varint

MIN_RECORD_BYTES: Final = 7
_RUNS: Final = (FIRST_WIDE, FIRST_UNUSUAL, 1 << 31)
"""Offset deltas at which a delta takes one more byte, so that equal records get another length."""
_MANY: Final = 8
_EndOf = Callable[[memoryview, int, int, int], int]
_SMALL_BYTES: Final = 1_000
"""Larger records of different sizes are checked one at a time: there are few of them in a batch."""
_WINDOW_SHARE: Final = 3 * WINDOW_BYTES // 4
_THREE_BYTE_VARINT: Final = 1 << 14
_THREE_BYTE_DELTA: Final = 1 << 13
_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1


def check_records(data: memoryview, count: int) -> None:
    """Raise ProtocolError unless `data` is exactly `count` well-formed records with offset deltas 0, 1, 2 and so on."""
    if count * MIN_RECORD_BYTES > len(data):
        raise ProtocolError(f"{len(data)} bytes cannot hold {count} records")
    position = first = 0
    try:
        for end in _RUNS:
            position = _check_run(data, position, first, min(end, count), len(data) // count)
            if count <= end:
                break
            first = end
    except IndexError as e:
        raise ProtocolError("a record ends in the middle of a field") from e
    if position != len(data):
        raise ProtocolError(f"{len(data) - position} bytes follow the last of {count} records")


def _check_run(data: memoryview, position: int, first: int, end: int, mean_bytes: int) -> int:
    """Check the records with the offset deltas from `first` to `end`; return the position after them."""
    if end - first < _MANY or end > FIRST_UNUSUAL:
        return _check_each(data, position, first, end)
    if (reached := _accepted(end_of_equal, data, position, first, end - first)) != 0:
        return reached
    if mean_bytes > _SMALL_BYTES:
        return _check_each(data, position, first, end)
    most = _WINDOW_SHARE // mean_bytes
    while first < end:
        next_first = min(first + most, end)
        count = next_first - first
        reached = _accepted(end_of_similar, data, position, first, count) if count >= _MANY else 0
        position = reached or _check_each(data, position, first, next_first)
        first = next_first
    return position


def _accepted(end_of: _EndOf, data: memoryview, position: int, first: int, count: int) -> int:
    """Return the end of records that can be checked together; 0 if they cannot: only `_check_each` refuses records."""
    try:
        return end_of(data, position, first, count)
    except (IndexError, ProtocolError):
        return 0


def _check_each(data: memoryview, position: int, first: int, end: int) -> int:
    """The same, one record at a time.

    The loop reads the fields of ordinary records in place: lengths and timestamp deltas of at most two bytes, short
    keys, no headers. `_outline` reads all others.
    """
    for i in range(first, end):
        size = data[position]
        at = position + 1
        if size >= 0x80:
            size = size & 0x7F | data[at] << 7
            at += 1
        record_end = at + (size >> 1)
        at += 2
        if data[at - 1] >= 0x80:
            at += 1
        if data[at - 1] < 0x80 and size < _THREE_BYTE_VARINT and not size & 1:
            if i < 64:
                is_next = data[at] == i + i
            else:
                is_next = data[at] == (i + i) & 0x7F | 0x80 and data[at + 1] == i >> 6
                at += 1
            key = data[at + 1]
            if is_next and i < _THREE_BYTE_DELTA and key < 0x80 and (key == 1 or not key & 1):
                at += 2 + (key >> 1)
                value = data[at]
                if value >= 0x80:
                    at += 1
                    value = value & 0x7F | data[at] << 7
                at += 1 + (value >> 1)
                is_length = (value == 1 or not value & 1) and value < _THREE_BYTE_VARINT
                if at + 1 == record_end and is_length and data[at] == 0:
                    position = record_end
                    continue
        position = _outline(data, position, i)[2]
    return position


def unpacked(batch: RecordBatch, max_decompressed_bytes: int) -> memoryview:
    return memoryview(decompress(batch.compression, batch.view[RECORD_BATCH_OVERHEAD:], max_decompressed_bytes))


def body_outlines(batch: RecordBatch, body: memoryview) -> Iterator[tuple[int, bool]]:
    """Return (timestamp, has a key) of every record of a produced batch, whose offsets have no gaps.

    Raises ProtocolError if the records do not match the header.
    """
    count, base = batch.record_count, batch.base_timestamp
    if count < 0 or count * MIN_RECORD_BYTES > len(body):
        raise ProtocolError(f"{len(body)} bytes cannot hold {count} records")
    position = 0
    for i in range(count):
        try:
            timestamp_delta, has_key, position = _outline(body, position, i)
        except IndexError as e:
            raise ProtocolError("a record ends in the middle of a field") from e
        timestamp = base + timestamp_delta
        if not _INT64_MIN <= timestamp <= _INT64_MAX:
            raise ProtocolError(f"a record has timestamp {timestamp}")
        yield timestamp, has_key
    if position != len(body):
        raise ProtocolError(f"{len(body) - position} bytes follow the last of {count} records")


def timestamps(batch: RecordBatch, max_decompressed_bytes: int) -> Iterator[tuple[int, int]]:
    """Return (timestamp, offset) of every record of a stored batch, whose offsets may have gaps.

    Raises ProtocolError.
    """
    body = unpacked(batch, max_decompressed_bytes)
    append_time = batch.max_timestamp if batch.attributes & TIMESTAMP_TYPE_BIT else None
    position = 0
    try:
        for _ in range(batch.record_count):
            length, position = read_varint(body, position)
            timestamp_delta, at = read_varint(body, position + 1)
            offset_delta, at = read_varint(body, at)
            position += length
            if at > position:
                raise ProtocolError("the length of a record is not the length of its fields")
            timestamp = batch.base_timestamp + timestamp_delta if append_time is None else append_time
            yield timestamp, batch.base_offset + offset_delta
    except IndexError as e:
        raise ProtocolError("a record ends in the middle of a field") from e


def _outline(data: memoryview, position: int, index: int) -> tuple[int, bool, int]:
    """Return (timestamp delta, has a key, end) of the record with this index.

    Most numbers have one byte and are read in place, because every produced batch takes this path twice.
    """
    length, position = read_varint(data, position)
    end = position + length
    if length < 0 or end > len(data):
        raise ProtocolError(f"a record of {length} bytes does not fit into the {len(data) - position} that remain")
    if (byte := data[position + 1]) < 0x80:
        timestamp_delta, position = (byte >> 1) ^ -(byte & 1), position + 2
    else:
        timestamp_delta, position = read_varint(data, position + 1)
    if (byte := data[position]) < 0x80:
        offset_delta, position = (byte >> 1) ^ -(byte & 1), position + 1
    else:
        offset_delta, position = read_varint(data, position)
    if offset_delta != index:
        raise ProtocolError(f"record {index} of a batch has the offset delta {offset_delta}")
    if (byte := data[position]) < 0x80:
        key_bytes, position = (byte >> 1) ^ -(byte & 1), position + 1
    else:
        key_bytes, position = read_varint(data, position)
    if key_bytes > 0:
        position += key_bytes
    value_bytes, position = read_varint(data, position)
    if value_bytes > 0:
        position += value_bytes
    if key_bytes < -1 or value_bytes < -1:
        raise ProtocolError(f"a record has a key of {key_bytes} bytes and a value of {value_bytes}")
    if data[position] != 0:
        position = _skip_headers(data, position, end)
    else:
        position += 1
    if position != end:
        raise ProtocolError("the length of a record is not the length of its fields")
    return timestamp_delta, key_bytes >= 0, end


def _skip_headers(data: memoryview, position: int, end: int) -> int:
    count, position = read_varint(data, position)
    if count < 0 or count * 2 > end - position:
        raise ProtocolError(f"{end - position} bytes cannot hold {count} record headers")
    for _ in range(count):
        key_bytes, position = read_varint(data, position)
        if key_bytes < 0:
            raise ProtocolError("a record header has no key")
        value_bytes, position = read_varint(data, position + key_bytes)
        if value_bytes < -1:
            raise ProtocolError(f"the value of a record header has {value_bytes} bytes")
        position += max(value_bytes, 0)
    return position
