"""File work that does not belong on the broker loop.

A job is planned on the loop by the caller of its constructor. It works in another thread, on files that it opens
itself. It is committed on the loop again: the state of a log changes only there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol

from klamm.log.files import Files
from klamm.log.log_config import LogConfig
from klamm.model import ConnectionOrder, TopicPartition


class Job(Protocol):
    log_dir: str

    def work(self) -> None:
        """Do the file work. OSError means that the log directory has failed."""

    def commit(self) -> None:
        """Run on the broker loop after the work."""

    def abandon(self) -> None:
        """Run on the broker loop if the work or its commit has failed: nothing may wait for the job then."""


class Flushable(Protocol):
    """A log with `flush.ms`, as the flush queue sees it."""

    config: LogConfig
    topic_partition: TopicPartition
    is_flush_queued: bool
    """Set by the log when it asks to be queued, and cleared by the queue."""

    @property
    def flush_due_ms(self) -> int | None: ...

    def flush_if_older(self, now_ms: int) -> None: ...


class LogHost(Protocol):
    """The services that a log needs."""

    def submit(self, job: Job) -> None:
        """Run a job; jobs run one after the other."""

    def sync_soon(self, log_dir: str, *paths: str) -> None:
        """Force small files to the disk within about a second, together with those of other logs."""

    def delete_later(self, log_dir: str, paths: Sequence[str], delay_ms: int) -> None:
        """Remove files, which were renamed, after the delay."""

    def failed(self, log_dir: str, error: OSError, doing: str) -> None:
        """Report a failed disk: every log of that directory goes offline."""

    def flushed(self, tp: TopicPartition, recovery_point: int) -> None:
        """Note that the records of a partition before that offset are on the disk."""

    def unflushed(self, log: Flushable) -> None:
        """Note that a log with `flush.ms` has records that are not on the disk."""

    @property
    def youngest_connection(self) -> Callable[[], ConnectionOrder]:
        """Returns the last connection that the broker has accepted; 0 without a broker."""


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
    """Force files to the disk; skip those that were renamed or removed meanwhile."""

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
