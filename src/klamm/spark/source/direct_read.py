"""readMode=direct: records straight from the segment files of the leader, without a word to the broker but offsets.

Never beyond the high watermark, or the last stable offset with read_committed, as the leader tells it. What retention,
compaction or a cut change meanwhile is noticed: by missing files, by checksums, by offsets that do not go on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from uuid import UUID

import numpy as np
import pyarrow as pa

from klamm.log.files import OsFileHandle
from klamm.model import TopicPartition
from klamm.spark.client import READ_COMMITTED, READ_UNCOMMITTED, ClusterClient
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
    """Reads one range; `offset` is what comes next, so that somebody else can go on after a DirectReadError.

    With `topic_id` it reads that topic, and no other that has its name now.
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
        """DirectReadError when the rest cannot be read this way.

        CorruptBatchError when a part of what is broken was given out, so that nobody can tell where to go on.
        """
        tp, end = self._wanted.tp, self._wanted.end
        isolation = READ_COMMITTED if self._options.read_committed else READ_UNCOMMITTED
        directory = find_directory(self._client, tp, self._options.log_dirs, self._topic_id)
        self._topic_id = self._topic_id or self._client.topic_ids.get(tp.topic)
        leader = self._client.leader_address(tp)[0]
        last = self._client.latest([tp], isolation)[tp]
        if self._client.leader_address(tp)[0] != leader:
            # The watermark is that of another log, and this one may have an end that nobody else has.
            raise DirectReadError(f"Broker {leader} has ceased to lead {tp}, and its files may be cut.")
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
            raise DirectReadError(f"The files of {self._wanted.tp} hold what cannot be read: {e}") from e

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
        """Whole batches up to the one that holds the last offset before `end`."""
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
        """The segment that holds the offset; after one that was read to its end, the one that follows."""
        tp = self._wanted.tp
        holding = [s for s in segments if s.base_offset <= self.offset]
        after = [s for s in segments if s.base_offset > (done.base_offset if done is not None else self.offset)]
        if holding and holding[-1] != done:
            return holding[-1]
        if not holding:
            self._skip_lost()
            if self.offset < self._wanted.end and segments and segments[0].base_offset > self.offset:
                # The leader has not said that they are gone, so they must not be passed over.
                raise DirectReadError(f"The files of {tp} begin at {segments[0].base_offset}, after {self.offset}.")
        if done is not None and after:
            return after[0]
        if holding or not segments:
            raise DirectReadError(f"The files of {tp} end at offset {self.offset}, before the range does.")
        return segments[0]

    def _segment_chunks(self, fd: int, position: int, end: int) -> Iterator[Chunk]:
        """Batches of one file, read into one buffer again and again: a chunk is to be used before the next."""
        while self.offset < end:
            size = os.preadv(fd, [self._buffer], position)
            chunk = scan(self._buffer[:size], self._wanted.tp, check_crcs=self._client.check_crcs)
            if chunk.is_empty:
                if not self._grow(size):
                    return
                continue
            position += chunk.consumed_bytes
            if chunk.next_offset > self.offset:
                yield chunk

    def _grow(self, size: int) -> bool:
        """Makes room for a batch that is larger than the buffer. False at the end of the file."""
        if size < len(self._buffer):
            return False
        if len(self._buffer) >= _MAX_BATCH_BYTES:
            raise CorruptBatchError(f"A batch of {self._wanted.tp} has more than {_MAX_BATCH_BYTES} bytes.")
        self._buffer = _memory(2 * len(self._buffer))
        return True


def _memory(size: int) -> memoryview:
    """Not zeroed, as a bytearray would be: a small range does not pay for what it does not use."""
    return memoryview(np.empty(size, np.uint8))  # type: ignore[arg-type]


def why_not_direct(client: ClusterClient, tp: TopicPartition, options: ReadOptions) -> str | None:
    """None when the files of the partition can be read on this machine."""
    try:
        find_directory(client, tp, options.log_dirs)
    except DirectReadError as e:
        return str(e)
    return None
