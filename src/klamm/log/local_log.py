"""The files of one partition's log and the state that they back: segments, leader epochs, producers.

The offsets of the log belong to `Log`, which passes them in. Everything here raises OSError if the disk fails; `Log`
turns that into return values.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from klamm.log import names
from klamm.log.end_markers import parse_marker
from klamm.log.leader_epoch_cache import LeaderEpochCache
from klamm.log.log_config import LogConfig
from klamm.log.log_environment import LogEnvironment
from klamm.log.producer_rebuild import rebuild_producers
from klamm.log.producer_snapshots import ProducerSnapshots
from klamm.log.producer_state import ProducerStateManager
from klamm.log.results import TimestampOffsetResult
from klamm.log.segment import FoundFile, LogSegment
from klamm.log.segments import LogSegments
from klamm.log.transaction_index import AbortedTxn
from klamm.protocol.record_batch import LOG_OVERHEAD, OFFSET_AND_LENGTH, RecordBatch

_log = logging.getLogger(__name__)
_NO_END: Final = 1 << 63
_WALKED_BYTES: Final = 16 * 1024
"""In larger reads the index shows where the last batches are."""
_UNCOVERED_BYTES: Final = 64 * 1024
"""A log that grows by less gets no new snapshot: writing the file takes as long as inspecting ten logs."""


def _first_offset(txn: AbortedTxn) -> int:
    return txn.first_offset


class LocalLog:
    """Owner: the `Log`. `directory` is the partition's directory, `log_dir` the one that holds it."""

    def __init__(
        self,
        env: LogEnvironment,
        log_dir: str,
        directory: str,
        config: LogConfig,
        segments: LogSegments,
        leader_epochs: LeaderEpochCache,
        producers: ProducerStateManager,
        snapshots: ProducerSnapshots,
    ) -> None:
        self._env = env
        self._log_dir = log_dir
        self._directory = directory
        self._config = config
        self.segments = segments
        self.leader_epochs = leader_epochs
        self.producers = producers
        self.snapshots = snapshots
        self._is_rebuilding = False
        """Whether a rebuild of the producers has failed half-way. They do not agree with the batches until the next."""
        self._unsynced_snapshots: list[str] = []
        self._covered_bytes = 0
        """The part of the active segment that `cover_producers` has covered."""

    def update_config(self, config: LogConfig) -> None:
        self._config = config

    @property
    def size_bytes(self) -> int:
        return self.segments.size_bytes

    @property
    def first_base_offset(self) -> int:
        return self.segments.first.base_offset

    @property
    def active_base_offset(self) -> int:
        return self.segments.active.base_offset

    # leader epochs

    @property
    def latest_epoch(self) -> int | None:
        return self.leader_epochs.latest_epoch

    def last_record_epoch(self, log_end_offset: int) -> int | None:
        """Return the leader epoch of the last record; for a log without records, the newest epoch that it knows."""
        epoch = self.leader_epochs.epoch_for_offset(log_end_offset - 1)
        return self.leader_epochs.latest_epoch if epoch is None else epoch  # all records may have been deleted

    def assign_epoch(self, leader_epoch: int, start_offset: int) -> None:
        self.leader_epochs.assign(leader_epoch, start_offset)
        self.sync_epochs_soon()

    def sync_epochs_soon(self) -> None:
        if self.leader_epochs.is_dirty:
            self._env.host.sync_soon(self._log_dir, self.leader_epochs.path)

    def forget_epochs_from(self, offset: int) -> None:
        self.leader_epochs.truncate_from_end(offset)

    def written_epoch(self, offset: int) -> int | None:
        """Return the leader epoch in the batch that holds `offset`, or in the next one."""
        segment: LogSegment | None = self.segments.floor(offset) or self.segments.first
        while segment is not None:
            for batch in segment.batches_from(offset):
                return batch.partition_leader_epoch
            segment = self.segments.higher(segment.base_offset)
        return None

    # producers

    def prepare_marker(self, segment: LogSegment, batch: RecordBatch) -> None:
        """Open the transaction index if the marker aborts a transaction.

        At the limit of open files, the marker is then rejected instead of being written without its entry.
        """
        entry = self.producers.entries.get(batch.producer_id)
        if entry is not None and entry.current_txn_first_offset is not None:
            marker = parse_marker(batch)
            if marker is not None and marker.is_abort:
                segment.txn_index.prepare()

    def update_producers(self, segment: LogSegment, batch: RecordBatch, high_watermark: int) -> None:
        """Take a batch of a producer into account that was appended to `segment`."""
        aborted = self.producers.update(batch, self._env.host.youngest_connection, high_watermark)
        if aborted is not None:
            segment.txn_index.append(aborted)

    def truncate_producers(self, log_start_offset: int, log_end_offset: int, high_watermark: int) -> None:
        """Set the producers to their state at the end of a truncated log."""
        self._covered_bytes = 0
        if not self._is_rebuilding and self.producers.truncate_to(log_end_offset):
            self.snapshots.remove_above(log_end_offset)
        else:
            self._is_rebuilding = True
            rebuild_producers(
                self.producers,
                self.snapshots,
                self.segments,
                log_start_offset=log_start_offset,
                log_end_offset=log_end_offset,
                now_ms=self._env.clock.now_ms(),
                high_watermark=high_watermark,
            )
            self._is_rebuilding = False
            self.producers.rebuilt_after = self._env.host.youngest_connection()

    # rolling and flushing

    def roll(self, base_offset: int) -> LogSegment | None:
        """Complete the active segment and start one at `base_offset`; None if an empty one begins there already."""
        active = self.segments.active
        if active.base_offset == base_offset and active.size_bytes == 0:
            return None
        active.become_inactive(trim=self._config.preallocate)
        segment = self._segment(base_offset)
        self._create(segment)
        self.segments.add(segment)
        self._covered_bytes = 0
        self._take_snapshot(base_offset)
        return segment

    def _segment(self, base_offset: int) -> LogSegment:
        """Return a new segment that has no files yet."""
        env, config = self._env, self._config
        jitter_ms = min(config.segment_jitter_ms, config.segment_ms)
        return LogSegment(
            env.files,
            env.pool,
            self._directory,
            base_offset,
            config,
            found=FoundFile(created_ms=env.clock.now_ms()),
            roll_jitter_ms=env.rng.randrange(jitter_ms) if jitter_ms > 0 else 0,
        )

    def _create(self, segment: LogSegment) -> None:
        segment.create(preallocate_bytes=self._config.segment_bytes if self._config.preallocate else 0)

    def cover_producers(self, log_end_offset: int) -> bool:
        """Write the producers of a log that may be opened again without recovery; return whether that was necessary.

        Otherwise its opening, which is a step of the loop, would read all batches after the newest snapshot.
        """
        size_bytes = self.segments.active.size_bytes
        if size_bytes - self._covered_bytes < _UNCOVERED_BYTES or not self._take_snapshot(log_end_offset):
            return False
        self._covered_bytes = size_bytes
        self.snapshots.remove_strays(self.segments.base_offsets)
        return True

    def _take_snapshot(self, offset: int) -> bool:
        """Write the producers as of `offset`, unless the newest snapshot is of that offset or a later one."""
        if offset <= (self.snapshots.latest_offset or 0):
            return False
        self._unsynced_snapshots.append(self.snapshots.write(offset, self.producers.entries.values()))
        return True

    def prepare_flush(self, start: int, end: int) -> list[str]:
        """Write the indexes of [start, end) to their files; return the files that the caller must force to the disk."""
        paths: list[str] = []
        for segment in self.segments.between(start, end):
            segment.write_indexes()
            paths += segment.paths()
        paths += self._unsynced_snapshots
        self._unsynced_snapshots = []
        paths += self.leader_epochs.take_unsynced()
        paths.append(self._directory)
        return paths

    # reading

    def read(
        self, offset: int, max_bytes: int, max_offset: int, log_end_offset: int, min_one_message: bool
    ) -> bytes | memoryview:
        """Return whole batches from the one that holds `offset` on; none of them reaches `max_offset`."""
        segments = self.segments
        segment = segments.floor(offset) or segments.first
        while segment.base_offset < max_offset:
            following = segments.higher(segment.base_offset)
            end = None
            if max_offset < (following.base_offset if following is not None else log_end_offset):
                last = segment.find(max_offset)
                end = last.position if last is not None else None
            found = segment.read(offset, max_bytes, end, min_one_message=min_one_message)
            if found is not None:
                return found
            if following is None:
                break
            segment = following
        return b""

    def aborted_in(self, offset: int, data: bytes | memoryview) -> tuple[AbortedTxn, ...]:
        """Return the aborted transactions with records in `data`, which was read from `offset` on."""
        if not any(s.txn_index.exists for s in self.segments.between(offset, _NO_END)):
            return ()
        position = last = self._indexed_batch(offset, data) if len(data) > _WALKED_BYTES else 0
        while position < len(data):
            last = position
            position += LOG_OVERHEAD + OFFSET_AND_LENGTH.unpack_from(data, position)[1]
        return self.collect_aborted(offset, RecordBatch(memoryview(data), last).next_offset)

    def _indexed_batch(self, offset: int, data: bytes | memoryview) -> int:
        """Return where one of the last batches of `data` begins. A reader of small batches would pass thousands."""
        segment = self.segments.floor(OFFSET_AND_LENGTH.unpack_from(data)[0])
        first = None if segment is None else segment.find(offset)
        if segment is None or first is None:
            return 0
        return max(segment.offset_index.position_before(first.position + len(data) - 1) - first.position, 0)

    def collect_aborted(self, start_offset: int, end_offset: int) -> tuple[AbortedTxn, ...]:
        """Return the aborted transactions with records in [start_offset, end_offset), by their first offset.

        The indexes have them in the order of their ends, but some clients look only at the first one (franz-go 1.21).
        """
        found: list[AbortedTxn] = []
        for segment in self.segments.between(start_offset, _NO_END):
            aborted, complete = segment.txn_index.collect(start_offset, end_offset)
            found += aborted
            if complete:
                break
        return tuple(sorted(found, key=_first_offset))

    def offset_for_timestamp(self, timestamp: int, log_start_offset: int) -> TimestampOffsetResult | None:
        """Return the first record that is at least as new as `timestamp`."""
        for segment in self.segments:
            if segment.largest_timestamp() >= timestamp:
                found = segment.find_timestamp(timestamp, log_start_offset)
                if found is not None:
                    return TimestampOffsetResult(*found)
        return None

    def segment_starts(self, timestamp: int | None, log_start_offset: int) -> list[int]:
        """Return the first offset of each segment that has no record newer than `timestamp`."""
        found = [s for s in self.segments if timestamp is None or s.largest_timestamp() <= timestamp]
        return [max(s.base_offset, log_start_offset) for s in found]

    def max_timestamp_offset(self) -> TimestampOffsetResult | None:
        """Return the record with the newest timestamp."""
        newest = max(self.segments, key=lambda s: s.max_timestamp_so_far().timestamp)
        found = newest.find_max_timestamp()
        return TimestampOffsetResult(*found) if found is not None else None

    # truncating and deleting

    def prepare_truncation(self, offset: int) -> Callable[[], None]:
        """Return a function that removes the batch that holds `offset` and all later ones.

        A log whose files cannot be read fails here and is not changed. If the function fails, it may be called again.
        The first segment must begin at or before `offset`.
        """
        segment = self.segments.floor(offset)
        assert segment is not None
        segment.find(offset)
        segment.txn_index.all()
        return partial(self._truncate_to, offset)

    def _truncate_to(self, offset: int) -> None:
        self.delete([s for s in self.segments if s.base_offset > offset])
        self.segments.active.truncate_to(offset, self._env.clock.now_ms())
        self.leader_epochs.truncate_from_end(offset)

    def truncate_fully(self, offset: int) -> None:
        """Remove everything and start an empty segment at `offset`. If this fails, it may be called again."""
        self.delete(list(self.segments))
        self.snapshots.remove_above(-1)
        segment = self._segment(offset)
        self.segments.add(segment)  # A log always has a segment, even one whose files cannot be created yet.
        self._create(segment)
        self.leader_epochs.clear()
        self.producers.clear(offset)
        self.producers.rebuilt_after = self._env.host.youngest_connection()

    def delete(self, segments: Sequence[LogSegment]) -> None:
        """Take segments out of the log. Their files are renamed now and removed later."""
        if not segments:
            return
        _log.info(
            "%s: deleting %d segments, the first at offset %d", self._directory, len(segments), segments[0].base_offset
        )
        paths: list[str] = []
        for segment in segments:
            self.segments.remove(segment)
            paths += self._mark_deleted(segment)
            paths += self._mark_snapshot_deleted(segment)
        self._delete_later(paths)

    def replace_segments(self, old: Sequence[LogSegment], new: LogSegment) -> None:
        """Put a cleaned segment in the place of others.

        It has the suffix `.swap`, and that name is on the disk: a restart finishes the exchange instead of undoing it.
        """
        assert self.segments.active not in old, "the active segment is never cleaned"
        for segment in old:
            self.segments.remove(segment)
        self.segments.add(new)
        paths: list[str] = []
        for segment in old:
            paths += self._mark_deleted(segment)
            if segment.base_offset != new.base_offset:
                paths += self._mark_snapshot_deleted(segment)
        self._delete_later(paths)
        new.change_suffix("")

    def _mark_deleted(self, segment: LogSegment) -> list[str]:
        segment.discard()
        segment.change_suffix(names.DELETED)
        return segment.paths()

    def _mark_snapshot_deleted(self, segment: LogSegment) -> list[str]:
        snapshot = self.snapshots.mark_deleted(segment.base_offset)
        return [snapshot] if snapshot is not None else []

    def _delete_later(self, paths: Sequence[str]) -> None:
        self._env.host.delete_later(self._log_dir, paths, self._config.file_delete_delay_ms)

    # closing and moving

    def close(self, recovery_point: int, log_end_offset: int) -> list[str]:
        """Complete and close all files; return those that the caller must force to the disk."""
        self.segments.active.become_inactive(trim=self._config.preallocate)
        self._take_snapshot(log_end_offset)
        paths = self.prepare_flush(recovery_point, log_end_offset + 1)
        for segment in self.segments:
            segment.release()
        return paths

    def hand_over(self, env: LogEnvironment) -> None:
        """Use other services from now on: the files were loaded in another thread, which has closed them."""
        self._env = env
        for segment in self.segments:
            segment.pool = env.pool

    def remove_stale_indexes(self) -> bool:
        """Remove the index files that do not agree with the data files; return whether there were any."""
        return any([segment.remove_stale_indexes() for segment in self.segments])

    def discard(self) -> None:
        """Close every segment without writing anything."""
        for segment in self.segments:
            segment.discard()

    def moved_to(self, directory: str) -> None:
        """Note the new name of the directory; open files stay open."""
        self._directory = directory
        self.leader_epochs.moved_to(directory)
        self.snapshots.moved_to(directory)
        for segment in self.segments:
            segment.moved_to(directory)
