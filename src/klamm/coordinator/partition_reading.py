"""Reads a whole partition of an internal topic in slices, for the coordinator that begins to lead it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final

from klamm.coordinator.offsets_log import OffsetsLog
from klamm.errors import ErrorCode, ProtocolError
from klamm.protocol.record_batch import RecordBatch, batches

_log = logging.getLogger("klamm.coordinator")

LOAD_SLICE_BYTES: Final = 256 * 1024
"""Records of a log that are read and applied before other work runs."""


def read_partition(
    log: OffsetsLog, topic: str, index: int, add: Callable[[RecordBatch], Iterator[None] | None], buffer_bytes: int
) -> Iterator[ErrorCode]:
    """Pass every batch of the partition to `add`; yields NONE after each slice, finally an error if there is one.

    `add` may work in slices of its own. Markers are appended to the log while it is read: the last of them is applied
    before this ends.
    """
    bounds = log.bounds(index)
    if isinstance(bounds, ErrorCode):
        yield bounds
        return
    offset, end_offset = bounds
    max_bytes = min(LOAD_SLICE_BYTES, buffer_bytes)
    while offset < end_offset:
        data = log.read(index, offset, max_bytes)
        if isinstance(data, ErrorCode):
            yield data
            return
        if not data:  # compaction left nothing up to the end
            return
        next_offset = offset
        try:
            for batch in batches(data):
                for _ in add(batch) or ():
                    yield ErrorCode.NONE
                next_offset = batch.next_offset
        except ProtocolError:
            _log.exception("%s-%d: reading failed: invalid data at offset %d", topic, index, next_offset)
            next_offset = offset
        if next_offset == offset:
            yield ErrorCode.CORRUPT_MESSAGE
            return
        offset = next_offset
        yield ErrorCode.NONE
        bounds = log.bounds(index)
        if isinstance(bounds, ErrorCode):
            yield bounds
            return
        end_offset = bounds[1]
