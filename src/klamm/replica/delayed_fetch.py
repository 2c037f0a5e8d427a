"""Fetch: read now, or wait until there is enough to read. Checking again costs what changed, not what was requested."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final, TypeAlias, TypeVar

from klamm.errors import ErrorCode
from klamm.replica.fetch_path import (
    FetchParams,
    ReadLimit,
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

A = TypeVar("A")
SortOut: TypeAlias = Callable[[list[SessionPartition]], tuple[Reads, list[SessionPartition]]]
"""Returns the answers for partitions that are refused, and the partitions to read."""
LARGE_READS: Final = 50
"""Partitions of a large request that are read per step: their logs may have to be opened."""


def fetch_messages(
    replicas: ReplicaManager,
    params: FetchParams,
    session: Readers,
    partitions: Sequence[SessionPartition],
    respond: Callable[[Reads], A],
) -> A | asyncio.Future[A]:
    """Read now, and again later if there was less than `min_bytes` and nothing to report at once.

    `respond` makes the response of the reads, in the turn of the change that they waited for.
    """
    reads = read_all(replicas, params, partitions)
    may_wait = params.max_wait_ms > 0 and (reads or session.id)
    if not may_wait or not bytes_to_wait_for(replicas, params, reads, params.min_bytes):
        return respond(answer(replicas, params, reads))
    delayed = DelayedFetch(replicas, params, session)
    delayed.add(reads)
    return park(replicas, params, delayed, respond)


def park(
    replicas: ReplicaManager, params: FetchParams, delayed: DelayedFetch, respond: Callable[[Reads], A]
) -> A | asyncio.Future[A]:
    """Wait for changes of the partitions that `delayed` follows."""

    def try_complete() -> A | None:
        reads = delayed.try_complete()
        return None if reads is None else respond(reads)

    def on_expire() -> A:
        return respond(delayed.on_expire())

    return replicas.fetch_purgatory.try_complete_else_watch(
        (delayed,), params.max_wait_ms, try_complete, on_expire, on_end=delayed.close
    )


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
        "_moved",
        "_params",
        "_reads",
        "_replicas",
        "_session",
        "_touched",
    )

    def __init__(self, replicas: ReplicaManager, params: FetchParams, session: Readers) -> None:
        self._replicas = replicas
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
        self._follow(reads)

    def _follow(self, reads: Reads) -> None:
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
        if self._leave() and not self._session.id:
            for partition in self._reads:
                partition.unwatch()

    def _leave(self) -> bool:
        waiting = self._session.waiting
        if self not in waiting:
            return False
        waiting.remove(self)
        self._replicas.woken_fetches.pop(self, None)
        return True

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
        """Read everything again."""
        self._moved.update(self._touched)
        return self._answer(everything=True)

    def _answer(self, *, everything: bool = False) -> Reads:
        self.close()
        again = dict.fromkeys(self._reads) | self._moved if everything or self._has_data else self._moved
        count = len(self._reads)
        moved = sorted(again, key=place_of)
        self._reads.update(read_all(self._replicas, self._params, moved, is_repeated=True))
        reads = list(self._reads.items())
        if len(reads) > count:
            reads.sort(key=lambda read: read[0].place)
        return answer(self._replicas, self._params, reads)

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


class LargeFetch(DelayedFetch):
    """A fetch of very many partitions: it is read and answered in steps, and reads only changed partitions again.

    Its reads are not in a dictionary: a large one moves all its keys in one long step when it grows.
    """

    __slots__ = ("_again", "_parts")

    def __init__(self, replicas: ReplicaManager, params: FetchParams, session: Readers) -> None:
        super().__init__(replicas, params, session)
        self._parts: list[Reads] = []
        self._again: dict[SessionPartition, PartitionRead] = {}

    def add(self, reads: Reads) -> None:
        self._parts.append(reads)
        self._follow(reads)

    def close(self) -> None:
        """End the wait. The partitions are released in steps."""
        self._leave()

    def _answer(self, *, everything: bool = False) -> Reads:
        """The wait is over; the caller reads the changed partitions again."""
        self.close()
        return []

    def read_again(self, sort_out: SortOut) -> Generator[None, None, None]:
        """Read the partitions again that changed during the wait.

        `sort_out` refuses those that the reader may no longer read: meanwhile a topic can have been deleted and
        created again. Records that were read before count against the limit of the response.
        """
        limit = ReadLimit(self._params)
        kept_bytes = sum(size for partition, size in self._estimates.items() if partition not in self._moved)
        limit.max_bytes = max(0, limit.max_bytes - kept_bytes)
        limit.min_one_message = not kept_bytes
        moved = sorted(self._moved, key=place_of)
        for start in range(0, len(moved), LARGE_READS):
            refused, asked = sort_out(moved[start : start + LARGE_READS])
            self._again.update(refused)
            self._again.update(read_all(self._replicas, self._params, asked, limit, is_repeated=True))
            yield

    def size_bytes(self) -> Generator[None, None, int]:
        """The size of all records that were read."""
        size = sum(read.size_bytes for read in self._again.values())
        for part in self._parts:
            size += sum(read.size_bytes for partition, read in part if partition not in self._again)
            yield
        return size

    def parts(self) -> Iterator[Reads]:
        """The reads, part by part. The caller releases each part."""
        self._parts.reverse()
        while self._parts:
            part = self._parts.pop()
            yield [(partition, self._again.pop(partition, read)) for partition, read in part] if self._again else part
        yield list(self._again.items())

    def release(self, reads: Reads) -> None:
        """Release a part that is answered, or that nobody waits for."""
        is_ephemeral = not self._session.id
        for partition, _ in reads:
            self._baseline.pop(partition, None)
            if is_ephemeral:
                partition.unwatch()

    def released(self) -> Generator[None, None, None]:
        """Nobody waits for the answer."""
        for part in self.parts():
            self.release(part)
            yield
