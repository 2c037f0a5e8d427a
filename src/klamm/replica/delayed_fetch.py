"""Fetch: read now, or wait until there is enough to read. Checking again costs what changed, not what was requested."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from klamm.errors import ErrorCode
from klamm.replica.fetch_path import (
    FetchParams,
    Reads,
    answer,
    bytes_to_wait_for,
    is_held_back,
    owes_high_watermark,
    read_all,
)
from klamm.replica.fetch_session import Readers, SessionPartition, place_of
from klamm.replica.partition_reader import PartitionRead, end_of, readable_log
from klamm.replica.replica_manager import ReplicaManager


def fetch_messages(
    replicas: ReplicaManager, params: FetchParams, session: Readers, partitions: Sequence[SessionPartition]
) -> Reads | asyncio.Future[Reads]:
    """Read now, and again later if there was less than `min_bytes` and nothing to report at once."""
    reads = read_all(replicas, params, partitions)
    may_wait = params.max_wait_ms > 0 and (reads or session.id)
    if not may_wait or not bytes_to_wait_for(replicas, params, reads, params.min_bytes):
        return answer(replicas, params, reads)
    delayed = DelayedFetch(replicas, params, session)
    delayed.add(reads)
    return park(replicas, params, delayed)


def park(replicas: ReplicaManager, params: FetchParams, delayed: DelayedFetch) -> Reads | asyncio.Future[Reads]:
    """Wait for changes of the partitions that `delayed` follows."""
    waiting = replicas.fetch_purgatory.try_complete_else_watch(
        (delayed,), params.max_wait_ms, delayed.try_complete, delayed.on_expire
    )
    if isinstance(waiting, asyncio.Future):
        waiting.add_done_callback(lambda _: delayed.close())
    return waiting


class DelayedFetch:
    """Estimates from how the logs grew whether `min_bytes` can be read: no read happens while waiting.

    Partitions report changes through the session, so partitions without a report are unchanged since the fetch was
    parked, including those that it did not read.
    """

    __slots__ = (
        "_available",
        "_baseline",
        "_estimates",
        "_has_data",
        "_is_large",
        "_moved",
        "_params",
        "_reads",
        "_replicas",
        "_session",
        "_touched",
    )

    def __init__(
        self, replicas: ReplicaManager, params: FetchParams, session: Readers, *, is_large: bool = False
    ) -> None:
        """`is_large`: it has been read in slices, and its caller completes the answer in slices."""
        self._replicas = replicas
        self._is_large = is_large
        self._params = params
        self._session = session
        self._reads: dict[SessionPartition, PartitionRead] = {}
        self._baseline: dict[SessionPartition, int] = {}
        """Log sizes at the start of the wait; empty if any byte is enough."""
        self._estimates: dict[SessionPartition, int] = {}
        """Bytes that each partition would add to the answer."""
        self._available = 0
        self._has_data = False
        """Something could be read already. One limit covers all partitions, so all are read again."""
        self._moved: dict[SessionPartition, None] = {}
        self._touched: dict[SessionPartition, None] = {}
        """Partitions that reported a change since the last look."""
        session.waiting.append(self)

    def __str__(self) -> str:
        """The partition that changed last, for traces."""
        last = next(reversed(self._moved), None)
        return "" if last is None else str(last.tp)

    def add(self, reads: Reads) -> None:
        """Take over the reads, in the same loop step, and follow these partitions from now on."""
        self._reads.update(reads)
        for partition, read in reads:
            hosted = self._replicas.hosted(partition.tp)
            if hosted is not None and partition.session is self._session:  # otherwise it has ended or forgotten it
                partition.watch(hosted)
                if self._params.min_bytes > 1 and hosted.log is not None:
                    self._baseline[partition] = hosted.log.size_bytes - read.size_bytes
            if read.size_bytes:
                self._has_data = True
                self._available += read.size_bytes
                self._estimates[partition] = read.size_bytes

    def close(self) -> None:
        """Stop following the partitions: the fetch is answered, or no longer waited for."""
        session = self._session
        if self not in session.waiting:
            return
        session.waiting.remove(self)
        self._replicas.woken_fetches.pop(self, None)
        if not session.id and not self._is_large:
            for partition in self._reads:
                partition.unwatch()

    def release(self, reads: Reads) -> None:
        """A part of a large fetch is answered."""
        is_ephemeral = not self._session.id
        for partition, _ in reads:
            self._reads.pop(partition, None)
            self._baseline.pop(partition, None)
            if is_ephemeral:
                partition.unwatch()

    # --- while waiting ---------------------------------------------------------------------------------------------

    def on_change(self, partition: SessionPartition) -> None:
        self._touched[partition] = None
        self._replicas.woken_fetches[self] = None

    def try_complete(self) -> Reads | None:
        """Check the changed partitions; returns the answer if there is enough."""
        touched, self._touched = self._touched, {}
        for partition in touched:
            if partition.session is not self._session:  # forgotten by a later request of the session
                continue
            self._moved[partition] = None
            estimate = self._estimate(partition)
            if estimate is None:
                return self._answer()
            self._available += estimate - self._estimates.get(partition, 0)
            self._estimates[partition] = estimate
        return self._answer() if self._available >= self._params.min_bytes else None

    def on_expire(self) -> Reads:
        """Read everything again; for a large fetch only the changed partitions."""
        self._moved.update(self._touched)
        return self._answer(everything=not self._is_large)

    def _answer(self, *, everything: bool = False) -> Reads:
        self.close()
        if not self._is_large:
            everything |= self._has_data
        again = dict.fromkeys(self._reads) | self._moved if everything else self._moved
        count = len(self._reads)
        self._reads.update(read_all(self._replicas, self._params, sorted(again, key=place_of)))
        reads = list(self._reads.items())
        if len(reads) > count:
            reads.sort(key=lambda read: read[0].place)
        return reads if self._is_large else answer(self._replicas, self._params, reads)

    def _estimate(self, partition: SessionPartition) -> int | None:
        """Return the bytes that this partition would add to the answer; None if it must be answered at once."""
        fetch = partition.fetch
        params = self._params
        hosted = self._replicas.hosted(partition.tp)
        if hosted is None:
            return None
        log = readable_log(hosted, fetch.current_leader_epoch, params.require_leader)
        if isinstance(log, ErrorCode) or log.log_end_offset < fetch.fetch_offset:
            return None
        if owes_high_watermark(self._replicas, params, hosted):
            return None
        partition.watch(hosted)
        if end_of(log, params.isolation) <= fetch.fetch_offset or is_held_back(self._replicas, params, hosted):
            return 0
        if params.min_bytes <= 1:
            return 1
        before = self._baseline.get(partition, partition.log_size_bytes)
        return max(1, min(log.size_bytes - before, fetch.max_bytes))
