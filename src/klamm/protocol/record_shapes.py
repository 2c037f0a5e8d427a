"""Check many records of a batch at a time: one field of all records in a few calls.

A leader checks every record that a client produces, and a loop over the fields of each record costs about half a
microsecond per record. These functions accept records of ordinary shapes: small numbers, headers of equal sizes.
They never refuse records: the caller checks records of other shapes, and invalid ones, one at a time.
"""

from __future__ import annotations

from itertools import repeat
from operator import add, itemgetter, sub
from typing import Final

from klamm.protocol.record_varint import read_varint

FIRST_WIDE: Final = 1 << 6
FIRST_UNUSUAL: Final = 1 << 13
"""Numbers from FIRST_WIDE on take two bytes, and numbers from this one on take more."""
WINDOW_BYTES: Final = 64 << 10
"""Records of different sizes are copied before they are checked, this much at a time."""
_OFFSETS: Final = (
    bytes(2 * i if i < FIRST_WIDE else 2 * i & 0x7F | 0x80 for i in range(FIRST_UNUSUAL)),
    bytes(2 * i >> 7 for i in range(FIRST_UNUSUAL)),
)
"""First and second byte of each offset delta."""
_IS_WIDE: Final = tuple(byte >> 7 for byte in range(256))
_IMPOSSIBLE: Final = 1 << 30
_KEY_BYTES: Final = tuple(0 if byte == 1 else _IMPOSSIBLE if byte & 0x81 else byte >> 1 for byte in range(256))
"""Size of a key, by the byte that encodes its length. In a record without a key this byte is 1."""
_COPIED_BYTES: Final = 1_000
_MOST_HEADERS: Final = 10
_ASCII: Final = bytes(range(0x80))


_Table = tuple[int, ...]


def _value_lengths(other_bytes: int) -> tuple[_Table, _Table, _Table]:
    """Return first byte, last byte and their distance of a value's length.

    The index is the length of a record without its key, as it is encoded: twice the number of bytes. `other_bytes` is
    the size of all fields but key and value. Lengths that are impossible, or negative, have no byte.
    """
    rows = {1 + size: (2 * size, 2 * size, 0) for size in range(FIRST_WIDE)}
    rows |= {2 + size: (2 * size & 0x7F | 0x80, 2 * size >> 7, 1) for size in range(FIRST_WIDE, FIRST_UNUSUAL)}
    none = (-1, -1, 0)
    table = [none] * (2 * FIRST_UNUSUAL)
    for rest, row in rows.items():
        if (size := rest + other_bytes) < FIRST_UNUSUAL:
            table[2 * size] = row
    table += [none] * 2 * FIRST_WIDE
    first, last, distance = zip(*table, strict=True)
    return first, last, distance


_NARROW, _WIDE = _value_lengths(5), _value_lengths(6)
"""Other fields: attributes, timestamp, offset of one or two bytes, length of the key, number of headers."""


def end_of_equal(data: memoryview, position: int, first: int, count: int) -> int:
    """Return the end of `count` records whose fields have the sizes of the first one's; 0 if they differ.

    `first` is the offset delta of the first record. All deltas have the same number of bytes.
    """
    length, body = read_varint(data, position)
    step = body - position + length
    end = position + step * count
    if length <= 0 or end > len(data):
        return 0
    if bytes(data[position:end:step]) != bytes((data[position],)) * count:
        return 0  # most records of different sizes end here
    offset_at = body + 2 + _IS_WIDE[data[body + 1]]
    if data[offset_at - 1] >= 0x80:
        return 0  # a longer timestamp shifts the fields after it
    key_at = offset_at + (1 if first < FIRST_WIDE else 2)
    key_bytes, after_key_bytes = read_varint(data, key_at)
    value_at = after_key_bytes + max(key_bytes, 0)
    value_bytes, after_value_bytes = read_varint(data, value_at)
    headers_at = after_value_bytes + max(value_bytes, 0)
    headers = _header_lengths(data, headers_at, body + length)
    if key_bytes < -1 or value_bytes < -1 or not headers:
        return 0
    lengths = (*range(position, body), *range(key_at, after_key_bytes), *range(value_at, after_value_bytes), *headers)
    all_records: bytes | memoryview = data[position:end]
    if step <= _COPIED_BYTES:
        all_records = bytes(all_records)  # columns of bytes are read faster, and small records are copied fast
    for at in lengths:
        column = bytes(all_records[at - position :: step])
        if column != column[:1] * count:
            return 0
    for column, at in zip(_OFFSETS, range(offset_at, key_at), strict=False):
        if bytes(all_records[at - position :: step]) != column[first : first + count]:
            return 0
    if not bytes(all_records[offset_at - 1 - position :: step]).isascii():
        return 0
    is_wide = offset_at > body + 2
    return end if not is_wide or _count_wide(bytes(all_records[body + 1 - position :: step])) == count else 0


def _header_lengths(data: memoryview, position: int, end: int) -> list[int]:
    """Return the positions of all bytes of header counts and lengths; none if the headers do not reach up to `end`."""
    count, at = read_varint(data, position)
    if not 0 <= count <= _MOST_HEADERS:
        return []
    found = list(range(position, at))
    for _ in range(count):
        for least in (0, -1):  # a header has a key, but perhaps no value
            size, after = read_varint(data, at)
            if size < least:
                return []
            found += range(at, after)
            at = after + max(size, 0)
    return found if at == end else []


def _count_wide(column: bytes) -> int:
    return len(column.translate(None, _ASCII))


def end_of_similar(data: memoryview, position: int, first: int, count: int) -> int:
    """Return the end of `count` records of different sizes, which lie within WINDOW_BYTES; 0 if they are unusual.

    `first` is the offset delta of the first record. All deltas have the same number of bytes.
    """
    raw = data[position : position + WINDOW_BYTES].tobytes()
    bodies: list[int] = []
    ends: list[int] = []
    sizes: list[int] = []
    at = 0
    try:
        for _ in range(count):
            size = raw[at]
            at += 1
            if size >= 0x80:
                if (second := raw[at]) >= 0x80:
                    return 0  # a longer length shifts the start of the record
                size = size & 0x7F | second << 7
                at += 1
            bodies.append(at)
            sizes.append(size)
            at += size >> 1
            ends.append(at)
        header_bytes, header_lengths = _headers_of(raw, bodies[0], ends[0])
        at_end = itemgetter(*ends)
        padded = bytes(header_bytes) + raw
        for distance in header_lengths:
            column = bytes(at_end(padded[distance:]))
            if column != column[:1] * count:
                return 0
        if header_bytes > 1:
            sizes = list(map(sub, sizes, repeat(2 * (header_bytes - 1))))
        is_plain = bool(header_lengths) and min(sizes) > 0 and _are_plain(raw, bodies, sizes, first)
    except IndexError:  # a field, or the window, ends too early, or a length is unusual
        return 0
    return position + at if is_plain else 0


def _headers_of(raw: bytes, body: int, end: int) -> tuple[int, list[int]]:
    """Return the size of a record's headers and the positions of their lengths; no positions if they are unusual."""
    if not raw[end - 1]:
        return 1, [0]  # no headers: their number is the last byte
    view = memoryview(raw)
    at = body + 1
    for _ in range(2):  # timestamp and offset
        _, at = read_varint(view, at)
    for _ in range(2):  # key and value
        size, at = read_varint(view, at)
        at += max(size, 0)
    return max(end - at, 0), [position - at for position in _header_lengths(view, at, end)]


def _are_plain(raw: bytes, at: list[int], sizes: list[int], first: int) -> bool:
    """Whether the records at these positions have the fields that their sizes (twice the bytes) allow.

    The functions of `itemgetter` return a byte of each record, or an entry of a table for each record.
    """
    count = len(at)
    field = itemgetter(*at)
    timestamps = field(raw[1:])
    if not bytes(timestamps).isascii():
        wide = itemgetter(*timestamps)(_IS_WIDE)
        at = list(map(add, at, wide))
        sizes = list(map(sub, map(sub, sizes, wide), wide))
        field = itemgetter(*at)
        if not bytes(field(raw[1:])).isascii():
            return False
    is_narrow = first < FIRST_WIDE
    for distance, column in enumerate(_OFFSETS[: 1 if is_narrow else 2], 2):
        if bytes(field(raw[distance:])) != column[first : first + count]:
            return False
    value_at, (first_bytes, last_bytes, distances) = (4, _NARROW) if is_narrow else (5, _WIDE)
    key_bytes = itemgetter(*field(raw[value_at - 1 :]))(_KEY_BYTES)
    if any(key_bytes):
        at = list(map(add, at, key_bytes))
        sizes = list(map(sub, map(sub, sizes, key_bytes), key_bytes))
        field = itemgetter(*at)
    of_size = itemgetter(*sizes)
    if field(raw[value_at:]) != of_size(first_bytes):
        return False
    last_at = of_size(distances)
    if not any(last_at):
        return True
    if all(last_at):
        return bool(field(raw[value_at + 1 :]) == of_size(last_bytes))
    return bool(itemgetter(*map(add, at, last_at))(raw[value_at:]) == of_size(last_bytes))
