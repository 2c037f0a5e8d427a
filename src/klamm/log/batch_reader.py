"""Iterates over the batches of a log file, by header only or with their records."""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from klamm.errors import ProtocolError
from klamm.log.files import FileHandle
from klamm.protocol.record_batch import (
    CRC_POSITION,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    MAGIC_V2,
    OFFSET_AND_LENGTH,
    RECORD_BATCH_OVERHEAD,
    RecordBatch,
    next_batch,
)
from klamm.protocol.record_scan import timestamps

_log = logging.getLogger(__name__)

MAX_RELATIVE_OFFSET: Final = 0x7FFFFFFF
CHUNK_BYTES: Final = 1024 * 1024
_WINDOW_BYTES: Final = 4096 + RECORD_BATCH_OVERHEAD
_INT32 = struct.Struct(">i")
_LAST_OFFSET_DELTA_POSITION: Final = 23
_HEADER_BYTES_NEEDED: Final = 27
_MAX_UNPACKED_BYTES: Final = 32 * 1024 * 1024
"""A search by time does not unpack larger batches."""


class BatchPosition(NamedTuple):
    position: int
    size_bytes: int
    base_offset: int
    last_offset: int


class FileTimestampOffset(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int


def find_offset(handle: FileHandle, position: int, end: int, offset: int) -> BatchPosition | None:
    """Return the first batch from `position` on that ends at `offset` or later."""
    window, window_start = b"", position
    while position + RECORD_BATCH_OVERHEAD <= end:
        at = position - window_start
        if at + _HEADER_BYTES_NEEDED > len(window):
            window, window_start, at = handle.pread(min(_WINDOW_BYTES, end - position), position), position, 0
            if len(window) < RECORD_BATCH_OVERHEAD:
                return None
        base_offset, length = OFFSET_AND_LENGTH.unpack_from(window, at)
        _check_header(window[at + MAGIC_POSITION], length, position)
        last_offset = base_offset + _INT32.unpack_from(window, at + _LAST_OFFSET_DELTA_POSITION)[0]
        if last_offset >= offset:
            return BatchPosition(position, LOG_OVERHEAD + length, base_offset, last_offset)
        position += LOG_OVERHEAD + length
    return None


def whole_batches(data: bytes, start: int) -> int:
    """Return how many of the bytes belong to whole batches; a batch begins at `start`."""
    while start + LOG_OVERHEAD <= len(data):
        end = start + LOG_OVERHEAD + OFFSET_AND_LENGTH.unpack_from(data, start)[1]
        if end > len(data) or end <= start:
            break
        start = int(end)
    return start


def read_batches(handle: FileHandle, position: int, end: int) -> Iterator[tuple[int, RecordBatch]]:
    """Yield (position, batch) up to the first one that is not whole. Raises ProtocolError for other bytes."""
    while position + RECORD_BATCH_OVERHEAD <= end:
        data = memoryview(handle.pread(min(CHUNK_BYTES, end - position), position))
        at = 0
        while (batch := next_batch(data, at)) is not None:
            yield position + at, batch
            at += LOG_OVERHEAD + batch.batch_length
        if at == 0:
            batch = _read_large(handle, position, end, data)
            if batch is None:
                return
            yield position, batch
            at = LOG_OVERHEAD + batch.batch_length
        position += at


def _read_large(handle: FileHandle, position: int, end: int, data: memoryview) -> RecordBatch | None:
    """Read a batch that is larger than a chunk."""
    if len(data) < CRC_POSITION:
        return None
    size = LOG_OVERHEAD + OFFSET_AND_LENGTH.unpack_from(data)[1]
    if size <= len(data) or position + size > end:
        return None
    return next_batch(memoryview(handle.pread(size, position)))


def _check_header(magic: int, length: int, position: int) -> None:
    if magic != MAGIC_V2 or length < RECORD_BATCH_OVERHEAD - LOG_OVERHEAD:
        raise ProtocolError(f"there is no record batch of format 2 at position {position}")


def follows(batch: RecordBatch, last_offset: int, base_offset: int) -> bool:
    """Whether a batch can come after `last_offset` in its segment."""
    return (
        batch.base_offset > last_offset
        and batch.last_offset_delta >= 0
        and batch.last_offset - base_offset <= MAX_RELATIVE_OFFSET
        and batch.size_bytes >= RECORD_BATCH_OVERHEAD
    )


def first_at_least(batch: RecordBatch, timestamp: int, start_offset: int) -> FileTimestampOffset | None:
    """Return the first such record; None also if the records are unreadable, which a fetch of them reports."""
    try:
        for found, offset in timestamps(batch, _MAX_UNPACKED_BYTES):
            if found >= timestamp and offset >= start_offset:
                return FileTimestampOffset(found, offset, batch.partition_leader_epoch)
    except ProtocolError as e:
        _log.warning("the records of the batch at offset %d are unreadable: %s", batch.base_offset, e)
    return None
