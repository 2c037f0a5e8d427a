"""Loads a partition's directory: finishes interrupted changes and recovers unflushed segments.

After a clean shutdown no data file is read. After any other stop every segment from the recovery point on is checked
batch by batch, cut after the last valid batch and indexed again. Earlier segments are known to be on the disk.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Final
from uuid import UUID

from klamm.errors import KlammError, ProtocolError
from klamm.lazy_dataclass import lazy_dataclass
from klamm.log import names
from klamm.log.batch_reader import read_batches
from klamm.log.checkpoints import decode_partition_metadata
from klamm.log.files import FileInfo, Files
from klamm.log.indexes import CorruptIndexError
from klamm.log.leader_epoch_cache import EpochEntry, LeaderEpochCache
from klamm.log.local_log import LocalLog
from klamm.log.log import Log
from klamm.log.log_config import LogConfig
from klamm.log.log_contents import Damage, LoadedLog
from klamm.log.log_environment import LogEnvironment
from klamm.log.producer_rebuild import rebuild_producers
from klamm.log.producer_snapshots import ProducerSnapshots
from klamm.log.producer_state import ProducerStateManager
from klamm.log.segment import FoundFile, LogSegment
from klamm.log.segments import LogSegments
from klamm.log.summaries import LogSummary
from klamm.model import NO_EPOCH, TopicPartition
from klamm.protocol.record_batch import RecordBatch

_log = logging.getLogger(__name__)
_FOREVER: Final = 1 << 63


@lazy_dataclass(frozen=True, slots=True)
class LastRun:
    """The state in which the last run left a log: the checkpointed offsets, and how the run ended.

    `intact` is the summary of a log whose files agree with it: everything is on the disk, however the last run ended.
    `recorded` is the summary that a clean stop wrote for a log whose files are different now. `high_watermark` is from
    the checkpoint, if it names the log.
    """

    log_start_offset: int = 0
    recovery_point: int = 0
    had_clean_shutdown: bool = False
    intact: LogSummary | None = None
    recorded: LogSummary | None = None
    high_watermark: int | None = None


_NO_LAST_RUN: Final = LastRun()


class LogLoader:
    """Loads one log."""

    def __init__(
        self,
        env: LogEnvironment,
        topic_partition: TopicPartition,
        log_dir: str,
        config: LogConfig,
        last_run: LastRun = _NO_LAST_RUN,
        *,
        dir_name: str | None = None,
    ) -> None:
        self._env = env
        self._files = env.files
        self._tp = topic_partition
        self._log_dir = log_dir
        self._dir = f"{log_dir}/{dir_name or names.dir_name(topic_partition)}"
        self._config = config
        self._start_checkpoint = last_run.log_start_offset
        self._recovery_point = last_run.recovery_point
        self._high_watermark = last_run.high_watermark
        self._recorded = last_run.recorded
        self._clean = last_run.had_clean_shutdown and last_run.recorded is None
        self._intact = last_run.intact
        self._is_recovered_already = self._clean or self._intact is not None
        self._damages: list[Damage] = []
        self._lost_tail: Damage | None = None
        self._dropped_paths: list[str] = []
        self._epochs = LeaderEpochCache(env.files, self._dir)
        self._recovered_from: int | None = None
        self._is_new = False
        self._has_topic_id = False

    def load(self) -> Log:
        """Return the log, open."""
        loaded = self.load_files()
        topic_id = read_topic_id(self._files, self._tp, self._dir) if self._has_topic_id else None
        return Log(self._env, self._tp, self._log_dir, self._dir, self._config, loaded, topic_id)

    def load_files(self) -> LoadedLog:
        self._files.make_dirs(self._dir)
        infos = self._finish_interrupted(self._files.list_dir(self._dir))
        segments = LogSegments(self._open_segments(infos))
        has_epochs = any(i.name == names.LEADER_EPOCH_CHECKPOINT for i in infos)
        are_epochs_known = self._epochs.load(exists=has_epochs) and self._are_epochs_as_recorded()
        snapshots = ProducerSnapshots(self._files, self._dir, _offsets(infos, names.SNAPSHOT))
        # Opening a log on its first use must not block the loop on the disk. The next load finds the same epochs.
        with self._epochs.held(sync=self._intact is None):
            if not are_epochs_known and segments.size_bytes:
                self._epochs.clear()
                self._read_epochs(segments, is_recovered=self._is_recovered_already)
            if self._recorded is not None:
                self._repair(segments, self._recorded)
            elif not self._is_recovered_already:
                self._recover(segments)
            log_end_offset = self._end_offset(segments, snapshots)
            if self._recorded is not None:
                self._report_damage(log_end_offset, self._recorded)
            if log_end_offset < self._start_checkpoint:
                log_end_offset = self._start_over(segments, log_end_offset)
            log_start_offset = max(self._start_checkpoint, segments.first.base_offset)
            self._epochs.truncate_from_end(log_end_offset)
            if are_epochs_known and log_start_offset < log_end_offset:
                self._read_early_epochs(segments, log_start_offset)
            self._epochs.truncate_from_start(log_start_offset)
        # A clean stop writes the last entry of its time index only if the log was open, not after a kill before that.
        segments.active.may_have_newer_records = True
        snapshots.remove_strays(segments.base_offsets)
        self._check_aborted(segments)
        producers = self._load_producers(segments, snapshots, log_start_offset, log_end_offset)
        self._has_topic_id = any(i.name == names.PARTITION_METADATA for i in infos)
        return LoadedLog(
            LocalLog(self._env, self._log_dir, self._dir, self._config, segments, self._epochs, producers, snapshots),
            log_start_offset,
            log_end_offset,
            log_end_offset if self._is_recovered_already else min(self._recovery_point, log_end_offset),
            self._recovered_from is not None,
            tuple(self._damages),
            self._lost_tail,
            tuple(self._dropped_paths),
        )

    # interrupted deletions and cleanings

    def _finish_interrupted(self, infos: list[FileInfo]) -> list[FileInfo]:
        """Remove unfinished files and complete an exchange of segments that had begun."""
        marked = [(i, p) for i in infos if (p := names.parse_file_name(i.name)) is not None and p[2]]
        leftovers = [i for i in infos if i.name.endswith(names.TMP)]
        if not marked and not leftovers:
            return infos
        first_cleaned = min((p[0] for _, p in marked if p[2] == names.CLEANED), default=_FOREVER)
        for info, (offset, _, mark) in marked:
            if mark != names.SWAP or offset >= first_cleaned:
                self._files.unlink(f"{self._dir}/{info.name}")
        for info in leftovers:
            self._files.unlink(f"{self._dir}/{info.name}")
        swaps = [(i, p) for i, p in marked if p[2] == names.SWAP and p[0] < first_cleaned]
        self._finish_swap(infos, [(i, p[0], p[1]) for i, p in swaps])
        return self._files.list_dir(self._dir)

    def _finish_swap(self, infos: list[FileInfo], swaps: list[tuple[FileInfo, int, str]]) -> None:
        logs = [(offset, self._next_offset(info)) for info, offset, kind in swaps if kind == names.LOG]
        for info in infos:
            parsed = names.parse_file_name(info.name)
            if parsed is None or parsed[2]:
                continue
            if any(start <= parsed[0] < end for start, end in logs):
                _log.info("removing %s/%s: a cleaned segment replaces it", self._dir, info.name)
                self._files.unlink(f"{self._dir}/{info.name}")
        for info, _, _ in sorted(swaps, key=lambda s: s[2] == names.LOG):
            path = f"{self._dir}/{info.name}"
            self._files.rename(path, path.removesuffix(names.SWAP))

    def _next_offset(self, info: FileInfo) -> int:
        handle = self._files.open(f"{self._dir}/{info.name}")
        try:
            offset = -1
            for _, batch in read_batches(handle, 0, info.size_bytes):
                offset = batch.next_offset
            return offset
        finally:
            handle.close()

    # segments

    def _open_segments(self, infos: list[FileInfo]) -> list[LogSegment]:
        parsed = {(p[0], p[1]): i for i in infos if (p := names.parse_file_name(i.name)) is not None and not p[2]}
        segments = []
        for (offset, kind), info in parsed.items():
            if kind == names.LOG:
                has_txn_index = (offset, names.TXN_INDEX) in parsed
                segments.append(self._segment(offset, FoundFile(info.size_bytes, info.modified_ms, has_txn_index)))
            elif kind in names.SEGMENT_SUFFIXES and (offset, names.LOG) not in parsed:
                _log.warning("removing %s/%s: it has no log file", self._dir, info.name)
                self._files.unlink(f"{self._dir}/{info.name}")
        if not segments:
            self._is_new = True
            preallocate_bytes = self._config.segment_bytes if self._config.preallocate else 0
            segments.append(self._new_segment(self._start_checkpoint, preallocate_bytes=preallocate_bytes))
        return segments

    def _segment(self, offset: int, found: FoundFile) -> LogSegment:
        return LogSegment(self._files, self._env.pool, self._dir, offset, self._config, found=found)

    def _new_segment(self, offset: int, *, preallocate_bytes: int = 0) -> LogSegment:
        segment = self._segment(offset, FoundFile(created_ms=self._env.clock.now_ms()))
        segment.create(preallocate_bytes=preallocate_bytes)
        return segment

    def _recover(self, segments: LogSegments) -> None:
        """Check the unflushed segments; keep nothing after the first invalid batch."""
        if self._is_new:
            return
        unflushed = segments.between(self._recovery_point, _FOREVER)
        self._recovered_from = unflushed[0].base_offset
        previous_end = -1
        for i, segment in enumerate(unflushed):
            if segment.base_offset < previous_end:
                self._drop(segments, unflushed[i:])
                return
            cut_bytes = segment.recover(self._note_epoch)
            previous_end = segment.read_next_offset()
            if cut_bytes and not (self._config.preallocate and i == len(unflushed) - 1):
                _log.warning("%s: truncated to offset %d: %d bytes were invalid", self._dir, previous_end, cut_bytes)
            if cut_bytes:
                self._drop(segments, unflushed[i + 1 :])
                return

    # damage after a clean stop

    def _repair(self, segments: LogSegments, recorded: LogSummary) -> None:
        """Cut damaged segments after their last valid batch. Keep later segments: they may be the only copy."""
        for (base_offset, size_bytes), following in zip(recorded.segments, [*recorded.segments[1:], None], strict=True):
            segment = segments.at(base_offset)
            path = f"{self._dir}/{names.file_name(base_offset, names.LOG)}"
            if segment is None:
                end = base_offset
            elif segment.size_bytes != size_bytes or following is None:
                segment.recover(self._note_epoch)
                end = segment.read_next_offset()
                self._recovered_from = base_offset if self._recovered_from is None else self._recovered_from
            else:
                continue
            if following is not None and (segment is None or segment.size_bytes < size_bytes):
                self._damages.append(Damage(path, end, following.base_offset, base_offset, size_bytes))
        if not len(segments) or segments.active.base_offset < recorded.segments[-1].base_offset:
            self._restart_at(segments, recorded.segments[-1].base_offset)

    def _restart_at(self, segments: LogSegments, offset: int) -> None:
        """Continue the log where its missing active segment began."""
        segments.add(self._new_segment(offset))

    def _report_damage(self, log_end_offset: int, recorded: LogSummary) -> None:
        if log_end_offset < recorded.log_end_offset:
            last = next(
                (s for s in reversed(recorded.segments) if s.base_offset <= log_end_offset), recorded.segments[0]
            )
            path = f"{self._dir}/{names.file_name(last.base_offset, names.LOG)}"
            self._lost_tail = Damage(path, log_end_offset, recorded.log_end_offset, *last)
        for damage in [*self._damages, *([self._lost_tail] if self._lost_tail is not None else [])]:
            _log.error(
                "%s: %s was damaged after a clean stop of the broker: offsets %d to %d are missing",
                self._tp,
                damage.path,
                damage.start_offset,
                damage.end_offset - 1,
            )

    def _check_aborted(self, segments: LogSegments) -> None:
        """Find the first segment with unreadable aborted transactions: they are written again from there on."""
        for segment in segments:
            if not segment.txn_index.exists or self._is_recovered(segment):
                continue
            try:
                segment.txn_index.sanity_check()
            except CorruptIndexError as e:
                _log.warning("%s: collecting the aborted transactions again: %s", self._dir, e)
                self._recovered_from = segment.base_offset
                return

    def _is_recovered(self, segment: LogSegment) -> bool:
        return self._recovered_from is not None and segment.base_offset >= self._recovered_from

    def _are_epochs_as_recorded(self) -> bool:
        """Compare the epochs with the summary. A damaged file can be readable, and an epoch would begin elsewhere.

        The checksum is of the last stop. A run that was killed may have moved the start of the log after the summary.
        """
        known = self._intact
        if known is None:
            return True
        latest_epoch, epochs_crc = self._epochs.of_records(known.log_end_offset)
        if latest_epoch == known.latest_epoch and (epochs_crc == known.epochs_crc or not self._clean):
            return True
        _log.warning("%s: reading the leader epochs from the records: they differ from the summary", self._epochs.path)
        return False

    def _read_epochs(self, segments: LogSegments, *, is_recovered: bool) -> None:
        """Read the epochs from the batches: their file is missing or damaged. Recovery does so for its segments."""
        recovered_later = [] if is_recovered else segments.between(self._recovery_point, _FOREVER)
        for segment in segments:
            if segment in recovered_later:
                return
            with contextlib.suppress(ProtocolError):
                for _, batch in segment.batches():
                    self._note_epoch(batch)

    def _read_early_epochs(self, segments: LogSegments, log_start_offset: int) -> None:
        """Read the epochs of the first records if the file begins after them.

        The checkpoint of the log start offset is written less often than the file, so it can be older after a kill.
        """
        known = list(self._epochs.entries)
        if known and known[0].start_offset <= log_start_offset:
            return
        early = list(_epoch_starts(segments, log_start_offset, known[0].start_offset if known else _FOREVER))
        if early:
            self._epochs.clear()
            for entry in (*early, *known):
                self._epochs.assign(*entry)

    def _note_epoch(self, batch: RecordBatch) -> None:
        latest = self._epochs.latest_epoch
        if batch.partition_leader_epoch > (NO_EPOCH if latest is None else latest):
            self._epochs.assign(batch.partition_leader_epoch, batch.base_offset)

    def _drop(self, segments: LogSegments, dropped: list[LogSegment]) -> None:
        for segment in dropped:
            _log.warning("removing %s: it comes after invalid bytes", segment.path(names.LOG))
            segments.remove(segment)
            segment.discard()
            segment.change_suffix(names.DELETED)
            self._dropped_paths += segment.paths()

    def _end_offset(self, segments: LogSegments, snapshots: ProducerSnapshots) -> int:
        """Return the end of the log. After a clean shutdown the checkpoint is trusted if its snapshot exists."""
        active = segments.active
        if active.size_bytes == 0:
            return active.base_offset
        if self._clean and self._recovery_point > active.base_offset and self._recovery_point in snapshots.offsets:
            return self._recovery_point
        try:
            return active.read_next_offset()
        except ProtocolError as e:
            _log.warning("recovering %s: it does not end with a record batch: %s", active.path(names.LOG), e)
            self._recovered_from = active.base_offset
            active.recover(self._note_epoch)
            return active.read_next_offset()

    def _start_over(self, segments: LogSegments, log_end_offset: int) -> int:
        _log.warning(
            "%s: removing all segments: the log ends at %d, before its start offset %d",
            self._dir,
            log_end_offset,
            self._start_checkpoint,
        )
        self._drop(segments, list(segments))
        segments.add(self._new_segment(self._start_checkpoint))
        self._epochs.clear()
        return self._start_checkpoint

    def _load_producers(
        self, segments: LogSegments, snapshots: ProducerSnapshots, log_start_offset: int, log_end_offset: int
    ) -> ProducerStateManager:
        producers = ProducerStateManager(self._env.producer_id_expiration_ms)
        rebuild_producers(
            producers,
            snapshots,
            segments,
            log_start_offset=log_start_offset,
            log_end_offset=log_end_offset,
            now_ms=self._env.clock.now_ms(),
            high_watermark=self._high_watermark,
            recovered_from=self._recovered_from,
        )
        return producers


def _offsets(infos: list[FileInfo], kind: str) -> list[int]:
    parsed = (names.parse_file_name(i.name) for i in infos)
    return [p[0] for p in parsed if p is not None and p[1] == kind and not p[2]]


def read_topic_id(files: Files, tp: TopicPartition, directory: str) -> UUID | None:
    """Return the topic id. A file that a crash has emptied counts as missing: the controller sends the id again."""
    path = f"{directory}/{names.PARTITION_METADATA}"
    try:
        return decode_partition_metadata(files.read_bytes(path), path)
    except FileNotFoundError:
        return None
    except KlammError as e:
        _log.warning("%s: the topic id is unknown: %s", tp, e)
        return None


def _epoch_starts(segments: LogSegments, start_offset: int, end_offset: int) -> Iterator[EpochEntry]:
    """Yield where epochs begin among the batches from `start_offset` to `end_offset`. Older formats have no epochs."""
    latest = NO_EPOCH
    with contextlib.suppress(ProtocolError):
        for segment in segments.between(start_offset, end_offset):
            for batch in segment.batches_from(start_offset):
                if batch.base_offset >= end_offset or batch.partition_leader_epoch == NO_EPOCH:
                    return
                if batch.partition_leader_epoch > latest:
                    latest = batch.partition_leader_epoch
                    yield EpochEntry(latest, batch.base_offset)
