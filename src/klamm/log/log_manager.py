"""All logs of a broker: loading them, making and removing them, and the periodic work on them.

Owner: the broker loop. The server calls the `*_pass` and `checkpoint_*` methods (`log_passes`) when their intervals say
so; what takes long in them is handed to the background thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from random import Random
from typing import Final
from uuid import UUID

from klamm.clock import Clock
from klamm.errors import ErrorCode, KlammError, LogDirError
from klamm.log import names
from klamm.log.background import BackgroundWorker
from klamm.log.checkpoint_writer import CheckpointWriter
from klamm.log.checkpoints import MetaProperties
from klamm.log.cleaner_manager import LogCleanerManager
from klamm.log.deletion_queue import DeletionQueue
from klamm.log.environment import LogEnvironment
from klamm.log.files import Files, OsFiles, is_exhausted
from klamm.log.flush_queue import FlushQueue
from klamm.log.full_disks import FullDisks, Suspended, is_full
from klamm.log.future_logs import FutureLogs, delete_name, swap
from klamm.log.jobs import Flushable, Job
from klamm.log.log import Log
from klamm.log.log_config import LogConfig
from klamm.log.log_dirs import LogDir, LogDirs
from klamm.log.log_opener import LogOpener
from klamm.log.log_passes import LogPasses
from klamm.log.open_segments import DEFAULT_MAX_OPEN, OpenSegments
from klamm.log.summary_writer import SummaryWriter
from klamm.log.sync_queue import SyncQueue
from klamm.model import TopicPartition

_log = logging.getLogger(__name__)
_DAY_MS: Final = 86_400_000
SYNC_FILES_TOGETHER: Final = 500
"""A clean stop with more files to force to a disk than that begins with the whole disk."""


class LogManager(LogPasses):
    """`on_dir_failure(log_dir, sentence)` is called in the middle of what failed: it should post, not work.

    `on_flushed(tp, recovery_point)` tells that records before that offset are on the disk.
    """

    def __init__(
        self,
        log_dirs: Sequence[str],
        *,
        clock: Clock,
        rng: Random,
        default_config: LogConfig | None = None,
        topic_config: Callable[[str], LogConfig] | None = None,
        files: Files | None = None,
        producer_id_expiration_ms: int = _DAY_MS,
        max_open_segments: int = DEFAULT_MAX_OPEN,
        on_dir_failure: Callable[[str, str], None] = lambda log_dir, sentence: None,
        on_dir_revival: Callable[[str], None] = lambda log_dir: None,
        on_flushed: Callable[[TopicPartition, int], None] = lambda tp, recovery_point: None,
    ) -> None:
        self.default_config = default_config or LogConfig()
        self._topic_config = topic_config or (lambda topic: self.default_config)
        self._files: Files = files or OsFiles(self._let_go)
        self._clock = clock
        self._rng = rng
        self._on_dir_failure = on_dir_failure
        self._on_dir_revival = on_dir_revival
        self._on_flushed = on_flushed
        self.segments_deleted_listener: Callable[[TopicPartition], None] | None = None
        """Called after retention has deleted segments of a partition: its log starts at another offset."""
        self._worker = BackgroundWorker(self.failed, self._let_go)
        self._syncs = SyncQueue(self._files, self._worker)
        self._owner = threading.get_ident()
        self.dirs = LogDirs(log_dirs, self._files)
        self.had_clean_shutdown = False
        """Whether the last run left its mark in every directory. If not, any log may have lost its unflushed tail."""
        self._were_damaged = False
        """Whether files of a log were damaged or removed after a clean stop."""
        self._missing: dict[TopicPartition, str] = {}
        """Logs that were not in their directory at the start."""
        self._checkpoints = CheckpointWriter(self._files, self.dirs, self.submit)
        self._logs: dict[TopicPartition, Log] = {}
        self._by_topic: dict[str, dict[TopicPartition, Log]] = {}
        self._counts: Counter[str] = Counter()
        self._offline: dict[TopicPartition, str] = {}
        self._found_deleted: set[TopicPartition] = set()
        self._unrecorded: list[Log] = []
        """Deleted logs that the checkpoints still have."""
        self._deletions = DeletionQueue(self._files, clock, self.submit)
        self._flushes = FlushQueue(self._is_in_use)
        self._env = LogEnvironment(
            self._files, clock, rng, self, OpenSegments(max_open_segments), producer_id_expiration_ms
        )
        self._cleaner = LogCleanerManager(
            self._env, is_in_use=self._is_in_use, on_cleaned=self._checkpoint_cleaner_offset
        )
        self._opener = LogOpener(self._env)
        self.futures = FutureLogs(self._opener, self._deletions, rng)
        self.preferred_dirs: dict[TopicPartition, str] = {}
        """Where a partition that is not there yet shall be created."""
        self._full_disks = FullDisks(self._files, self.submit, self._revive)
        self._summaries = SummaryWriter(self._files, self.dirs, clock, self)

    # starting and stopping

    def start_background(self, loop: asyncio.AbstractEventLoop, executor: Executor | None = None) -> None:
        """From now on file work goes to a thread (or `executor`), and is committed on `loop`."""
        self._worker.start(loop, executor)
        self._syncs.start(loop)

    def load_logs(self, owner: MetaProperties | None = None) -> None:
        """Locks and reads every log directory. LogDirError when another broker uses one, or none can be used.

        With `owner` the directories have to be that broker's: KlammError, and nothing is changed, when they are not.
        """
        self.dirs.open_all()
        if owner is not None:
            self._claim(owner)
        self.had_clean_shutdown = all(log_dir.had_clean_shutdown for log_dir in self.dirs.live)
        for log_dir in tuple(self.dirs.live):
            try:
                log_dir.take_into_use()
                self._load_dir(log_dir)
            except OSError as e:
                self._take_offline(log_dir.path, e, "loading its logs")
        if not self.dirs.failures:
            self._adopt_complete_copies()
        self._report_missing()
        if not self.dirs.live:
            raise LogDirError("no log directory can be used: " + "; ".join(self.dirs.failures.values()))

    @property
    def may_lack_records(self) -> bool:
        """Whether a log may lack records that this broker had acknowledged when it was last in an ISR."""
        return not self.had_clean_shutdown or self._were_damaged

    def _claim(self, owner: MetaProperties) -> None:
        try:
            self.dirs.claim(owner)
        except KlammError:
            self.dirs.release()
            raise

    def _load_dir(self, log_dir: LogDir) -> None:
        futures: list[tuple[TopicPartition, str]] = []
        for info in self._files.list_dir(log_dir.path):
            if not info.is_dir:
                continue
            try:
                tp, mark = names.parse_dir_name(info.name)
            except KlammError as e:
                _log.warning("%s is passed over: %s", log_dir.path, e)
                continue
            path = f"{log_dir.path}/{info.name}"
            if mark == names.DELETE_DIR:
                self._found_deleted.add(tp)
                self._deletions.put_tree(log_dir.path, path, self.default_config.file_delete_delay_ms)
            elif mark == names.FUTURE_DIR:
                futures.append((tp, info.name))
            elif mark:
                _log.warning("%s is passed over: it is no log in use", path)
            elif (other := self._logs.get(tp)) is not None:
                raise LogDirError(f"{tp} is in {other.log_dir} and in {log_dir.path}: remove one of them")
            else:
                self._add(self._opener.get(tp, log_dir, self._config_of(tp.topic)))
        for tp, name in futures:
            self.futures.load(tp, log_dir, name, self._config_of(tp.topic))
        hosted = {tp for tp, log in self._logs.items() if log.log_dir == log_dir.path}
        for name, offsets in log_dir.checkpoints().items():
            self._checkpoints.found(name, log_dir.path, offsets, hosted)
        self._look_for_damage(log_dir)
        log_dir.forget_start_state()

    def _look_for_damage(self, log_dir: LogDir) -> None:
        if not log_dir.is_record_of_clean_stop:
            return
        for tp in log_dir.recorded.logs:
            log = self._logs.get(tp)
            if log is None:
                self._missing[tp] = log_dir.path
            elif log.damages or log.lost_tail is not None:
                self._were_damaged = True

    def _report_missing(self) -> None:
        """Called when all directories are loaded: a log may have been moved while the broker was down."""
        for tp, path in self._missing.items():
            if tp not in self._logs:
                _log.error("%s: its directory was removed from %s after a clean stop", tp, path)
                self._were_damaged = True

    def _adopt_complete_copies(self) -> None:
        """A swap was interrupted after the log in use had got its new name: the copy is the log now."""
        for tp, future in list(self.futures.logs.items()):
            if tp not in self._logs and tp in self._found_deleted:
                future.rename_dir(f"{future.log_dir}/{names.dir_name(tp)}")
                self._add(self.futures.take(tp))

    def _config_of(self, topic: str) -> LogConfig:
        """All logs of a topic share one value; `update_config` keeps it true."""
        for log in self._by_topic.get(topic, {}).values():
            return log.config
        return self._topic_config(topic)

    def shutdown(
        self,
        high_watermarks: Mapping[TopicPartition, int] | None = None,
        broker_epoch: int = -1,
        *,
        is_clean: bool = True,
    ) -> None:
        """Flushes and closes every log and, if `is_clean`, leaves the mark of that in every live directory."""
        self._syncs.stop()
        self._worker.stop()
        for log_dir in self.dirs.live:
            self._guard_dir(log_dir, self._close_logs)
        self.checkpoint_recovery_points()
        self.checkpoint_log_start_offsets()
        if high_watermarks is not None:
            self.checkpoint_high_watermarks(high_watermarks)
        if is_clean:
            for log_dir in self.dirs.live:
                self._guard_dir(log_dir, lambda d: self._mark_clean(d, broker_epoch))
        self.dirs.release()

    def _mark_clean(self, log_dir: LogDir, broker_epoch: int) -> None:
        log_dir.mark_clean_shutdown(broker_epoch)
        self._summaries.write_all(log_dir, self._logs_in(log_dir.path))

    def _close_logs(self, log_dir: LogDir) -> None:
        """Many files are written out together first: the fsync of each then has nothing left to do but to tell."""
        logs = (*self._logs_in(log_dir.path), *self.futures.in_dir(log_dir.path))
        prepared = [(log, log.prepare_close()) for log in logs]
        if sum(len(paths) for _, paths in prepared) > SYNC_FILES_TOGETHER:
            self._files.sync_disk(log_dir.path)
        for log, paths in prepared:
            log.finish_close(paths)

    def _guard_dir(self, log_dir: LogDir, action: Callable[[LogDir], object]) -> None:
        try:
            action(log_dir)
        except OSError as e:
            self._take_offline(log_dir.path, e, "shutting down")

    def abandon(self) -> None:
        """Lets go of everything without completing it, as a killed process does."""
        self._syncs.forget()
        self._worker.stop()
        for log in (*self._logs.values(), *self.futures.logs.values()):
            log.close_handles()
        self.dirs.release()

    # finding, making, removing

    def get_log(self, tp: TopicPartition) -> Log | None:
        """The log, unless there is none or its directory is offline."""
        return self._logs.get(tp)

    @property
    def logs(self) -> Mapping[TopicPartition, Log]:
        """The logs that can be used."""
        return self._logs

    def get_or_create_log(self, tp: TopicPartition, topic_id: UUID | None = None, *, is_new: bool = False) -> Log:
        """The log of a partition. LogDirError when it is, or may be, on a directory that has failed."""
        log = self._logs.get(tp)
        if log is None:
            log = self._create(tp, is_new=is_new)
        if topic_id is not None and log.topic_id is None:
            log.assign_topic_id(topic_id)
        return log

    def is_offline(self, tp: TopicPartition) -> bool:
        """Whether the log is, or may be, on a directory that has failed."""
        return tp in self._offline or (bool(self.dirs.failures) and tp not in self._logs)

    def _create(self, tp: TopicPartition, *, is_new: bool) -> Log:
        if tp in self._offline:
            raise LogDirError(f"{tp} is on {self._offline[tp]}, which has failed")
        if not is_new and self.dirs.failures:
            raise LogDirError(f"{tp} may be on {', '.join(self.dirs.failures)}, which has failed")
        if not self.dirs.live:
            raise LogDirError("no log directory is left")
        preferred = self.preferred_dirs.pop(tp, None)
        log_dir = min(self.dirs.live, key=lambda d: (d.path != preferred, self._counts[d.path]))
        try:
            log = self._opener.get(tp, log_dir, self._config_of(tp.topic))
        except OSError as e:
            self.failed(log_dir.path, e, f"creating {tp}")
            raise LogDirError(f"{tp} cannot be created in {log_dir.path}: {e.strerror or e}") from e
        self._add(log)
        return log

    def _add(self, log: Log) -> None:
        tp = log.topic_partition
        self._logs[tp] = self._by_topic.setdefault(tp.topic, {})[tp] = log
        self._counts[log.log_dir] += 1
        self._flushes.put(log)

    def _take_out(self, tp: TopicPartition) -> Log | None:
        log = self._logs.pop(tp, None)
        if log is not None:
            self._counts[log.log_dir] -= 1
            self._cleaner.forget(log)
            self._checkpoints.forget(log)
            del self._by_topic[tp.topic][tp]
            if not self._by_topic[tp.topic]:
                del self._by_topic[tp.topic]
        return log

    def async_delete(self, tp: TopicPartition) -> ErrorCode:
        """See `async_delete_all`."""
        return self.async_delete_all([tp])[tp]

    def async_delete_all(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, ErrorCode]:
        """Takes logs out at once; directories are renamed now and removed after `file.delete.delay.ms`.

        The checkpoints are written once for all of them: a log that is created again must not find the old offsets.
        """
        outcome = {tp: self.delete_unrecorded(tp) for tp in partitions}
        self.checkpoint_after_deletions()
        return outcome

    def checkpoint_after_deletions(self) -> None:
        """A log of that name that is created later must not inherit the offsets of the deleted one."""
        self._amend_checkpoints(self._unrecorded)
        self._unrecorded = []

    def delete_unrecorded(self, tp: TopicPartition) -> ErrorCode:
        """One log, as by `async_delete_all`; the caller calls `checkpoint_after_deletions` when it has deleted all."""
        if tp in self._offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        self.futures.remove(tp)
        log = self._take_out(tp)
        if log is None:
            return ErrorCode.NONE
        self._unrecorded.append(log)
        path = f"{log.log_dir}/{delete_name(tp, self._rng)}"
        try:
            log.close_handles()
            log.rename_dir(path)
        except OSError as e:
            self.failed(log.log_dir, e, f"deleting {tp}")
            return ErrorCode.KAFKA_STORAGE_ERROR
        self._deletions.put_tree(log.log_dir, path, log.config.file_delete_delay_ms)
        return ErrorCode.NONE

    def swap_with_future(self, tp: TopicPartition) -> Log:
        """The copy takes the place of the log in use, which is removed later. SwapError when a disk refuses."""
        current, future = self._logs[tp], self.futures.logs[tp]
        swap(current, future, delete_name(tp, self._rng))
        self._take_out(tp)
        self._add(self.futures.take(tp))
        self._deletions.put_tree(current.log_dir, current.dir, current.config.file_delete_delay_ms)
        self._amend_checkpoints([current, future])
        return future

    def update_config(self, topic: str, config: LogConfig) -> None:
        """Gives every log of a topic another configuration."""
        for log in self._by_topic.get(topic, {}).values():
            log.update_config(config)
            self._flushes.put(log)

    # what a log asks for

    def submit(self, job: Job) -> None:
        self._worker.submit(job)

    def sync_soon(self, log_dir: str, *paths: str) -> None:
        self._syncs.put(log_dir, *paths)

    def delete_later(self, log_dir: str, paths: Sequence[str], delay_ms: int) -> None:
        self._deletions.put_files(log_dir, paths, delay_ms)

    def flushed(self, tp: TopicPartition, recovery_point: int) -> None:
        self._on_flushed(tp, recovery_point)

    def unflushed(self, log: Flushable) -> None:
        self._flushes.put(log)

    def _let_go(self) -> bool:
        """Too many files are open: closes segments that are not in use. Those belong to the thread of the loop."""
        return threading.get_ident() == self._owner and self._env.pool.let_go() > 0

    def failed(self, log_dir: str, error: OSError, doing: str) -> None:
        """Takes a directory offline: its logs answer KAFKA_STORAGE_ERROR until the broker starts again.

        One whose disk is full comes back when there is room. Too many open files are no failure of a directory.
        """
        if is_exhausted(error):
            _log.error("%s was given up in %s: raise the limit of open files", doing, log_dir)
        else:
            self._take_offline(log_dir, error, doing)

    def _take_offline(self, log_dir: str, error: OSError, doing: str) -> None:
        sentence = f"{log_dir} has failed while {doing}: {error.strerror or error}"
        if not self.dirs.fail(log_dir, sentence):
            return
        self._cleaner.give_up(log_dir)
        self.futures.fail(log_dir)
        until = "there is room again" if is_full(error) else "the broker is started again"
        _log.error("%s. Its partitions are offline until %s", sentence, until)
        logs = list(self._logs_in(log_dir))
        if is_full(error):
            self._full_disks.put(log_dir, [Suspended(log, log.disk.is_failed) for log in logs])
        for log in logs:
            log.fail()
            self._offline[log.topic_partition] = log_dir
            self._take_out(log.topic_partition)
        self._on_dir_failure(log_dir, sentence)

    def revival_pass(self) -> int:
        """Brings directories back whose disk was full and has room again; returns how many are looked at."""
        return self._full_disks.probe()

    def _revive(self, log_dir: str, suspended: list[Suspended]) -> None:
        try:
            logs = [self._opener.reload(log) if must_reload else log for log, must_reload in suspended]
        except OSError as e:
            _log.error("%s stays offline: %s", log_dir, e.strerror or e)
            if is_full(e):
                self._full_disks.put(log_dir, suspended)
            return
        self.dirs.revive(log_dir)
        for log in logs:
            log.revive()
            self.dirs.high_watermarks[log.topic_partition] = log.high_watermark
            self._offline.pop(log.topic_partition, None)
            self._add(log)
        _log.info("%s has room again: its %d partitions come back", log_dir, len(logs))
        self._on_dir_revival(log_dir)

    def _logs_in(self, log_dir: str) -> Iterator[Log]:
        return (log for log in self._logs.values() if log.log_dir == log_dir)
