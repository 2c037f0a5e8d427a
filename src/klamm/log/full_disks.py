"""Log directories that are offline because their disk is full. They come back when there is room again.

A full disk is intact, so the logs need not be loaded again. Only a log whose own write failed is loaded and recovered
again, because it is unknown how far that write got.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from typing import Final, NamedTuple

from klamm.log.files import Files
from klamm.log.jobs import FileJob
from klamm.log.log import Log
from klamm.model import TopicPartition

RELEASED_PER_SLICE: Final = 200
"""Logs of a failed directory that are closed before the loop serves others: 20,000 took 70 ms."""
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
    """Owner: the `LogManager`. `revive(log_dir, logs)` is called on the loop once a directory can be written again."""

    def __init__(
        self, files: Files, submit: Callable[[FileJob], None], revive: Callable[[str, list[Suspended]], None]
    ) -> None:
        self._files = files
        self._submit = submit
        self._revive = revive
        self._waiting: dict[str, list[Suspended]] = {}
        self._probed: set[str] = set()

    def __iter__(self) -> Iterator[str]:
        return iter(self._waiting)

    def suspend(self, log_dir: str, broken: Container[TopicPartition], logs: Iterable[Log]) -> None:
        """Keep the logs until there is room. Those that are `broken` have to be loaded again."""
        self.put(log_dir, [Suspended(log, log.topic_partition in broken) for log in logs])

    def put(self, log_dir: str, logs: list[Suspended]) -> None:
        self._waiting[log_dir] = logs

    def probe(self) -> int:
        """Check, off the loop, whether the directories have room; return how many are checked."""
        started = [log_dir for log_dir in self._waiting if log_dir not in self._probed]
        for log_dir in started:
            self._probed.add(log_dir)
            self._submit(self._job(log_dir))
        return len(started)

    def _job(self, log_dir: str) -> FileJob:
        def work() -> None:
            total, usable = self._files.disk_usage(log_dir)
            if usable < min(_ENOUGH_BYTES, total * _ENOUGH_SHARE):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), log_dir)
            path = f"{log_dir}/{PROBE}"
            try:
                self._files.write_atomic(path, bytes(_PROBE_BYTES))
            finally:
                self._files.unlink(path)

        def commit() -> None:
            self._probed.discard(log_dir)
            self._revive(log_dir, self._waiting.pop(log_dir))

        return FileJob(log_dir, work, commit, lambda: self._probed.discard(log_dir))
