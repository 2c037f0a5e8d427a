"""Logs on their way to another directory of the same broker: `<topic>-<partition>.<id>-future`, as in Kafka.

A future log is a copy that grows beside the log in use. When it has caught up it takes that one's name and place.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
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
        """Load a copy that the last run did not complete; remove a second one of the same partition."""
        path = f"{log_dir.path}/{name}"
        if tp in self._logs:
            _log.warning("removing %s: %s has another future log", path, tp)
            self._deletions.put_tree(log_dir.path, path, 0)
        else:
            self._logs[tp] = self._opener.get_future(tp, log_dir, name, config)

    def create(self, current: Log, log_dir: LogDir) -> Log:
        """Begin a copy of `current` in another directory. Raises OSError if the disk fails."""
        tp = current.topic_partition
        name = names.marked_dir_name(tp, _unique_id(self._rng), names.FUTURE_DIR)
        future = self._logs[tp] = self._opener.get_future(tp, log_dir, name, current.config)
        return future

    def remove(self, tp: TopicPartition) -> None:
        """Cancel a copy and remove its directory.

        The directory is first renamed as a deleted log. Otherwise, after a crash, the next start would continue a
        cancelled move, or mistake the unfinished copy of a deleted log for the copy of an interrupted swap.
        """
        future = self._logs.pop(tp, None)
        if future is None:
            return
        future.close_handles()
        try:
            future.rename_dir(f"{future.log_dir}/{delete_name(tp, self._rng)}")
        except OSError as e:
            future.env.host.failed(future.log_dir, e, f"deleting {future.dir}")
            return
        self._deletions.put_tree(future.log_dir, future.dir, 0)

    def take(self, tp: TopicPartition) -> Log:
        """Return the copy, which replaces the log in use, and forget it."""
        return self._logs.pop(tp)

    def fail(self, log_dir: str) -> None:
        """Cancel the copies in a directory that has failed; a restart finds them again."""
        for tp, future in list(self._logs.items()):
            if future.log_dir == log_dir:
                future.disk.set_failed(True)
                future.close_handles()
                del self._logs[tp]

    def in_dir(self, log_dir: str) -> Iterator[Log]:
        return (log for log in self._logs.values() if log.log_dir == log_dir)


class SwapError(Exception):
    """A disk failed while a copy was to replace its log. The log stays in use."""

    def __init__(self, log_dir: str, failure: OSError) -> None:
        super().__init__(f"{log_dir}: {failure}")
        self.log_dir = log_dir
        self.failure = failure


def delete_name(tp: TopicPartition, rng: Random) -> str:
    """Return a name that marks a directory for removal, also after a crash."""
    return names.marked_dir_name(tp, _unique_id(rng), names.DELETE_DIR)


def _unique_id(rng: Random) -> str:
    return f"{rng.getrandbits(128):032x}"


def swap(current: Log, future: Log, deleted: str) -> None:
    """Give `future` the name of `current`, which gets the name `deleted`. Raises SwapError if a disk fails."""
    try:
        _prepare(current, future)
    except OSError as e:
        raise SwapError(future.log_dir, e) from e
    own_name = names.dir_name(current.topic_partition)
    # A crash in between leaves a complete copy and no log: the next start uses the copy.
    try:
        current.rename_dir(f"{current.log_dir}/{deleted}")
    except OSError as e:
        raise SwapError(current.log_dir, e) from e
    try:
        future.rename_dir(f"{future.log_dir}/{own_name}")
    except OSError as e:
        _undo(current, own_name)
        raise SwapError(future.log_dir, e) from e
    current.close_handles()
    # The old name first: after a power failure there must not be two logs of the partition.
    current.env.host.sync_soon(current.log_dir, current.log_dir)
    future.env.host.sync_soon(future.log_dir, future.log_dir, future.dir)


def _undo(current: Log, own_name: str) -> None:
    """Give the log its name back: a start would delete a marked directory."""
    try:
        current.rename_dir(f"{current.log_dir}/{own_name}")
    except OSError as e:
        raise SwapError(current.log_dir, e) from e


def _prepare(current: Log, future: Log) -> None:
    """Give the copy everything that it needs to replace the log."""
    future.update_config(current.config)
    future.set_cleaner_offset(current.cleaner_offset)
    if current.topic_id is not None:
        future.assign_topic_id(current.topic_id)
    if current.latest_epoch is not None and current.latest_epoch != future.latest_epoch:
        future.assign_epoch(current.latest_epoch, future.log_end_offset)
    future.update_high_watermark(current.high_watermark)


def is_possible(tp: TopicPartition) -> ErrorCode:
    """Check the length of the directory name: as in Kafka, logs of the longest topics cannot be moved."""
    name = f"{tp.topic}-{tp.partition}.{0:032x}{names.FUTURE_DIR}"
    return ErrorCode.NONE if len(name) <= names.MAX_NAME else ErrorCode.INVALID_TOPIC_EXCEPTION
