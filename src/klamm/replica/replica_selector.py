"""Chooses the replica that a consumer should read from (KIP-392): the leader, or a follower in its rack. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from klamm.metadata import MetadataSnapshot
    from klamm.replica.partition import Partition

NO_PREFERENCE: Final = -1
"""The consumer stays where it is."""


class ClientMetadata(NamedTuple):
    """A consumer's own description, from Fetch v11 on. An empty rack means that it has none."""

    rack_id: str
    listener: str


class ReplicaView(NamedTuple):
    """A replica that has the requested records, in the leader's view."""

    broker_id: int
    rack: str | None
    log_end_offset: int
    ms_since_caught_up: int = 0


ReplicaSelector: TypeAlias = Callable[[ClientMetadata, ReplicaView, Iterable[ReplicaView]], ReplicaView]
"""Chooses among the leader and the followers."""


def select_in_rack(client: ClientMetadata, leader: ReplicaView, followers: Iterable[ReplicaView]) -> ReplicaView:
    """Choose the leader unless it is in another rack than the client; then the most advanced follower there."""
    if not client.rack_id or leader.rack == client.rack_id:
        return leader
    near = (view for view in followers if view.rack == client.rack_id)
    return max(near, key=lambda v: (v.log_end_offset, -v.ms_since_caught_up, v.broker_id), default=leader)


SELECTORS: Final[dict[str, ReplicaSelector | None]] = {
    "org.apache.kafka.common.replica.LeaderSelector": None,
    "org.apache.kafka.common.replica.RackAwareReplicaSelector": select_in_rack,
}
"""By the value of `replica.selector.class`. None: every consumer reads from the leader, without a choice."""


def preferred_read_replica(
    selector: ReplicaSelector,
    partition: Partition,
    client: ClientMetadata,
    fetch_offset: int,
    snapshot: MetadataSnapshot,
    now_ms: int,
) -> int:
    """Return the follower that the consumer should read from; NO_PREFERENCE for this leader.

    Candidates are the in-sync followers that have the offset and that the client can reach through its listener.
    """
    if not partition.is_leader or partition.log is None:
        return NO_PREFERENCE

    reachable = snapshot.get_partition_replica_endpoints(partition.topic_partition, client.listener)
    followers = (
        ReplicaView(r.broker_id, reachable[r.broker_id].rack, r.log_end_offset, now_ms - r.last_caught_up_time_ms)
        for r in partition.remotes.values()
        if r.broker_id in partition.isr
        and r.log_start_offset <= fetch_offset <= r.log_end_offset
        and r.broker_id in reachable
    )
    own = snapshot.brokers.get(partition.broker_id)
    leader = ReplicaView(partition.broker_id, None if own is None else own.rack, partition.log.log_end_offset)
    chosen = selector(client, leader, followers)
    return NO_PREFERENCE if chosen.broker_id == partition.broker_id else chosen.broker_id
