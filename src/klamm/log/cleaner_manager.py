"""Which compacted log is cleaned next: the dirtiest, one at a time, looked for in slices of all logs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from klamm.errors import ErrorCode
from klamm.log.cleaner import CleanJob, LogToClean, dirtiest
from klamm.log.log import Log
from klamm.log.log_environment import LogEnvironment
from klamm.model import TopicPartition


class LogCleanerManager:
    """Owner: the `LogManager`. Calls `on_cleaned` after the `cleaner_offset` of a log has moved."""

    def __init__(
        self,
        env: LogEnvironment,
        *,
        is_in_use: Callable[[Log], bool],
        on_cleaned: Callable[[Log], None],
    ) -> None:
        self._env = env
        self._is_in_use = is_in_use
        self._on_cleaned = on_cleaned
        self._job: CleanJob | None = None
        self._uncleanable: set[TopicPartition] = set()

    def compaction_pass(self, slices: Iterable[list[Log]], now_ms: int) -> Iterator[bool]:
        """Start to clean the dirtiest log, unless one is being cleaned; yield True in the last step if there is one."""
        if self._job is not None:
            return
        best: LogToClean | None = None
        for part in slices:
            found = self._dirtiest(part, now_ms)
            if found is not None and (best is None or found.dirty_ratio > best.dirty_ratio):
                best = found
            yield False
        if best is not None and self._start(best.log, now_ms):
            yield True

    def forget(self, log: Log) -> None:
        """Note that a log is gone: a new one of the same name may be cleaned."""
        self._uncleanable.discard(log.topic_partition)

    def give_up(self, log_dir: str) -> None:
        """Ignore the cleaning of a log whose directory has failed."""
        if self._job is not None and self._job.log_dir == log_dir:
            self._job = None

    def _dirtiest(self, logs: Iterable[Log], now_ms: int) -> LogToClean | None:
        usable = (log for log in logs if self._is_in_use(log) and log.topic_partition not in self._uncleanable)
        return dirtiest(usable, now_ms, self._set_uncleanable)

    def _start(self, log: Log, now_ms: int) -> bool:
        """Check the log again, which may have been truncated or deleted since, and clean it."""
        target = self._dirtiest([log], now_ms)
        if target is None:
            return False
        job = log.disk.run("planning to clean", lambda: CleanJob(self._env, target, now_ms, self._cleaned))
        if isinstance(job, ErrorCode):
            self._set_uncleanable(log)
            return False
        self._job = job
        self._env.host.submit(job)
        return True

    def _set_uncleanable(self, log: Log) -> None:
        if self._is_in_use(log):
            self._uncleanable.add(log.topic_partition)

    def _cleaned(self, job: CleanJob, cleaned_to: int | None) -> None:
        if job.is_uncleanable:
            self._set_uncleanable(job.log)
        if self._job is job:
            self._job = None
        if cleaned_to is not None:
            job.log.set_cleaner_offset(cleaned_to)
            self._on_cleaned(job.log)
