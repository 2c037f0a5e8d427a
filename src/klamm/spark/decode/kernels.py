"""Record batches of format 2 into the buffers of Arrow columns, compiled by numba.

`scan_batches` walks over headers, `measure_records` counts what headers of records need, `decode_records` writes
columns. Every length is checked against its record, every record against its batch, every batch against the data, and
no output is written beyond its array. Errors are returned as a status, never raised. Module level and cached, so that a
new worker process loads machine code from the disk.
"""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Int64s = NDArray[np.int64]
Int32s = NDArray[np.int32]

# columns of the table that `scan_batches` fills, one row per batch
POSITION, SIZE, BASE_OFFSET, LAST_OFFSET, CRC, ATTRIBUTES, BASE_TIMESTAMP, MAX_TIMESTAMP, PRODUCER_ID, COUNT = range(10)
SCAN_COLUMNS: Final = 10

# columns of the table with the positions of bodies for `decode_records`, one row per batch
BODY_START, BODY_END, BODY_BASE_OFFSET, BODY_LAST_OFFSET = range(4)
BODY_BASE_TIMESTAMP, BODY_APPEND_TIMESTAMP, BODY_IS_APPEND, BODY_COUNT = range(4, 8)
BODY_COLUMNS: Final = 8

# the counters after a run
ROWS, KEY_BYTES, VALUE_BYTES, HEADERS, HEADER_KEY_BYTES, HEADER_VALUE_BYTES, FAILED_BATCH = range(7)
COUNTERS: Final = 7

OK, OLD_FORMAT, BAD_LENGTH, BAD_RECORD, BAD_TIMESTAMP, NO_ROOM = range(6)

_HEADER_BYTES: Final = 61
_INT32_MAX: Final = 0x7FFFFFFF
_SHORT_BYTES: Final = 16
"""An upper bound of a record's size before its key if none of its numbers has more than two bytes."""
_MAX_MS: Final = 9_223_372_036_854_775
"""The most milliseconds that still fit into 64 bits as microseconds."""


def _jit(function: Any) -> Any:
    return numba.njit(cache=True, nogil=True)(function)


def _inline(function: Any) -> Any:
    """For functions called per record: a call that returns several numbers costs more than the work."""
    return numba.njit(cache=True, nogil=True, inline="always")(function)


@_jit
def _int32(data, at):  # type: ignore[no-untyped-def]
    return np.int64(
        np.int32(
            (np.uint32(data[at]) << np.uint32(24))
            | (np.uint32(data[at + 1]) << np.uint32(16))
            | (np.uint32(data[at + 2]) << np.uint32(8))
            | np.uint32(data[at + 3])
        )
    )


@_jit
def _int64(data, at):  # type: ignore[no-untyped-def]
    value = np.uint64(0)
    for i in range(8):
        value = (value << np.uint64(8)) | np.uint64(data[at + i])
    return np.int64(value)


def _copy_code(typing_context, target, at, data, start, length):  # type: ignore[no-untyped-def]
    """memcpy between two arrays of bytes, ten times as fast as a loop. The caller has checked both ranges."""
    signature = types.void(target, types.int64, data, types.int64, types.int64)

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        kinds = signature.args
        to = context.make_array(kinds[0])(context, builder, arguments[0])
        source = context.make_array(kinds[2])(context, builder, arguments[2])
        target_pointer = builder.gep(to.data, [arguments[1]])
        source_pointer = builder.gep(source.data, [arguments[3]])
        cgutils.raw_memcpy(builder, target_pointer, source_pointer, arguments[4], 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return signature, generate


_copy: Any = intrinsic(_copy_code)


@_jit
def scan_batches(data, start, table):  # type: ignore[no-untyped-def]
    """Fills `table` with the whole batches from `start` on: (status, batches, position after the last).

    Stops, with OK, where the data ends before a batch does, and where the table is full.
    """
    size = data.size
    at = start
    n = 0
    while n < table.shape[0] and at + 17 <= size:
        length = _int32(data, at + 8)
        if data[at + 16] != 2:
            return OLD_FORMAT, n, at
        if length < _HEADER_BYTES - 12:
            return BAD_LENGTH, n, at
        if at + 12 + length > size:
            break
        base = _int64(data, at)
        delta = _int32(data, at + 23)
        if base < 0 or delta < 0 or base > np.int64(9223372036854775807) - delta - 1:
            return BAD_LENGTH, n, at
        table[n, POSITION] = at
        table[n, SIZE] = 12 + length
        table[n, BASE_OFFSET] = base
        table[n, LAST_OFFSET] = base + delta
        table[n, CRC] = _int32(data, at + 17) & 0xFFFFFFFF
        table[n, ATTRIBUTES] = (np.int64(data[at + 21]) << 8) | np.int64(data[at + 22])
        table[n, BASE_TIMESTAMP] = _int64(data, at + 27)
        table[n, MAX_TIMESTAMP] = _int64(data, at + 35)
        table[n, PRODUCER_ID] = _int64(data, at + 43)
        table[n, COUNT] = _int32(data, at + 57)
        n += 1
        at += 12 + length
    return OK, n, at


@_jit
def _varint(data, at, end):  # type: ignore[no-untyped-def]
    """(value, position after it); the position is -1 when the bytes end first or are more than 64 bits."""
    if at >= end:
        return np.int64(0), -1
    byte = data[at]
    if byte < 128:
        return np.int64(byte >> 1) ^ -np.int64(byte & 1), at + 1
    raw = np.uint64(byte & 0x7F)
    shift = np.uint64(7)
    at += 1
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        if shift == 63 and byte > 1:
            return np.int64(0), -1
        raw |= np.uint64(byte & 0x7F) << shift
        if byte < 128:
            return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1)), at
        shift += np.uint64(7)
    return np.int64(0), -1


@_jit
def _field(data, at, end):  # type: ignore[no-untyped-def]
    """(length or -1 for null, start of the bytes); the start is -1 when the field is not within `end`."""
    length, at = _varint(data, at, end)
    if at < 0 or length < -1 or length > end - at:
        return np.int64(0), -1
    return length, at


@_jit
def _any_record(data, at, end):  # type: ignore[no-untyped-def]
    """Like `_record`, for records of every size."""
    none = np.int64(0)
    length, at = _varint(data, at, end)
    if at < 0 or length < 1 or length > end - at:
        return -1, none, none, none, 0, none, 0, none, 0
    end = at + length
    timestamp_delta, at = _varint(data, at + 1, end)
    if at < 0:
        return -1, none, none, none, 0, none, 0, none, 0
    offset_delta, at = _varint(data, at, end)
    if at < 0 or offset_delta < 0 or offset_delta > _INT32_MAX:
        return -1, none, none, none, 0, none, 0, none, 0
    key_length, key_start = _field(data, at, end)
    if key_start < 0:
        return -1, none, none, none, 0, none, 0, none, 0
    value_length, value_start = _field(data, key_start + max(key_length, 0), end)
    if value_start < 0:
        return -1, none, none, none, 0, none, 0, none, 0
    count, at = _varint(data, value_start + max(value_length, 0), end)
    if at < 0 or count < 0 or count > (end - at) // 2:
        return -1, none, none, none, 0, none, 0, none, 0
    return end, timestamp_delta, offset_delta, key_length, key_start, value_length, value_start, count, at


@_inline
def _short(data, at):  # type: ignore[no-untyped-def]
    """A number of at most two bytes: (as it is written, position after it, 0 unless it is longer).

    Two bytes must be there.
    """
    first, second = np.int64(data[at]), np.int64(data[at + 1])
    has_second = first >> 7
    return (first & 0x7F) | ((second * has_second) << 7), at + 1 + has_second, (second & 0x80) * has_second


@_inline
def _record(data, at, end):  # type: ignore[no-untyped-def]
    """(end, timestamp delta, offset delta, key length, key start, value length, value start, header count, headers).

    The first is -1 when the record is broken. Most records have no number of more than two bytes: these are read
    without a branch per number. All other records go to `_any_record`.
    """
    odd = np.int64(1)
    record_end = key_start = value_start = headers = np.int64(0)
    timestamp_delta = offset_delta = key_length = value_length = count = np.int64(0)
    if end - at >= _SHORT_BYTES:
        raw, p, odd = _short(data, at)
        record_end = p + (raw >> 1)
        odd |= raw & 1
        raw, p, longer = _short(data, p + 1)
        odd |= longer
        timestamp_delta = (raw >> 1) ^ -(raw & 1)
        raw, p, longer = _short(data, p)
        odd |= longer | (raw & 1)
        offset_delta = raw >> 1
        raw, key_start, longer = _short(data, p)
        odd |= longer
        key_length = (raw >> 1) ^ -(raw & 1)
        p = key_start + max(key_length, 0)
        if key_length < -1 or record_end > end or p + 2 > record_end:
            odd = np.int64(1)
        if odd == 0:
            raw, value_start, odd = _short(data, p)
            value_length = (raw >> 1) ^ -(raw & 1)
            p = value_start + max(value_length, 0)
            if value_length < -1 or p >= record_end or data[p] >= 128 or data[p] & 1:
                odd = np.int64(1)
            else:
                count = np.int64(data[p] >> 1)
                headers = p + 1
                if count > (record_end - headers) // 2:
                    odd = np.int64(1)
    if odd != 0:
        return _any_record(data, at, end)
    return (
        record_end,
        timestamp_delta,
        offset_delta,
        key_length,
        key_start,
        value_length,
        value_start,
        count,
        headers,
    )


@_jit
def _headers_end(data, at, end, count):  # type: ignore[no-untyped-def]
    """(position after the headers or -1, bytes of keys, bytes of values)."""
    keys = values = np.int64(0)
    for _ in range(count):
        length, at = _field(data, at, end)
        if at < 0 or length < 0:
            return -1, keys, values
        keys += length
        length, at = _field(data, at + length, end)
        if at < 0:
            return -1, keys, values
        length = max(length, 0)
        values += length
        at += length
    return at, keys, values


@_jit
def measure_headers(data, bodies, first, last, counters):  # type: ignore[no-untyped-def]
    """Counts headers and their bytes in the records with offsets from `first` up to `last`."""
    counters[:] = 0
    for b in range(bodies.shape[0]):
        counters[FAILED_BATCH] = b
        at, end = bodies[b, BODY_START], bodies[b, BODY_END]
        for _ in range(bodies[b, BODY_COUNT]):
            record_end, _ts, offset_delta, _kl, _ks, _vl, _vs, count, headers_at = _record(data, at, end)
            if record_end < 0:
                return BAD_RECORD
            after, keys, values = _headers_end(data, headers_at, record_end, count)
            if after != record_end:
                return BAD_RECORD
            offset = bodies[b, BODY_BASE_OFFSET] + offset_delta
            if first <= offset < last:
                counters[HEADERS] += count
                counters[HEADER_KEY_BYTES] += keys
                counters[HEADER_VALUE_BYTES] += values
            at = record_end
        if at != end:
            return BAD_RECORD
    return OK


@_inline
def _timestamp(is_append, append_time, base, delta):  # type: ignore[no-untyped-def]
    """In milliseconds; more than _MAX_MS when it does not fit into 64 bits as microseconds."""
    if is_append:
        found = append_time
    elif not -_MAX_MS <= base <= _MAX_MS or not -2 * _MAX_MS <= delta <= 2 * _MAX_MS:
        found = np.int64(_MAX_MS + 1)
    else:
        found = base + delta
    return found if found >= -_MAX_MS else np.int64(_MAX_MS + 1)


@_jit
def decode_records(  # type: ignore[no-untyped-def]  # noqa: C901 - one loop, so that it is compiled as one
    data,
    bodies,
    first,
    last,
    counters,
    offsets,
    timestamps,
    append_times,
    want_keys,
    key_ends,
    key_valid,
    keys,
    want_values,
    value_ends,
    value_valid,
    values,
):
    """Writes the records with offsets from `first` up to `last` into the columns; headers are checked only.

    Offsets must rise within a batch and must not exceed its last offset: otherwise a record would repeat an offset or
    belong to another batch.

    `*_ends` have a zero in front. Columns that are not wanted may be empty arrays. Keys and values are put in place
    here: a function that takes five arrays for each of them counts references, which took most of the time.
    """
    counters[:] = 0
    n = np.int64(0)
    key_at = np.int64(0)
    value_at = np.int64(0)
    rows = offsets.size
    for b in range(bodies.shape[0]):
        counters[FAILED_BATCH] = b
        at, end = bodies[b, BODY_START], bodies[b, BODY_END]
        base_offset, base_timestamp = bodies[b, BODY_BASE_OFFSET], bodies[b, BODY_BASE_TIMESTAMP]
        is_append = bodies[b, BODY_IS_APPEND]
        last_delta = bodies[b, BODY_LAST_OFFSET] - base_offset
        before = np.int64(-1)
        for _ in range(bodies[b, BODY_COUNT]):
            stop, later, delta, key_length, key_start, length, start, count, headers = _record(data, at, end)
            if stop < 0 or delta <= before or delta > last_delta:
                return BAD_RECORD
            before = delta
            if count > 0:
                headers, _k, _v = _headers_end(data, headers, stop, count)
            if headers != stop:
                return BAD_RECORD
            at = stop
            offset = base_offset + delta
            if offset < first or offset >= last:
                continue
            if n >= rows:
                return NO_ROOM
            timestamp = _timestamp(is_append, bodies[b, BODY_APPEND_TIMESTAMP], base_timestamp, later)
            if timestamp > _MAX_MS:
                return BAD_TIMESTAMP
            offsets[n] = offset
            timestamps[n] = timestamp * 1000
            append_times[n] = is_append
            if want_keys:
                key_valid[n] = key_length >= 0
                if key_length > 0:
                    if key_at + key_length > keys.size:
                        return NO_ROOM
                    _copy(keys, key_at, data, key_start, key_length)
                    key_at += key_length
                key_ends[n + 1] = key_at
            if want_values:
                value_valid[n] = length >= 0
                if length > 0:
                    if value_at + length > values.size:
                        return NO_ROOM
                    _copy(values, value_at, data, start, length)
                    value_at += length
                value_ends[n + 1] = value_at
            n += 1
        if at != end:
            return BAD_RECORD
    counters[ROWS] = n
    counters[KEY_BYTES] = key_at
    counters[VALUE_BYTES] = value_at
    return OK


@_jit
def decode_headers(  # type: ignore[no-untyped-def]
    data, bodies, first, last, list_ends, list_valid, key_ends, keys, value_ends, value_valid, values
):
    """Writes the headers of the records that `decode_records` wrote, after `measure_headers` has accepted them."""
    n = np.int64(0)
    h = np.int64(0)
    key_at = np.int64(0)
    value_at = np.int64(0)
    for b in range(bodies.shape[0]):
        at, end = bodies[b, BODY_START], bodies[b, BODY_END]
        for _ in range(bodies[b, BODY_COUNT]):
            record_end, _ts, offset_delta, _kl, _ks, _vl, _vs, count, header_at = _record(data, at, end)
            if record_end < 0:
                return BAD_RECORD
            at = record_end
            offset = bodies[b, BODY_BASE_OFFSET] + offset_delta
            if offset < first or offset >= last:
                continue
            if n + 1 >= list_ends.size or h + count >= key_ends.size:
                return NO_ROOM
            for _i in range(count):
                length, header_at = _field(data, header_at, record_end)
                if header_at < 0 or length < 0 or key_at + length > keys.size:
                    return BAD_RECORD
                _copy(keys, key_at, data, header_at, length)
                key_at += length
                length, header_at = _field(data, header_at + length, record_end)
                if header_at < 0 or value_at + max(length, 0) > values.size:
                    return BAD_RECORD
                if length > 0:
                    _copy(values, value_at, data, header_at, length)
                    value_at += length
                    header_at += length
                value_valid[h] = length >= 0
                h += 1
                key_ends[h] = key_at
                value_ends[h] = value_at
            list_valid[n] = count > 0
            n += 1
            list_ends[n] = h
    return OK
