"""AlterReplicaLogDirs: copies replicas to another directory of this broker, and switches over when caught up.

One task copies, a chunk of one partition at a time, so that clients are served in between. The last chunk and the
switch happen in one loop step: nothing can be appended in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from klamm.errors import ErrorCode
from klamm.log import future_logs
from klamm.log.appending import append_as_follower
from klamm.log.results import ReadResult
from klamm.model import TopicPartition
from klamm.protocol.record_batch import batches
from klamm.replica.fetchers import ReplicaFetchers
from klamm.replica.truncation import truncation_for

if TYPE_CHECKING:
    from klamm.log.log import Log
    from klamm.log.log_manager import LogManager
    from klamm.metadata import MetadataCache
    from klamm.replica.partition import Partition

log = logging.getLogger(__name__)

CHUNK_BYTES: Final = 256 * 1024
MAX_PREFERRED: Final = 10_000
"""Replicas that do not exist yet whose directory is remembered. A request may name any topic; the oldest go first."""
_IDLE_S: Final = 0.05


class LogDirMoves:
    """Owner: the ReplicaManager, on the broker loop. `max_bytes_per_s` may change at any time."""

    def __init__(
        self,
        logs: LogManager,
        metadata: MetadataCache,
        partitions: Mapping[TopicPartition, Partition],
        offline: Container[TopicPartition],
        fetchers: Callable[[], ReplicaFetchers],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._logs = logs
        self._metadata = metadata
        self._partitions = partitions
        self._offline = offline
        self._fetchers = fetchers
        self._loop = loop
        self.max_bytes_per_s = 1 << 63
        self._moving: dict[TopicPartition, int] = {}
        """Partitions that are being copied, with the number of truncations of the log in use that the copy has applied.
        """
        self._task: asyncio.Task[None] | None = None

    def alter(self, tp: TopicPartition, path: str) -> ErrorCode:
        """Start to move a replica to the directory `path`; its current directory cancels a move."""
        logs = self._logs
        path = path.rstrip("/") or "/"
        if error := future_logs.is_possible(tp):
            return error
        if path not in logs.dirs.paths:
            return ErrorCode.LOG_DIR_NOT_FOUND
        log_dir = next((d for d in logs.dirs.live if d.path == path), None)
        if log_dir is None or tp in self._offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        partition = self._partitions.get(tp)
        if partition is None or partition.log is None:
            known = self._metadata.partition(*tp) is not None
            logs.preferred_dirs[tp] = path
            if len(logs.preferred_dirs) > MAX_PREFERRED:
                del logs.preferred_dirs[next(iter(logs.preferred_dirs))]
            return ErrorCode.REPLICA_NOT_AVAILABLE if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        future = logs.futures.logs.get(tp)
        if future is not None and future.log_dir != path:
            self._cancel(tp)
            future = None
        if partition.log.log_dir == path:
            return ErrorCode.NONE
        if future is None:
            try:
                logs.futures.create(partition.log, log_dir)
            except OSError as failure:
                logs.failed(path, failure, f"creating a future log of {tp}")
                return ErrorCode.KAFKA_STORAGE_ERROR
            log.info("%s: moving from %s to %s", tp, partition.log.log_dir, path)
        self.resume((partition,))
        return ErrorCode.NONE

    def resume(self, partitions: Iterable[Partition]) -> None:
        """Continue copies, also those of an earlier run, once the leader of the partition is known."""
        futures = self._logs.futures.logs
        for partition in partitions:
            if partition.topic_partition in futures:
                self._moving.setdefault(partition.topic_partition, -1)
        if self._moving and self._task is None:
            self._task = self._loop.create_task(self._run(), name="log-dir-moves")

    def _cancel(self, tp: TopicPartition) -> None:
        self._moving.pop(tp, None)
        self._logs.futures.remove(tp)

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        while self._moving:
            copied = 0
            for tp in list(self._moving):
                step = self._step_or_leave(tp)
                copied += step
                await self._keep_to_limit(step)
            if not copied and self._moving:
                await asyncio.sleep(_IDLE_S)
        self._task = None

    async def _keep_to_limit(self, copied: int) -> None:
        """Yield to others, and wait as the rate limit requires; a new limit applies within a second."""
        owed = float(copied)
        while True:
            limit = max(self.max_bytes_per_s, 1)
            wait_s = min(owed / limit, 1.0)
            await asyncio.sleep(wait_s)
            owed -= wait_s * limit
            if owed < 1:
                return

    def _step_or_leave(self, tp: TopicPartition) -> int:
        """Take a step. After an unexpected error the move rests until the next LeaderAndIsr or restart."""
        try:
            return self._step(tp)
        except Exception:
            log.exception("%s: moving to another directory failed", tp)
            self._moving.pop(tp, None)
            return 0

    def _step(self, tp: TopicPartition) -> int:
        """Copy a chunk, and switch over when nothing is left; returns the bytes copied."""
        partition = self._partitions.get(tp)
        future = self._logs.futures.logs.get(tp)
        if partition is None or partition.log is None or future is None:
            self._moving.pop(tp, None)
            return 0
        copied = self._copy(tp, partition.log, future)
        if isinstance(copied, ErrorCode):
            log.error("%s: moving to %s failed: %s", tp, future.log_dir, copied.name)
            self._cancel(tp)
            return 0
        if future.log_end_offset == partition.log.log_end_offset:
            self._change_over(partition, future)
        return copied

    def _copy(self, tp: TopicPartition, current: Log, future: Log) -> int | ErrorCode:
        if self._moving[tp] != current.truncation_count:
            if error := _follow_truncation(current, future):
                return error
            self._moving[tp] = current.truncation_count
        start = current.log_start_offset
        if future.log_end_offset < start and (error := future.truncate_fully_and_start_at(start)):
            return error
        end = current.log_end_offset
        if future.log_end_offset == end:
            return 0
        found = current.read(future.log_end_offset, CHUNK_BYTES, max_offset=end)
        if not isinstance(found, ReadResult):
            return found
        if not found.records:  # the log was truncated within a batch: there is nothing before its end
            return future.skip_to(end) or 0
        first, at = next(batches(memoryview(found.records))).base_offset, future.log_end_offset
        # the log may start within a batch (DeleteRecords): the copy gets that batch as a whole
        if first < at and (error := future.truncate_fully_and_start_at(first, at)):
            return error
        result = append_as_follower(future, found.records)
        if result.error != ErrorCode.NONE:
            return result.error
        future.update_high_watermark(current.high_watermark)
        return len(found.records)

    def _change_over(self, partition: Partition, future: Log) -> None:
        fetchers, tp = self._fetchers(), partition.topic_partition
        future.update_high_watermark(partition.log.high_watermark if partition.log is not None else 0)
        if partition.log is not None:
            future.increment_log_start_offset(partition.log.log_start_offset)
        fetchers.remove([tp])
        try:
            partition.log = self._logs.swap_with_future(tp)
        except future_logs.SwapError as refused:
            self._logs.failed(refused.log_dir, refused.failure, f"changing over to {future.dir}")
        else:
            log.info("%s: moved to %s", tp, future.log_dir)
            partition.changed()
        finally:  # Also after an unexpected error: a follower without a fetcher would leave the ISR.
            self._moving.pop(tp, None)
            if not partition.is_leader:
                fetchers.add([partition])


def _follow_truncation(current: Log, future: Log) -> ErrorCode:
    """Truncate the copy where it diverges from the log in use, by leader epochs like a follower."""
    while (epoch := future.latest_epoch) is not None:
        truncation = truncation_for(future, current.end_offset_for_epoch(epoch))
        if error := future.truncate_to(min(truncation.offset, current.log_end_offset)):
            return error
        if truncation.is_complete or future.latest_epoch == epoch:
            break
    if future.log_end_offset > current.log_end_offset:
        return future.truncate_to(current.log_end_offset)
    return ErrorCode.NONE
