"""Log directories that are offline because their disk is full. They come back when there is room again.

A full disk is intact, so most logs need not be loaded again. A log whose own write failed is loaded and recovered
again, because it is unknown how far that write got. So is a log that was truncated and whose indexes were not written
since: their files had entries of batches that were cut off. This is done off the loop, and the logs return in steps.
Their directory counts as failed until the last step.
"""

from __future__ import annotations

import errno
import logging
import os
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from klamm.log.files import Files, is_exhausted
from klamm.log.jobs import FileJob
from klamm.log.log import Log
from klamm.log.log_contents import LoadedLog
from klamm.model import TopicPartition

_log = logging.getLogger(__name__)
RELEASED_PER_SLICE: Final = 50
"""Logs of a failed directory that are closed before the loop serves others: an open segment takes 50 microseconds."""
RETURNED_PER_STEP: Final = 10
"""Logs that are used again before the loop serves others: half a millisecond if each reads its topic's configuration.
"""
PROBE: Final = ".klamm-probe"
_PROBE_BYTES: Final = 64 * 1024
_ENOUGH_BYTES: Final = 64 * 1024 * 1024
_ENOUGH_SHARE: Final = 0.02


def is_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def release(
    logs: Collection[Log], close: Callable[[Log], None], suspend: Callable[[Collection[Log]], None] | None
) -> Iterator[None]:
    """Close the logs of a failed directory, in slices, and pass them to `suspend` if they may come back."""
    for number, log in enumerate(logs, 1):
        close(log)
        if number % RELEASED_PER_SLICE == 0:
            yield
    if suspend is not None:
        suspend(logs)


class Suspended(NamedTuple):
    log: Log
    must_reload: bool


class FullDisks:
    """Owner: the `LogManager`.

    `reload(log)` is called off the loop. For each log, `bring_back(log, reloaded)` is called on the loop, and in the
    last step `on_return(log_dir, count)`.
    """

    def __init__(
        self,
        files: Files,
        submit: Callable[[FileJob], None],
        run_in_steps: Callable[[Iterator[None]], None],
        *,
        reload: Callable[[Log], LoadedLog],
        bring_back: Callable[[Log, LoadedLog | None], None],
        on_return: Callable[[str, int], None],
    ) -> None:
        self._files = files
        self._submit = submit
        self._run_in_steps = run_in_steps
        self._reload = reload
        self._bring_back = bring_back
        self._on_return = on_return
        self._waiting: dict[str, list[Suspended]] = {}
        self._probed: set[str] = set()
        self._returning: dict[str, deque[Suspended]] = {}
        """The logs that are left of directories with room."""

    def __iter__(self) -> Iterator[str]:
        return iter(self._waiting)

    def suspend(
        self, log_dir: str, broken: Container[TopicPartition], others: Iterable[Suspended], logs: Iterable[Log]
    ) -> None:
        """Keep the logs until there is room. Those that are `broken` have to be loaded again.

        `others` had not returned when the directory failed again.
        """
        suspended = [Suspended(log, log.topic_partition in broken) for log in logs]
        self._waiting[log_dir] = [*others, *suspended]

    def interrupt(self, log_dir: str) -> Collection[Suspended] | None:
        """End the return of a directory that fails again: give the logs that are left. None if it is not returning."""
        return self._returning.pop(log_dir, None)

    def stop(self) -> None:
        """Leave directories whose return has not ended as they are."""
        self._returning.clear()

    def probe(self) -> int:
        """Check, off the loop, whether the directories have room; return how many are checked."""
        started = [log_dir for log_dir in self._waiting if log_dir not in self._probed]
        for log_dir in started:
            self._probed.add(log_dir)
            self._submit(self._job(log_dir, self._waiting[log_dir]))
        return len(started)

    def _job(self, log_dir: str, suspended: list[Suspended]) -> FileJob:
        reloaded: dict[TopicPartition, LoadedLog] = {}
        failures: list[OSError] = []

        def work() -> None:
            self._check_room(log_dir)
            try:
                reloaded.update({log.topic_partition: self._reload(log) for log, is_broken in suspended if is_broken})
            except OSError as e:
                if is_full(e) or is_exhausted(e):
                    raise
                failures.append(e)

        def commit() -> None:
            self._probed.discard(log_dir)
            del self._waiting[log_dir]
            if failures:
                _log.error("%s stays offline until the broker is restarted: %s", log_dir, failures[-1].strerror)
            else:
                self._run_in_steps(self._return(log_dir, suspended, reloaded))

        return FileJob(log_dir, work, commit, lambda: self._probed.discard(log_dir))

    def _check_room(self, log_dir: str) -> None:
        """Raise OSError if the disk is still full."""
        total, usable = self._files.disk_usage(log_dir)
        if usable < min(_ENOUGH_BYTES, total * _ENOUGH_SHARE):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), log_dir)
        path = f"{log_dir}/{PROBE}"
        try:
            self._files.write_atomic(path, bytes(_PROBE_BYTES))
        finally:
            self._files.unlink(path)

    def _return(
        self, log_dir: str, suspended: Collection[Suspended], reloaded: Mapping[TopicPartition, LoadedLog]
    ) -> Iterator[None]:
        left = self._returning[log_dir] = deque(suspended)
        while left:
            for _ in range(min(RETURNED_PER_STEP, len(left))):
                log = left.popleft().log
                self._bring_back(log, reloaded.get(log.topic_partition))
            yield
            if self._returning.get(log_dir) is not left:
                return
        del self._returning[log_dir]
        self._on_return(log_dir, len(suspended))
