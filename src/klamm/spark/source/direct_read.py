"""readMode=direct: reads records from the leader's segment files and asks the broker for offsets only.

Reading never passes the leader's high watermark, or its last stable offset with read_committed. Concurrent retention,
compaction and truncation are detected by missing files, checksums and gaps in the offsets.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from uuid import UUID

import numpy as np
import pyarrow as pa

from klamm.client.cluster_client import READ_COMMITTED, READ_UNCOMMITTED, ClusterClient
from klamm.log.files import OsFileHandle
from klamm.spark.decode.batch_scan import Aborted, AbortedIntervals, Chunk, CorruptBatchError, NothingAborted, scan
from klamm.spark.decode.record_columns import RecordDecoder
from klamm.spark.source.data_loss import loss
from klamm.spark.source.direct_files import (
    DirectReadError,
    SegmentFile,
    aborted_transactions,
    check_topic,
    find_directory,
    list_segments,
    position_of,
    segment_path,
)
from klamm.spark.source.read_options import ReadOptions
from klamm.spark.source.source_offsets import OffsetRange

_MAX_BATCH_BYTES: Final = 1 << 30
_TRIES: Final = 50


class DirectReader:
    """Reads one range. `offset` is the next offset, so that a Fetch can continue after a DirectReadError.

    `topic_id` excludes a newer topic of the same name.
    """

    def __init__(
        self,
        client: ClusterClient,
        wanted: OffsetRange,
        decoder: RecordDecoder,
        options: ReadOptions,
        *,
        topic_id: UUID | None = None,
    ) -> None:
        self._client = client
        self._wanted = wanted
        self._decoder = decoder
        self._options = options
        self._topic_id = topic_id
        self._buffer = _memory(options.batch_bytes)
        self.offset = wanted.start

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Raise DirectReadError if the rest cannot be read from files.

        Raises CorruptBatchError if a part of a corrupt batch was already returned, so that there is no safe offset to
        continue at.
        """
        tp, end = self._wanted.tp, self._wanted.end
        isolation = READ_COMMITTED if self._options.read_committed else READ_UNCOMMITTED
        directory = find_directory(self._client, tp, self._options.log_dirs, self._topic_id)
        self._topic_id = self._topic_id or self._client.topic_ids.get(tp.topic)
        leader = self._client.leader_address(tp)[0]
        last = self._client.latest([tp], isolation)[tp]
        if self._client.leader_address(tp)[0] != leader:
            # The watermark belongs to another leader's log; this log may end with records that no other replica has.
            raise DirectReadError(f"Broker {leader} no longer leads {tp}, and its files may be truncated.")
        self._skip_lost()
        aborted = self._aborted(directory, last)
        limit = min(end, last)
        for chunk in self._chunks(directory, limit):
            yield from self._decoded(chunk, limit, aborted)
        if self.offset < end:
            raise DirectReadError(f"{tp} may be read up to offset {last} only, the range ends at {end}.")

    def _decoded(self, chunk: Chunk, limit: int, aborted: Aborted) -> Iterator[pa.RecordBatch]:
        start, self.offset = self.offset, min(chunk.next_offset, limit)
        is_begun = False
        try:
            for batch in self._decoder.decode(chunk, start, limit, aborted):
                is_begun = True
                yield batch
        except CorruptBatchError as e:
            if is_begun:
                raise
            self.offset = start
            raise DirectReadError(f"The files of {self._wanted.tp} contain an unreadable batch: {e}") from e

    def _aborted(self, directory: Path, last: int) -> Aborted:
        if not self._options.read_committed:
            return NothingAborted()
        return AbortedIntervals(aborted_transactions(directory, self.offset, min(self._wanted.end, last)))

    def _skip_lost(self) -> None:
        tp = self._wanted.tp
        first = self._client.earliest([tp])[tp]
        if self.offset < first and self.offset < self._wanted.end:
            end = min(first, self._wanted.end)
            why = f"retention or DeleteRecords removed them, the log begins at {first}"
            loss(OffsetRange(tp, self.offset, end), why, self._options)
            self.offset = end

    def _chunks(self, directory: Path, end: int) -> Iterator[Chunk]:
        """Return whole batches up to the one that holds the last offset before `end`."""
        done: SegmentFile | None = None
        tries = 0
        while self.offset < end:
            segment = self._next_segment(list_segments(directory), done)
            try:
                fd = os.open(segment_path(directory, segment.base_offset), os.O_RDONLY)
            except FileNotFoundError:
                tries += 1
                if tries == _TRIES:
                    raise DirectReadError(f"The files of {directory.name} vanish before they can be opened.") from None
                continue
            except OSError as e:
                raise DirectReadError(f"A segment of {directory.name} cannot be opened: {e.strerror}.") from e
            handle = OsFileHandle(fd)
            try:
                check_topic(directory, self._topic_id)
                done = SegmentFile(segment.base_offset, os.fstat(fd).st_ino)
                position = position_of(handle, directory, segment.base_offset, self.offset)
                yield from self._segment_chunks(fd, position, end)
            except (CorruptBatchError, OSError) as e:
                raise DirectReadError(f"Segment {segment.base_offset} of {directory.name}: {e}") from e
            finally:
                handle.close()

    def _next_segment(self, segments: list[SegmentFile], done: SegmentFile | None) -> SegmentFile:
        """Return the segment that holds the offset, or the following one after a segment was read to its end."""
        tp = self._wanted.tp
        holding = [s for s in segments if s.base_offset <= self.offset]
        after = [s for s in segments if s.base_offset > (done.base_offset if done is not None else self.offset)]
        if holding and holding[-1] != done:
            return holding[-1]
        if not holding:
            self._skip_lost()
            if self.offset < self._wanted.end and segments and segments[0].base_offset > self.offset:
                # The leader did not report these offsets as deleted, so they must not be skipped.
                raise DirectReadError(f"The files of {tp} begin at {segments[0].base_offset}, after {self.offset}.")
        if done is not None and after:
            return after[0]
        if holding or not segments:
            raise DirectReadError(f"The files of {tp} end at offset {self.offset}, before the range does.")
        return segments[0]

    def _segment_chunks(self, fd: int, position: int, end: int) -> Iterator[Chunk]:
        """Batches of one file, read into one reused buffer: use a chunk before reading the next."""
        while self.offset < end:
            size = os.preadv(fd, [self._buffer], position)
            chunk = scan(self._buffer[:size], self._wanted.tp, check_crcs=self._client.config.check_crcs)
            if chunk.is_empty:
                if not self._grow(size):
                    return
                continue
            position += chunk.consumed_bytes
            if chunk.next_offset > self.offset:
                yield chunk

    def _grow(self, size: int) -> bool:
        """Grow the buffer for a batch that is larger than it. Returns False at the end of the file."""
        if size < len(self._buffer):
            return False
        if len(self._buffer) >= _MAX_BATCH_BYTES:
            raise CorruptBatchError(f"A batch of {self._wanted.tp} has more than {_MAX_BATCH_BYTES} bytes.")
        self._buffer = _memory(2 * len(self._buffer))
        return True


def _memory(size: int) -> memoryview:
    """The memory is not zeroed, unlike a bytearray, so a small range does not pay for unused space."""
    return memoryview(np.empty(size, np.uint8))  # type: ignore[arg-type]
