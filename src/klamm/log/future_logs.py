"""Logs on their way to another directory of the same broker: `<topic>-<partition>.<id>-future`, as in Kafka.

A future log is a copy that grows beside the log in use. When it has caught up it takes that one's name and place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from random import Random

from klamm.errors import ErrorCode
from klamm.log import names
from klamm.log.deletion_queue import DeletionQueue
from klamm.log.log import Log
from klamm.log.log_config import LogConfig
from klamm.log.log_dirs import LogDir
from klamm.log.log_opener import LogOpener
from klamm.model import TopicPartition

_log = logging.getLogger(__name__)


class FutureLogs:
    """Owner: the `LogManager`. One per partition at most."""

    def __init__(self, opener: LogOpener, deletions: DeletionQueue, rng: Random) -> None:
        self._opener = opener
        self._deletions = deletions
        self._rng = rng
        self._logs: dict[TopicPartition, Log] = {}

    @property
    def logs(self) -> Mapping[TopicPartition, Log]:
        return self._logs

    def load(self, tp: TopicPartition, log_dir: LogDir, name: str, config: LogConfig) -> None:
        """A copy that the last run did not complete; a second one of the same partition is removed."""
        path = f"{log_dir.path}/{name}"
        if tp in self._logs:
            _log.warning("removing %s: there is another future log of %s", path, tp)
            self._deletions.put_tree(log_dir.path, path, 0)
        else:
            self._logs[tp] = self._opener.get_future(tp, log_dir, name, config)

    def create(self, current: Log, log_dir: LogDir) -> Log:
        """Begins a copy of `current` in another directory. OSError when the disk refuses."""
        tp = current.topic_partition
        name = names.marked_dir_name(tp, self._unique_id(), names.FUTURE_DIR)
        future = self._logs[tp] = self._opener.get_future(tp, log_dir, name, current.config)
        return future

    def remove(self, tp: TopicPartition) -> None:
        """Gives a copy up; its directory is removed."""
        future = self._logs.pop(tp, None)
        if future is not None:
            future.close_handles()
            self._deletions.put_tree(future.log_dir, future.dir, 0)

    def take(self, tp: TopicPartition) -> Log:
        """The copy, which takes the place of the log in use."""
        return self._logs.pop(tp)

    def fail(self, log_dir: str) -> None:
        """The copies in a directory that has failed are given up; a restart finds them again."""
        for tp, future in list(self._logs.items()):
            if future.log_dir == log_dir:
                future.is_failed = True
                future.close_handles()
                del self._logs[tp]

    def in_dir(self, log_dir: str) -> Iterator[Log]:
        return (log for log in self._logs.values() if log.log_dir == log_dir)

    def close(self, action: Callable[[Log], object]) -> None:
        for log in self._logs.values():
            action(log)

    def _unique_id(self) -> str:
        return f"{self._rng.getrandbits(128):032x}"


def swap(current: Log, future: Log, delete_name: str) -> None:
    """Gives `future` the name of `current`, which is marked for deletion. OSError when the disk refuses."""
    own_name = names.dir_name(current.topic_partition)
    future.config = current.config
    future.cleaner_offset = min(current.cleaner_offset, future.log_end_offset)
    if current.topic_id is not None:
        future.assign_topic_id(current.topic_id)
    if current.latest_epoch is not None and current.latest_epoch != future.latest_epoch:
        future.assign_epoch(current.latest_epoch, future.log_end_offset)
    future.update_high_watermark(current.high_watermark)
    # a crash in between leaves no log and a complete copy: the next start takes the copy
    current.rename_dir(f"{current.log_dir}/{delete_name}")
    try:
        future.rename_dir(f"{future.log_dir}/{own_name}")
    except OSError:
        current.rename_dir(f"{current.log_dir}/{own_name}")  # it stays in use, and a start deletes marked directories
        raise
    current.close_handles()
    future.host.sync_soon(future.log_dir, future.log_dir, future.dir)


def is_possible(tp: TopicPartition) -> ErrorCode:
    """Names of directories are limited: the longest topics cannot be moved, as in Kafka."""
    name = f"{tp.topic}-{tp.partition}.{0:032x}{names.FUTURE_DIR}"
    return ErrorCode.NONE if len(name) <= names.MAX_NAME else ErrorCode.INVALID_TOPIC_EXCEPTION
