"""Reading for consumers and followers, and the wait until there is enough to read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from klamm.clock import elapsed_ms
from klamm.errors import ErrorCode
from klamm.model import NO_EPOCH, UNKNOWN_BROKER_EPOCH, TopicPartition
from klamm.replica.fetch_session import FetchSession, SessionPartition
from klamm.replica.isr import Replication
from klamm.replica.partition_reader import Isolation, PartitionFetch, PartitionRead, end_of, read_records, readable_log
from klamm.replica.replica_manager import ReplicaManager
from klamm.replica.replica_selector import NO_PREFERENCE, ClientMetadata, preferred_read_replica

if TYPE_CHECKING:
    from klamm.log.log import Log
    from klamm.replica.partition import Partition
    from klamm.replica.remote_replica import RemoteReplica

Reads: TypeAlias = list[tuple[SessionPartition, PartitionRead]]

_NONE: Final = ErrorCode.NONE


class ResponseBudget(Protocol):
    """The memory that is left for responses that their clients have not read."""

    def response_room(self) -> int: ...

    def reserve_response(self, size_bytes: int) -> None: ...


@dataclass(slots=True)
class FetchParams:
    """The parameters of a fetch for all partitions. `replica_id` -1 is a consumer, -2 a debugging one, else a follower.

    A consumer that describes itself (`client`) may read from a follower.
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


class ReadLimit:
    """The room that is left in a response: the first batch always fits."""

    __slots__ = ("max_bytes", "min_one_message")

    def __init__(self, params: FetchParams) -> None:
        room = params.max_bytes if params.budget is None else params.budget.response_room()
        self.max_bytes = min(params.max_bytes, room)
        self.min_one_message = True


def bytes_to_wait_for(replicas: ReplicaManager, params: FetchParams, reads: Reads, min_bytes: int) -> int:
    """Return how many bytes these reads lack until `min_bytes`; 0 if one of them must be answered at once."""
    for _, read in reads:
        if read.error or read.diverging_epoch is not None or read.preferred_read_replica != NO_PREFERENCE:
            return 0
        min_bytes -= read.size_bytes
    return 0 if _owes_any_high_watermark(replicas, params, reads) else max(min_bytes, 0)


def answer(replicas: ReplicaManager, params: FetchParams, reads: Reads) -> Reads:
    """Account for reads that become a response. One append may complete many fetches before any of them is sent."""
    if params.budget is not None:
        params.budget.reserve_response(sum(read.size_bytes for _, read in reads))
    if params.is_from_follower and replicas.replica_selector is not None:
        for partition, read in reads:
            _send_high_watermark(replicas, params.replica_id, partition.tp, read)
    quota = replicas.quotas.leader
    if params.is_from_follower and quota.has_throttled:
        throttled = (read for p, read in reads if read.size_bytes and p.tp is not None and quota.is_throttled(p.tp))
        quota.record(sum(read.size_bytes for read in throttled))
    return reads


def is_held_back(replicas: ReplicaManager, params: FetchParams, partition: Partition) -> bool:
    """Return whether a follower is throttled now. In-sync followers are spared, or they would leave the ISR."""
    quota = replicas.quotas.leader
    return (
        quota.has_throttled
        and params.is_from_follower
        and quota.is_throttled(partition.topic_partition)
        and params.replica_id not in partition.isr
        and quota.is_exceeded
    )


# --- high watermarks of followers that consumers read from (KIP-392) -----------------------------------------


def owes_high_watermark(replicas: ReplicaManager, params: FetchParams, partition: Partition) -> bool:
    """Return whether a follower lacks the newest high watermark while consumers may read from it."""
    if not params.is_from_follower or replicas.replica_selector is None or partition.log is None:
        return False
    remote = partition.remotes.get(params.replica_id)
    return remote is not None and remote.last_sent_high_watermark < partition.log.high_watermark


def _owes_any_high_watermark(replicas: ReplicaManager, params: FetchParams, reads: Reads) -> bool:
    if not params.is_from_follower or replicas.replica_selector is None:
        return False
    hosted = (replicas.hosted(partition.tp) for partition, _ in reads)
    return any(partition is not None and owes_high_watermark(replicas, params, partition) for partition in hosted)


def _send_high_watermark(
    replicas: ReplicaManager, replica_id: int, tp: TopicPartition | None, read: PartitionRead
) -> None:
    """Send the newest high watermark: the fetch itself may have moved it after the read."""
    partition = replicas.hosted(tp)
    if read.error or read.diverging_epoch is not None or partition is None or partition.log is None:
        return
    if (remote := partition.remotes.get(replica_id)) is not None:
        read.high_watermark = remote.last_sent_high_watermark = partition.log.high_watermark


# --- reading -------------------------------------------------------------------------------------------------


def read_all(
    replicas: ReplicaManager,
    params: FetchParams,
    partitions: Iterable[SessionPartition],
    limit: ReadLimit | None = None,
    *,
    is_repeated: bool = False,
) -> Reads:
    """Read partitions in request order until the response is full.

    `is_repeated`: the fetch has waited. A follower's progress was recorded when it arrived, and proves nothing now.
    """
    if limit is None:
        limit = ReadLimit(params)
    now_ms = elapsed_ms(replicas.clock)
    reads: Reads = []
    for partition in partitions:
        fetch = partition.fetch
        max_bytes = fetch.max_bytes
        if max_bytes > limit.max_bytes:
            max_bytes = limit.max_bytes
        assert partition.tp is not None, "an unknown topic id is refused earlier"
        read = _read(replicas, partition.tp, fetch, params, max_bytes, limit.min_one_message, now_ms, is_repeated)
        if read.size_bytes:
            limit.max_bytes = max(0, limit.max_bytes - read.size_bytes)
            limit.min_one_message = False
        reads.append((partition, read))
    return reads


def _read(
    replicas: ReplicaManager,
    tp: TopicPartition,
    fetch: PartitionFetch,
    params: FetchParams,
    max_bytes: int,
    min_one_message: bool,
    now_ms: int,
    is_repeated: bool,
) -> PartitionRead:
    partition = replicas.partition_or_error(tp)
    if isinstance(partition, ErrorCode):
        return PartitionRead(partition)
    is_from_follower = params.replica_id >= 0
    if is_from_follower:
        if (idle := _caught_up(replicas, partition, fetch, params, now_ms, is_repeated)) is not None:
            return idle
        if params.replica_id not in partition.remotes and partition.is_leader:
            return PartitionRead(_error_of_unassigned(fetch))
        if is_held_back(replicas, params, partition):
            max_bytes, min_one_message = 0, False
    elif (
        params.client is not None
        and (preferred := _preferred(replicas, partition, fetch, params.client)) != NO_PREFERENCE
    ):
        return _referral(partition, fetch, preferred)
    read = read_records(
        partition,
        fetch,
        params.isolation,
        max_bytes,
        min_one_message=min_one_message,
        require_leader=params.require_leader,
    )
    if is_from_follower and not is_repeated and not read.error and read.diverging_epoch is None:
        _on_follower_read(replicas, partition, fetch, params, now_ms)
    return read


def _caught_up(
    replicas: ReplicaManager,
    partition: Partition,
    fetch: PartitionFetch,
    params: FetchParams,
    now_ms: int,
    is_repeated: bool,
) -> PartitionRead | None:
    """Return the answer for an in-sync follower that has everything committed; None otherwise.

    Most partitions of most fetches are in this state, and only the follower's presence is recorded.
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
        or replicas.delete_records_purgatory.size
    ):
        return None
    last_epoch = fetch.last_fetched_epoch
    if last_epoch != NO_EPOCH and last_epoch != log.latest_epoch:
        epoch, end_offset = log.end_offset_for_epoch(last_epoch)
        if epoch != last_epoch or end_offset < offset:
            return None
    if not is_repeated:
        remote.on_fetch(offset, fetch.log_start_offset, offset, now_ms, params.replica_epoch)
    return PartitionRead(_NONE, offset, log.last_stable_offset, log.log_start_offset)


def settle(replicas: ReplicaManager, params: FetchParams, session: FetchSession, reads: Reads) -> None:
    """After an answer, skip partitions whose readers know everything until they change.

    The current state decides, not the state at the read: the partition may have changed since.
    """
    is_from_follower = params.replica_id >= 0
    for partition, read in reads:
        if read.size_bytes or read.error or partition.session is not session or partition not in session.changed:
            continue
        if read.diverging_epoch is not None or read.preferred_read_replica != NO_PREFERENCE:
            continue
        hosted = replicas.hosted(partition.tp)
        if hosted is None or hosted.log is None or not _knows_all(partition, hosted, hosted.log, params):
            continue
        if is_from_follower:
            remote = hosted.remotes.get(params.replica_id)
            if remote is None or not _has_all(replicas, partition.fetch, hosted, hosted.log, remote):
                continue
            remote.follow_session(session)
            partition.remote = remote
        session.settle(partition, hosted, hosted.log.size_bytes)


def _has_all(
    replicas: ReplicaManager, fetch: PartitionFetch, partition: Partition, log: Log, remote: RemoteReplica
) -> bool:
    """Whether another fetch of this follower would change only its last-seen time."""
    return (
        fetch.fetch_offset == log.log_end_offset == log.high_watermark == remote.log_end_offset
        and fetch.log_start_offset == remote.log_start_offset
        and remote.broker_id in partition.isr
        and (replicas.replica_selector is None or remote.last_sent_high_watermark >= log.high_watermark)
    )


def _preferred(replicas: ReplicaManager, partition: Partition, fetch: PartitionFetch, client: ClientMetadata) -> int:
    selector = replicas.replica_selector
    if selector is None or not client.rack_id:
        return NO_PREFERENCE
    snapshot, now_ms = replicas.metadata.snapshot, elapsed_ms(replicas.clock)
    return preferred_read_replica(selector, partition, client, fetch.fetch_offset, snapshot, now_ms)


def _on_follower_read(
    replicas: ReplicaManager, partition: Partition, fetch: PartitionFetch, params: FetchParams, now_ms: int
) -> None:
    replica_id = params.replica_id
    moved = partition.on_follower_fetch(
        replica_id, fetch.fetch_offset, fetch.log_start_offset, now_ms, params.replica_epoch
    )
    if replica_id not in partition.isr:
        wanted = partition.isr_to_expand_to(replica_id)
        if wanted is not None and replicas.metadata.has_alive_broker(replica_id):
            replicas.on_isr_change_wanted(partition, wanted)
    if replicas.replica_selector is not None:
        partition.changed()  # a consumer may read from this follower from now on
    if moved:
        replicas.complete_after_high_watermark(partition.topic_partition)
        return
    if replicas.produce_purgatory.size and len(partition.isr) < partition.effective_min_isr:
        # The high watermark stands still, but a new coordinator waits for the in-sync replicas, however few they are.
        # Producers do not: thousands may wait, and each fetch would check all of them.
        replicas.produce_purgatory.check_and_complete(Replication(partition.topic_partition))
    if replicas.delete_records_purgatory.size:
        replicas.delete_records_purgatory.check_and_complete(partition.topic_partition)


def _error_of_unassigned(fetch: PartitionFetch) -> ErrorCode:
    """The fetching broker is not in the assignment: either its metadata or this broker's is stale."""
    knows_epochs = fetch.current_leader_epoch != NO_EPOCH
    return ErrorCode.UNKNOWN_LEADER_EPOCH if knows_epochs else ErrorCode.NOT_LEADER_OR_FOLLOWER


def _knows_all(partition: SessionPartition, hosted: Partition, log: Log, params: FetchParams) -> bool:
    """Return whether a repeated fetch would return nothing new until the partition changes."""
    fetch = partition.fetch
    return (
        (not hosted.topic_id.int or partition.topic_id.int in (0, hosted.topic_id.int))
        and partition.high_watermark == log.high_watermark
        and partition.log_start_offset == log.log_start_offset
        and fetch.current_leader_epoch in (NO_EPOCH, hosted.leader_epoch)
        and (hosted.leader == hosted.broker_id or not params.require_leader)
        and end_of(log, params.isolation) <= fetch.fetch_offset <= log.log_end_offset
    )


def _referral(partition: Partition, fetch: PartitionFetch, preferred: int) -> PartitionRead:
    """A consumer that is referred to a follower gets no records."""
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
