"""How far a log is on the disk, and the flush in progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from klamm.clock import elapsed_ms
from klamm.log.disk_guard import DiskGuard
from klamm.log.jobs import fsync_job
from klamm.log.log_environment import LogEnvironment
from klamm.model import TopicPartition


class LogFlusher:
    """Owner: the `Log`. One flush per log is in progress at a time; later requests are served by the next one.

    Batches before `recovery_point` are on the disk: recovery after an unclean stop begins there. `has_unflushed_files`
    says that the log was truncated or recovered and not flushed since, so that old indexes may be on the disk.
    `prepare(recovery_point, offset)` completes the files between these offsets and returns their paths.
    """

    __slots__ = (
        "_env",
        "_generation",
        "_guard",
        "_is_under_way",
        "_log_dir",
        "_prepare",
        "_topic_partition",
        "has_unflushed_files",
        "last_flush_ms",
        "recovery_point",
        "requested_offset",
    )

    def __init__(
        self,
        env: LogEnvironment,
        topic_partition: TopicPartition,
        log_dir: str,
        guard: DiskGuard,
        prepare: Callable[[int, int], Sequence[str]],
    ) -> None:
        self._env = env
        self._topic_partition = topic_partition
        self._log_dir = log_dir
        self._guard = guard
        self._prepare = prepare
        self.recovery_point = 0
        self.requested_offset = 0
        self.last_flush_ms = elapsed_ms(env.clock)
        self.has_unflushed_files = False
        self._is_under_way = False
        self._generation = 0

    def start_at(self, recovery_point: int, *, is_recovered: bool = False) -> None:
        """Begin with a log that was loaded."""
        self.recovery_point = self.requested_offset = recovery_point
        self.has_unflushed_files = is_recovered

    def flush(self, offset: int) -> None:
        """Force everything before `offset` to the disk, off the loop. Raises OSError if the disk fails."""
        self.requested_offset = max(self.requested_offset, offset)
        if offset <= self.recovery_point or self._is_under_way:
            return
        paths = self._prepare(self.recovery_point, offset)
        generation = self._generation
        self._is_under_way = True

        def commit() -> None:
            self._is_under_way = False
            if generation == self._generation:
                self.complete(max(self.recovery_point, offset))
                self.last_flush_ms = elapsed_ms(self._env.clock)
                self._env.host.flushed(self._topic_partition, self.recovery_point)
            if self.requested_offset > self.recovery_point:
                self._guard.done("flushing", lambda: self.flush(self.requested_offset))

        def abandon() -> None:
            self._is_under_way = False

        self._env.host.submit(fsync_job(self._env.files, self._log_dir, paths, commit, abandon))

    def complete(self, offset: int) -> None:
        """Note that everything before `offset` is on the disk."""
        self.recovery_point = offset
        self.has_unflushed_files = False

    def truncate_to(self, offset: int) -> None:
        """Ignore the flush in progress: the log is being truncated."""
        self._generation += 1
        self.has_unflushed_files = True
        self.recovery_point = min(self.recovery_point, offset)
        self.requested_offset = min(self.requested_offset, offset)

    def advance_to(self, offset: int) -> None:
        """Note that records before `offset` were deleted and need no recovery."""
        self.recovery_point = max(self.recovery_point, offset)
