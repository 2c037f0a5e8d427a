"""Rows of Arrow columns into records of format 2, compiled by numba. Cached, as in `decode.kernels`."""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np

RECORD_OVERHEAD: Final = 32
"""An upper bound of a record's size without its key and value: four varints, the attributes and two more bytes."""

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_POSITIVE: Final = 0x7FFFFFFF
_MASK: Final = 0xFFFFFFFF


def _jit(function: Any) -> Any:
    return numba.njit(cache=True, nogil=True)(function)


def _inline(function: Any) -> Any:
    return numba.njit(cache=True, nogil=True, inline="always")(function)


@_inline
def _varint_size(number):  # type: ignore[no-untyped-def]
    """For numbers from -1 on, in zigzag code."""
    rest = np.uint64(1) if number < 0 else np.uint64(number) << np.uint64(1)
    size = 1
    while rest >= np.uint64(128):
        rest >>= np.uint64(7)
        size += 1
    return size


@_inline
def _put_varint(out, at, number):  # type: ignore[no-untyped-def]
    rest = np.uint64(1) if number < 0 else np.uint64(number) << np.uint64(1)
    while rest >= np.uint64(128):
        out[at] = np.uint8((rest & np.uint64(127)) | np.uint64(128))
        rest >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(rest)
    return at + 1


@_jit
def encode_records(  # type: ignore[no-untyped-def]
    rows, key_offsets, key_data, key_valid, value_offsets, value_data, value_valid, first_delta, out
):
    """Encode the given rows with offset deltas from `first_delta` on. Returns the number of bytes.

    `out` has room for `RECORD_OVERHEAD` and the key and the value of each row.
    """
    at = 0
    for number in range(len(rows)):
        row = rows[number]
        delta = first_delta + number
        key_start, value_start = np.int64(key_offsets[row]), np.int64(value_offsets[row])
        key_length = np.int64(key_offsets[row + 1]) - key_start if key_valid[row] else -1
        value_length = np.int64(value_offsets[row + 1]) - value_start if value_valid[row] else -1
        size = 3 + _varint_size(delta) + _varint_size(key_length) + _varint_size(value_length)
        size += max(key_length, 0) + max(value_length, 0)
        at = _put_varint(out, at, size)
        out[at] = 0  # attributes
        out[at + 1] = 0  # timestamp delta
        at = _put_varint(out, at + 2, delta)
        at = _put_varint(out, at, key_length)
        for i in range(key_length):
            out[at + i] = key_data[key_start + i]
        at += max(key_length, 0)
        at = _put_varint(out, at, value_length)
        for i in range(value_length):
            out[at + i] = value_data[value_start + i]
        at += max(value_length, 0)
        out[at] = 0  # no headers
        at += 1
    return at


@_jit
def hash_keys(offsets, data, partitions, out):  # type: ignore[no-untyped-def]
    """Write the partition of every key, as Kafka's default partitioner does: murmur2, made positive, modulo."""
    for row in range(len(out)):
        start, end = np.int64(offsets[row]), np.int64(offsets[row + 1])
        length = end - start
        h = np.int64(_SEED) ^ length
        at = start
        while end - at >= 4:
            k = np.int64(data[at]) | np.int64(data[at + 1]) << 8 | np.int64(data[at + 2]) << 16
            k |= np.int64(data[at + 3]) << 24
            k = (k * _M) & _MASK
            k = ((k ^ (k >> 24)) * _M) & _MASK
            h = ((h * _M) & _MASK) ^ k
            at += 4
        left = end - at
        if left == 3:
            h ^= np.int64(data[at + 2]) << 16
        if left >= 2:
            h ^= np.int64(data[at + 1]) << 8
        if left >= 1:
            h ^= np.int64(data[at])
            h = (h * _M) & _MASK
        h = ((h ^ (h >> 13)) * _M) & _MASK
        h ^= h >> 15
        out[row] = (h & _POSITIVE) % partitions
