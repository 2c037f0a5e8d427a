"""All logs of a broker: loading, creating and deleting them, and directories that fail and come back.

Owner: the broker loop. Periodic work is in `passes` and `checkpoints`, which the server calls at their intervals.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from random import Random
from typing import Final
from uuid import UUID

from klamm.clock import Clock
from klamm.errors import ErrorCode, KlammError, LogDirError
from klamm.lazy_dataclass import lazy_dataclass
from klamm.log.checkpoints import MetaProperties
from klamm.log.cleaner_manager import LogCleanerManager
from klamm.log.files import Files, OsFiles, is_exhausted
from klamm.log.full_disks import FullDisks, is_full, release
from klamm.log.future_logs import FutureLogs, delete_name, swap
from klamm.log.hosted_logs import HostedLogs
from klamm.log.log import Log
from klamm.log.log_checkpoints import LogCheckpoints
from klamm.log.log_config import LogConfig
from klamm.log.log_contents import LoadedLog
from klamm.log.log_dir_loader import LogDirLoader
from klamm.log.log_dirs import LogDir, LogDirs
from klamm.log.log_environment import LogEnvironment
from klamm.log.log_opener import LogOpener
from klamm.log.log_passes import LogPasses
from klamm.log.log_services import LogServices
from klamm.log.open_segments import DEFAULT_MAX_OPEN, OpenSegments
from klamm.model import ConnectionOrder, TopicPartition

_log = logging.getLogger(__name__)
_DAY_MS: Final = 86_400_000
SYNC_FILES_TOGETHER: Final = 500
"""A clean stop with more files than this to force to a disk begins by writing out the whole disk."""


@lazy_dataclass(frozen=True, slots=True)
class LogLimits:
    producer_id_expiration_ms: int = _DAY_MS
    max_open_segments: int = DEFAULT_MAX_OPEN


@lazy_dataclass(frozen=True, slots=True)
class LogEvents:
    """Callbacks of a `LogManager`. They are called in the middle of its work, so they must only post.

    `on_dir_failure(log_dir, sentence)`: a directory went offline. `on_dir_revival(log_dir)`: it came back.
    `on_flushed(tp, recovery_point)`: records before that offset are on the disk.
    """

    on_dir_failure: Callable[[str, str], None] = lambda log_dir, sentence: None
    on_dir_revival: Callable[[str], None] = lambda log_dir: None
    on_flushed: Callable[[TopicPartition, int], None] = lambda tp, recovery_point: None


class LogManager:
    """`topic_config(topic)` returns the configuration of a topic's logs; without it all have `default_config`."""

    def __init__(
        self,
        log_dirs: Sequence[str],
        *,
        clock: Clock,
        rng: Random,
        default_config: LogConfig | None = None,
        topic_config: Callable[[str], LogConfig] | None = None,
        files: Files | None = None,
        limits: LogLimits | None = None,
        events: LogEvents | None = None,
    ) -> None:
        limits = limits or LogLimits()
        self.default_config = default_config or LogConfig()
        self._topic_config = topic_config or (lambda topic: self.default_config)
        self._events = events or LogEvents()
        self._rng = rng
        self._owner = threading.get_ident()
        self._pool = OpenSegments(limits.max_open_segments)
        self._files: Files = files or OsFiles(self._close_idle)
        self.dirs = LogDirs(log_dirs, self._files)
        self.had_clean_shutdown = False
        """Whether the last run left its mark in every directory. If not, any log may have lost its unflushed tail."""
        self._found_damage = False
        self._hosted = hosted = HostedLogs()
        self._offline: dict[TopicPartition, str] = {}
        self._services = services = LogServices(
            self._files,
            clock,
            close_idle=self._close_idle,
            is_in_use=hosted.is_in_use,
            on_failure=self.failed,
            on_flushed=self._events.on_flushed,
        )
        env = LogEnvironment(self._files, clock, rng, services, self._pool, limits.producer_id_expiration_ms)
        self._opener = LogOpener(env)
        self.futures = FutureLogs(self._opener, services.deletions, rng)
        self.preferred_dirs: dict[TopicPartition, str] = {}
        """Where a partition that does not exist yet is to be created."""
        self._full_disks = FullDisks(
            self._files,
            services.submit,
            services.run_in_steps,
            reload=self._opener.reload,
            bring_back=self._bring_back,
            on_return=self._on_return,
        )
        self.checkpoints = LogCheckpoints(env, self.dirs, hosted)
        self._cleaner = LogCleanerManager(
            env, is_in_use=hosted.is_in_use, on_cleaned=self.checkpoints.write_cleaner_offset
        )
        self.passes = LogPasses(
            hosted,
            cleaner=self._cleaner,
            deletions=services.deletions,
            flushes=services.flushes,
            full_disks=self._full_disks,
        )

    # starting and stopping

    def start_background(self, loop: asyncio.AbstractEventLoop, executor: Executor | None = None) -> None:
        """From now on do file work in a thread (or `executor`), and commit it on `loop`."""
        self._services.start(loop, executor)

    def number_connections(self, last: Callable[[], ConnectionOrder]) -> None:
        """`last` returns the youngest connection of the broker. Logs remember it with aborted transactions."""
        self._services.youngest_connection = last

    def load_logs(self, owner: MetaProperties | None = None) -> None:
        """Lock and read every log directory. LogDirError: another broker uses one, or none can be used.

        With `owner`, raise KlammError if a directory belongs to another broker; nothing is changed then.
        """
        self.dirs.open_all()
        if owner is not None:
            self._claim(owner)
        self.had_clean_shutdown = all(log_dir.had_clean_shutdown for log_dir in self.dirs.live)
        loader = LogDirLoader(
            self._files,
            self._hosted,
            self.futures,
            self._opener,
            self._services.deletions,
            self._add,
            self._config_of,
            self.default_config.file_delete_delay_ms,
        )
        for log_dir in tuple(self.dirs.live):
            try:
                log_dir.take_into_use()
                loader.load(log_dir)
                self.checkpoints.adopt(log_dir)
                loader.look_for_damage(log_dir)
                log_dir.forget_start_state()
            except OSError as e:
                self._take_offline(log_dir.path, e, "loading its logs")
        if not self.dirs.failures:
            loader.adopt_complete_copies()
        loader.report_missing()
        self._found_damage = loader.found_damage
        if not self.dirs.live:
            raise LogDirError("no log directory can be used: " + "; ".join(self.dirs.failures.values()))

    @property
    def may_lack_records(self) -> bool:
        """Whether a log may lack records that this broker had acknowledged when it was last in an ISR."""
        return not self.had_clean_shutdown or self._found_damage

    def _claim(self, owner: MetaProperties) -> None:
        try:
            self.dirs.claim(owner)
        except KlammError:
            self.dirs.release()
            raise

    def _config_of(self, topic: str) -> LogConfig:
        """Return the configuration that all logs of a topic share; `config_pass` keeps it current.

        It does not reach logs on a failed directory, some of which may not have been closed yet.
        """
        for log in filter(self._hosted.is_in_use, self._hosted.of_topic(topic)):
            return log.config
        return self._topic_config(topic)

    def shutdown(
        self,
        high_watermarks: Mapping[TopicPartition, int] | None = None,
        broker_epoch: int = -1,
        *,
        is_clean: bool = True,
    ) -> None:
        """Flush and close every log. If `is_clean`, leave the mark of a clean stop in every live directory."""
        self._services.stop()
        self._full_disks.stop()
        for log_dir in self.dirs.live:
            self._guard_dir(log_dir, self._close_logs)
        self.checkpoints.write_recovery_points()
        self.checkpoints.write_log_start_offsets()
        if high_watermarks is not None:
            self.checkpoints.write_high_watermarks(high_watermarks)
        if is_clean:
            for log_dir in self.dirs.live:
                self._guard_dir(log_dir, lambda d: self._mark_clean(d, broker_epoch))
        self.dirs.release()

    def _mark_clean(self, log_dir: LogDir, broker_epoch: int) -> None:
        log_dir.mark_clean_shutdown(broker_epoch)
        self.checkpoints.write_summaries(log_dir)

    def _close_logs(self, log_dir: LogDir) -> None:
        """Many files are written out together first, so that the fsync of each has little left to do."""
        logs = (*self._hosted.in_dir(log_dir.path), *self.futures.in_dir(log_dir.path))
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
        """Close everything without completing it, like a killed process."""
        self._services.abandon()
        self._full_disks.stop()
        for log in (*self._hosted.logs.values(), *self.futures.logs.values()):
            log.close_handles()
        self.dirs.release()

    # finding, creating and deleting

    def get_log(self, tp: TopicPartition) -> Log | None:
        """Return the log, or None if there is none or its directory is offline."""
        return self._hosted.get(tp)

    @property
    def logs(self) -> Mapping[TopicPartition, Log]:
        """The logs that can be used."""
        return self._hosted.logs

    def get_or_create_log(self, tp: TopicPartition, topic_id: UUID | None = None, *, is_new: bool = False) -> Log:
        """Return the log of a partition. LogDirError: it is, or may be, on a directory that has failed."""
        log = self._hosted.get(tp)
        if log is None:
            log = self._create(tp, is_new=is_new)
        if topic_id is not None and log.topic_id is None:
            log.assign_topic_id(topic_id)
        return log

    def is_offline(self, tp: TopicPartition) -> bool:
        """Whether the log is, or may be, on a directory that has failed."""
        return tp in self._offline or (bool(self.dirs.failures) and self._hosted.get(tp) is None)

    def _create(self, tp: TopicPartition, *, is_new: bool) -> Log:
        if tp in self._offline:
            raise LogDirError(f"{tp} is on {self._offline[tp]}, which has failed")
        if not is_new and self.dirs.failures:
            raise LogDirError(f"{tp} may be on {', '.join(self.dirs.failures)}, which has failed")
        if not self.dirs.live:
            raise LogDirError("no log directory is left")
        preferred = self.preferred_dirs.pop(tp, None)
        log_dir = min(self.dirs.live, key=lambda d: (d.path != preferred, self._hosted.count_in(d.path)))
        try:
            log = self._opener.get(tp, log_dir, self._config_of(tp.topic))
        except OSError as e:
            self.failed(log_dir.path, e, f"creating {tp}")
            raise LogDirError(f"{tp} cannot be created in {log_dir.path}: {e.strerror or e}") from e
        self._add(log)
        return log

    def _add(self, log: Log) -> None:
        self._hosted.add(log)
        self._services.flushes.put(log)

    def _remove(self, tp: TopicPartition) -> Log | None:
        log = self._hosted.remove(tp)
        if log is not None:
            self._forget(log)
        return log

    def _forget(self, log: Log) -> None:
        self._cleaner.forget(log)
        self.checkpoints.forget(log)

    def delete_unrecorded(self, tp: TopicPartition) -> ErrorCode:
        """Delete one log. When it has deleted all logs, the caller runs `checkpoints.deletion_pass`."""
        if tp in self._offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        self.futures.remove(tp)
        log = self._remove(tp)
        if log is None:
            return ErrorCode.NONE
        self.checkpoints.note_deletion(log)
        path = f"{log.log_dir}/{delete_name(tp, self._rng)}"
        try:
            log.close_handles()
            log.rename_dir(path)
        except OSError as e:
            self.failed(log.log_dir, e, f"deleting {tp}")
            return ErrorCode.KAFKA_STORAGE_ERROR
        self._services.deletions.put_tree(log.log_dir, path, log.config.file_delete_delay_ms)
        return ErrorCode.NONE

    def swap_with_future(self, tp: TopicPartition) -> Log:
        """Replace the log in use by its copy; the old one is removed later. SwapError: a disk refused."""
        current, future = self._hosted.logs[tp], self.futures.logs[tp]
        swap(current, future, delete_name(tp, self._rng))
        self._remove(tp)
        self._add(self.futures.take(tp))
        self._services.deletions.put_tree(current.log_dir, current.dir, current.config.file_delete_delay_ms)
        self.checkpoints.amend([current, future])
        return future

    def config_pass(self, topic: str, config: LogConfig) -> Iterator[None]:
        """Give every log of a topic another configuration, one log per step.

        The first log of the topic is the first to get it, so that a new log gets it too: see `_config_of`.
        """
        for log in filter(self._hosted.is_in_use, list(self._hosted.of_topic(topic))):
            log.update_config(config)
            self._services.flushes.put(log)
            yield

    @property
    def topics(self) -> Collection[str]:
        """The topics that have logs here."""
        return self._hosted.topics

    # directories that fail

    def _close_idle(self) -> bool:
        """Close segments that are not in use: too many files are open. Segments belong to the thread of the loop."""
        return threading.get_ident() == self._owner and self._pool.close_idle() > 0

    def failed(self, log_dir: str, error: OSError, doing: str) -> None:
        """Take a directory offline: its logs return KAFKA_STORAGE_ERROR until the broker is restarted.

        A directory whose disk is full comes back when there is room. Too many open files are not a failure of a
        directory.
        """
        if is_exhausted(error):
            _log.error("%s: %s failed: too many open files; raise the limit of open files", log_dir, doing)
        else:
            self._take_offline(log_dir, error, doing)

    def _take_offline(self, log_dir: str, error: OSError, doing: str) -> None:
        sentence = f"{log_dir} has failed while {doing}: {error.strerror or error}"
        not_returned = self._full_disks.interrupt(log_dir)
        if not_returned is None and not self.dirs.fail(log_dir, sentence):
            return
        self._cleaner.give_up(log_dir)
        self.futures.fail(log_dir)
        self.checkpoints.forget_dir(log_dir)
        until = "there is room again" if is_full(error) else "the broker is restarted"
        _log.error("%s. Its partitions are offline until %s", sentence, until)
        logs = self._hosted.remove_dir(log_dir)
        broken = {tp for tp, log in logs.items() if log.disk.is_failed}
        suspend = partial(self._full_disks.suspend, log_dir, broken, not_returned or ())
        for log in logs.values():
            log.disk.set_failed(True)
        self._offline.update(dict.fromkeys(logs, log_dir))
        close = partial(self._release, broken)
        self._services.run_in_steps(release(logs.values(), close, suspend if is_full(error) else None))
        self._events.on_dir_failure(log_dir, sentence)

    def _release(self, broken: set[TopicPartition], log: Log) -> None:
        """Close a log of a failed directory. Those that are `broken` are loaded again before they are used."""
        if log.remove_stale_indexes():
            broken.add(log.topic_partition)
        log.close_handles()
        self._hosted.forget(log)
        self._forget(log)

    def _bring_back(self, log: Log, reloaded: LoadedLog | None) -> None:
        """Use a log again whose disk was full. The configuration of its topic may have changed meanwhile."""
        if reloaded is not None:
            log = self._opener.replaced(log, reloaded)
        log.update_config(self._config_of(log.topic_partition.topic))
        log.disk.set_failed(False)
        self.dirs.high_watermarks[log.topic_partition] = log.high_watermark
        self._offline.pop(log.topic_partition, None)
        self._add(log)

    def _on_return(self, log_dir: str, count: int) -> None:
        self.dirs.revive(log_dir)
        _log.info("%s has room again: its %d partitions are back online", log_dir, count)
        self._events.on_dir_revival(log_dir)
