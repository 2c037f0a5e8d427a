"""File work that does not belong on the broker loop.

A job is planned on the loop (its constructor's caller), works in another thread on files it opens for itself, and is
committed on the loop again: only there does the state of a log change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol

from klamm.log.files import Files
from klamm.log.log_config import LogConfig
from klamm.model import TopicPartition


class Job(Protocol):
    log_dir: str

    def work(self) -> None:
        """Touches files only. OSError means that the log directory has failed."""

    def commit(self) -> None:
        """Runs on the broker loop once the work is done."""

    def abandon(self) -> None:
        """Runs on the broker loop instead, when the work or its commit has failed: nothing may wait for it any more."""


class Flushable(Protocol):
    """A log with `flush.ms`, as the flush queue sees it."""

    config: LogConfig
    topic_partition: TopicPartition

    @property
    def flush_due_ms(self) -> int | None: ...

    def flush_if_older(self, now_ms: int) -> None: ...


class LogHost(Protocol):
    """What a log asks of its `LogManager`."""

    def submit(self, job: Job) -> None:
        """Runs a job; jobs run one after the other."""

    def sync_soon(self, log_dir: str, *paths: str) -> None:
        """Forces small files to the disk within a second or so, together with those of other logs."""

    def delete_later(self, log_dir: str, paths: Sequence[str], delay_ms: int) -> None:
        """Removes files (already renamed) when the delay is over."""

    def failed(self, log_dir: str, error: OSError, doing: str) -> None:
        """A disk failed: every log of that directory is offline from now on."""

    def flushed(self, tp: TopicPartition, recovery_point: int) -> None:
        """What a partition has before that offset is on the disk."""

    def unflushed(self, log: Flushable) -> None:
        """Note that a log with `flush.ms` has records that are not on the disk."""


class InlineHost:
    """Does everything at once: for tools and tests that have no loop."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.failures: list[tuple[str, OSError, str]] = []

    def submit(self, job: Job) -> None:
        job.work()
        job.commit()

    def sync_soon(self, log_dir: str, *paths: str) -> None:
        self.submit(fsync_job(self._files, log_dir, paths))

    def delete_later(self, log_dir: str, paths: Sequence[str], delay_ms: int) -> None:
        for path in paths:
            self._files.unlink(path)

    def failed(self, log_dir: str, error: OSError, doing: str) -> None:
        self.failures.append((log_dir, error, doing))

    def flushed(self, tp: TopicPartition, recovery_point: int) -> None:
        pass

    def unflushed(self, log: Flushable) -> None:
        pass


class FileJob:
    """A job made of functions."""

    def __init__(
        self,
        log_dir: str,
        work: Callable[[], None],
        commit: Callable[[], None] = lambda: None,
        abandon: Callable[[], None] = lambda: None,
    ) -> None:
        self.log_dir = log_dir
        self.work = work
        self.commit = commit
        self.abandon = abandon


def fsync_job(
    files: Files,
    log_dir: str,
    paths: Sequence[str],
    commit: Callable[[], None] = lambda: None,
    abandon: Callable[[], None] = lambda: None,
) -> FileJob:
    """Forces files to the disk; those that were renamed or removed meanwhile are passed over."""

    def work() -> None:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                files.fsync_path(path)

    return FileJob(log_dir, work, commit, abandon)


def unlink_job(files: Files, log_dir: str, paths: Sequence[str]) -> FileJob:
    def work() -> None:
        for path in paths:
            files.unlink(path)

    return FileJob(log_dir, work)
