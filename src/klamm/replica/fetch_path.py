"""Reading for consumers and followers, and the wait until there is enough to read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from klamm.errors import ErrorCode
from klamm.model import NO_EPOCH, UNKNOWN_BROKER_EPOCH, TopicPartition
from klamm.replica.delayed_fetch import DelayedFetch
from klamm.replica.partition_reader import Isolation, PartitionFetch, PartitionRead, read_records, readable_log
from klamm.replica.replica_selector import NO_PREFERENCE, ClientMetadata, preferred_read_replica

if TYPE_CHECKING:
    from klamm.replica.partition import Partition
    from klamm.replica.replica_manager import ReplicaManager

Fetches: TypeAlias = Sequence[tuple[TopicPartition, PartitionFetch]]
Reads: TypeAlias = list[tuple[TopicPartition, PartitionRead]]

_NONE: Final = ErrorCode.NONE


class ResponseBudget(Protocol):
    """What is left of the memory for responses that their clients have not read."""

    def response_room(self) -> int: ...

    def reserve_response(self, size_bytes: int) -> None: ...


@dataclass(slots=True)
class FetchParams:
    """What a fetch asks of all its partitions. `replica_id` -1 is a consumer, -2 a debugging one, else a follower.

    A consumer that says who it is (`client`) may read from a follower.
    """

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation: Isolation = Isolation.HIGH_WATERMARK
    replica_id: int = -1
    replica_epoch: int = UNKNOWN_BROKER_EPOCH
    budget: ResponseBudget | None = None
    client: ClientMetadata | None = None

    @property
    def is_from_follower(self) -> bool:
        return self.replica_id >= 0

    @property
    def require_leader(self) -> bool:
        return self.replica_id != -2 and self.client is None


class FetchPath:
    """The ReplicaManager's `fetch_messages`."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas

    def fetch_messages(self, params: FetchParams, fetches: Fetches) -> Reads | asyncio.Future[Reads]:
        """Reads now, and again later when there was less than `min_bytes` and nothing to report at once."""
        reads = self.read_all(params, fetches)
        if (
            params.max_wait_ms <= 0
            or not fetches
            or _must_answer(reads, params.min_bytes)
            or self._owes_any_high_watermark(params, reads)
        ):
            return self.answered(params, reads)
        delayed = DelayedFetch(self, params, fetches, reads)
        return self._replicas.fetch_purgatory.try_complete_else_watch(
            [tp for tp, _ in fetches], params.max_wait_ms, lambda: None, delayed.on_expire, delayed.on_key
        )

    def answered(self, params: FetchParams, reads: Reads) -> Reads:
        """The reads that will be the answer. One append may complete many fetches before any of them is sent."""
        if params.budget is not None:
            params.budget.reserve_response(sum(read.size_bytes for _, read in reads))
        if params.is_from_follower and self._replicas.replica_selector is not None:
            for tp, read in reads:
                self._tell_high_watermark(params.replica_id, tp, read)
        quota = self._replicas.quotas.leader
        if params.is_from_follower and quota.has_throttled:
            quota.record(sum(read.size_bytes for tp, read in reads if read.size_bytes and quota.is_throttled(tp)))
        return reads

    def is_held_back(self, params: FetchParams, partition: Partition) -> bool:
        """Whether a follower gets no records of a partition now. Those in sync are spared, or they would fall out."""
        quota = self._replicas.quotas.leader
        return (
            quota.has_throttled
            and params.is_from_follower
            and quota.is_throttled(partition.topic_partition)
            and params.replica_id not in partition.isr
            and quota.is_exceeded
        )

    # --- high watermarks of followers that consumers read from (KIP-392) -----------------------------------------

    def owes_high_watermark(self, params: FetchParams, partition: Partition) -> bool:
        """Whether a follower has not been told the newest high watermark, while consumers may read from it."""
        if not params.is_from_follower or self._replicas.replica_selector is None or partition.log is None:
            return False
        remote = partition.remotes.get(params.replica_id)
        return remote is not None and remote.last_sent_high_watermark < partition.log.high_watermark

    def _owes_any_high_watermark(self, params: FetchParams, reads: Reads) -> bool:
        if not params.is_from_follower or self._replicas.replica_selector is None:
            return False
        hosted = (self.hosted(tp) for tp, _ in reads)
        return any(partition is not None and self.owes_high_watermark(params, partition) for partition in hosted)

    def _tell_high_watermark(self, replica_id: int, tp: TopicPartition, read: PartitionRead) -> None:
        """The fetch itself may have moved the high watermark after it was read: the follower hears the newest."""
        partition = self.hosted(tp)
        if read.error or read.diverging_epoch is not None or partition is None or partition.log is None:
            return
        if (remote := partition.remotes.get(replica_id)) is not None:
            read.high_watermark = remote.last_sent_high_watermark = partition.log.high_watermark

    # --- reading -------------------------------------------------------------------------------------------------

    def hosted(self, tp: TopicPartition) -> Partition | None:
        return self._replicas.partitions.get(tp)

    def log_size_bytes(self, tp: TopicPartition) -> int:
        partition = self.hosted(tp)
        return 0 if partition is None or partition.log is None else partition.log.size_bytes

    def read_all(self, params: FetchParams, fetches: Fetches) -> Reads:
        """Partitions are read in the order asked until the response is full; the first batch always fits."""
        limit = params.max_bytes if params.budget is None else min(params.max_bytes, params.budget.response_room())
        min_one_message = True
        now_ms = self._replicas.clock.now_ms()
        reads: Reads = []
        for tp, fetch in fetches:
            max_bytes = fetch.max_bytes
            read = self._read(tp, fetch, params, max_bytes if max_bytes < limit else limit, min_one_message, now_ms)
            if read.size_bytes:
                limit = max(0, limit - read.size_bytes)
                min_one_message = False
            reads.append((tp, read))
        return reads

    def _read(
        self,
        tp: TopicPartition,
        fetch: PartitionFetch,
        params: FetchParams,
        max_bytes: int,
        min_one_message: bool,
        now_ms: int,
    ) -> PartitionRead:
        partition = self._replicas.partition_or_error(tp)
        if isinstance(partition, ErrorCode):
            return PartitionRead(partition)
        is_from_follower = params.replica_id >= 0
        if is_from_follower:
            if (idle := self._caught_up(partition, fetch, params, now_ms)) is not None:
                return idle
            if params.replica_id not in partition.remotes and partition.is_leader:
                return PartitionRead(_stranger(fetch))
            if self.is_held_back(params, partition):
                max_bytes, min_one_message = 0, False
        elif (
            params.client is not None
            and (preferred := self._preferred(partition, fetch, params.client)) != NO_PREFERENCE
        ):
            return _elsewhere(partition, fetch, preferred)
        read = read_records(
            partition,
            fetch,
            params.isolation,
            max_bytes,
            min_one_message=min_one_message,
            require_leader=params.require_leader,
        )
        if is_from_follower and not read.error and read.diverging_epoch is None:
            self._on_follower_read(partition, fetch, params, now_ms)
        return read

    def _caught_up(
        self, partition: Partition, fetch: PartitionFetch, params: FetchParams, now_ms: int
    ) -> PartitionRead | None:
        """The answer to an in-sync follower that has everything and all of it committed; None in all other cases.

        Most partitions of most fetches are like that, and nothing follows from it but that the follower is there.
        """
        log = partition.log
        remote = partition.remotes.get(params.replica_id)
        offset = fetch.fetch_offset
        if (
            log is None
            or remote is None
            or not offset == log.log_end_offset == log.high_watermark == remote.log_end_offset
            or partition.leader != partition.broker_id
            or partition.leader_epoch != fetch.current_leader_epoch
            or params.replica_id not in partition.isr
            or self._replicas.delete_records_purgatory.size
        ):
            return None
        last_epoch = fetch.last_fetched_epoch
        if last_epoch != NO_EPOCH and last_epoch != log.latest_epoch:
            epoch, end_offset = log.end_offset_for_epoch(last_epoch)
            if epoch != last_epoch or end_offset < offset:
                return None
        remote.on_fetch(offset, fetch.log_start_offset, offset, now_ms, params.replica_epoch)
        return PartitionRead(_NONE, offset, log.last_stable_offset, log.log_start_offset)

    def _preferred(self, partition: Partition, fetch: PartitionFetch, client: ClientMetadata) -> int:
        replicas = self._replicas
        selector = replicas.replica_selector
        if selector is None or not client.rack_id:
            return NO_PREFERENCE
        snapshot, now_ms = replicas.metadata.snapshot, replicas.clock.now_ms()
        return preferred_read_replica(selector, partition, client, fetch.fetch_offset, snapshot, now_ms)

    def _on_follower_read(self, partition: Partition, fetch: PartitionFetch, params: FetchParams, now_ms: int) -> None:
        replicas = self._replicas
        replica_id = params.replica_id
        moved = partition.on_follower_fetch(
            replica_id, fetch.fetch_offset, fetch.log_start_offset, now_ms, params.replica_epoch
        )
        if replica_id not in partition.isr:
            wanted = partition.isr_to_expand_to(replica_id)
            if wanted is not None and replicas.metadata.has_alive_broker(replica_id):
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
        if read.error or read.diverging_epoch is not None or read.preferred_read_replica != NO_PREFERENCE:
            return True
        total += read.size_bytes
    return total >= min_bytes


def _elsewhere(partition: Partition, fetch: PartitionFetch, preferred: int) -> PartitionRead:
    """Nothing is read for a consumer that is sent to a follower."""
    log = readable_log(partition, fetch.current_leader_epoch, require_leader=True)
    if isinstance(log, ErrorCode):
        return PartitionRead(log)
    return PartitionRead(
        ErrorCode.NONE,
        log.high_watermark,
        log.last_stable_offset,
        log.log_start_offset,
        preferred_read_replica=preferred,
    )
