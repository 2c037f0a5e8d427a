"""Reading for consumers and followers, and the wait until there is enough to read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from klamm.errors import ErrorCode
from klamm.model import NO_EPOCH, UNKNOWN_BROKER_EPOCH, TopicPartition
from klamm.replica.partition_reader import Isolation, PartitionFetch, PartitionRead, end_of, read_records, readable_log

if TYPE_CHECKING:
    from klamm.replica.partition import Partition
    from klamm.replica.replica_manager import ReplicaManager

Fetches: TypeAlias = Sequence[tuple[TopicPartition, PartitionFetch]]
Reads: TypeAlias = list[tuple[TopicPartition, PartitionRead]]


class ResponseBudget(Protocol):
    """What is left of the memory for responses that their clients have not read."""

    def response_room(self) -> int: ...

    def reserve_response(self, size_bytes: int) -> None: ...


@dataclass(slots=True)
class FetchParams:
    """What a fetch asks of all its partitions. `replica_id` -1 is a consumer, -2 a debugging one, else a follower."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation: Isolation = Isolation.HIGH_WATERMARK
    replica_id: int = -1
    replica_epoch: int = UNKNOWN_BROKER_EPOCH
    budget: ResponseBudget | None = None

    @property
    def is_from_follower(self) -> bool:
        return self.replica_id >= 0


class FetchPath:
    """The ReplicaManager's `fetch_messages`."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas

    def fetch_messages(self, params: FetchParams, fetches: Fetches) -> Reads | asyncio.Future[Reads]:
        """Reads now, and again later when there was less than `min_bytes` and nothing to report at once."""
        reads = self.read_all(params, fetches)
        if params.max_wait_ms <= 0 or not fetches or _must_answer(reads, params.min_bytes):
            return _reserved(params, reads)
        delayed = _DelayedFetch(self, params, fetches, reads)
        return self._replicas.fetch_purgatory.try_complete_else_watch(
            [tp for tp, _ in fetches], params.max_wait_ms, delayed.try_complete, delayed.on_expire
        )

    def read_all(self, params: FetchParams, fetches: Fetches) -> Reads:
        """Partitions are read in the order asked until the response is full; the first batch always fits."""
        limit = params.max_bytes if params.budget is None else min(params.max_bytes, params.budget.response_room())
        min_one_message = True
        reads: Reads = []
        for tp, fetch in fetches:
            read = self._read(tp, fetch, params, min(limit, fetch.max_bytes), min_one_message)
            if read.size_bytes:
                limit = max(0, limit - read.size_bytes)
                min_one_message = False
            reads.append((tp, read))
        return reads

    def _read(
        self, tp: TopicPartition, fetch: PartitionFetch, params: FetchParams, max_bytes: int, min_one_message: bool
    ) -> PartitionRead:
        replicas = self._replicas
        partition = replicas.partition_or_error(tp)
        if isinstance(partition, ErrorCode):
            return PartitionRead(partition)
        if params.replica_id >= 0 and params.replica_id not in partition.remotes and partition.is_leader:
            return PartitionRead(_stranger(fetch))
        read = read_records(
            partition,
            fetch,
            params.isolation,
            max_bytes,
            min_one_message=min_one_message,
            require_leader=params.replica_id != -2,
        )
        if params.replica_id >= 0:
            self._on_follower_read(partition, fetch, params, read)
        return read

    def _on_follower_read(
        self, partition: Partition, fetch: PartitionFetch, params: FetchParams, read: PartitionRead
    ) -> None:
        if read.error or read.diverging_epoch is not None:
            return
        replicas = self._replicas
        moved = partition.on_follower_fetch(
            params.replica_id, fetch.fetch_offset, fetch.log_start_offset, replicas.clock.now_ms(), params.replica_epoch
        )
        wanted = partition.isr_to_expand_to(params.replica_id)
        if wanted is not None and replicas.metadata.has_alive_broker(params.replica_id):
            replicas.on_isr_change_wanted(partition, wanted)
        if moved:
            replicas.complete_after_high_watermark(partition.topic_partition)
        elif replicas.delete_records_purgatory.size:
            replicas.delete_records_purgatory.check_and_complete(partition.topic_partition)


def _stranger(fetch: PartitionFetch) -> ErrorCode:
    """A broker that is not in the assignment: one of the two has not yet heard the latest."""
    knows_epochs = fetch.current_leader_epoch != NO_EPOCH
    return ErrorCode.UNKNOWN_LEADER_EPOCH if knows_epochs else ErrorCode.NOT_LEADER_OR_FOLLOWER


def _must_answer(reads: Reads, min_bytes: int) -> bool:
    total = 0
    for _, read in reads:
        if read.error or read.diverging_epoch is not None:
            return True
        total += read.size_bytes
    return total >= min_bytes


def _reserved(params: FetchParams, reads: Reads) -> Reads:
    """The reads that will be the answer. One append may complete many fetches before any of them is sent."""
    if params.budget is not None:
        params.budget.reserve_response(sum(read.size_bytes for _, read in reads))
    return reads


class _DelayedFetch:
    """Waits until `min_bytes` can be read, estimated from how the logs grew: no read happens while waiting."""

    __slots__ = ("_baseline", "_fetches", "_params", "_path")

    def __init__(self, path: FetchPath, params: FetchParams, fetches: Fetches, reads: Reads) -> None:
        self._path = path
        self._params = params
        self._fetches = fetches
        self._baseline = [self._size_of(tp) - read.size_bytes for tp, read in reads]

    def _size_of(self, tp: TopicPartition) -> int:
        partition = self._path._replicas.partitions.get(tp)
        return 0 if partition is None or partition.log is None else partition.log.size_bytes

    def try_complete(self) -> Reads | None:
        if self._must_read():
            return self.on_expire()
        return None

    def on_expire(self) -> Reads:
        return _reserved(self._params, self._path.read_all(self._params, self._fetches))

    def _must_read(self) -> bool:
        replicas, params = self._path._replicas, self._params
        available = 0
        for (tp, fetch), baseline in zip(self._fetches, self._baseline, strict=True):
            partition = replicas.partitions.get(tp)
            if partition is None:
                return True
            log = readable_log(partition, fetch.current_leader_epoch, params.replica_id != -2)
            if isinstance(log, ErrorCode):
                return True
            end = end_of(log, params.isolation)
            if end > fetch.fetch_offset:
                available += max(1, min(log.size_bytes - baseline, fetch.max_bytes))
            elif log.log_end_offset < fetch.fetch_offset:
                return True
        return available >= params.min_bytes
