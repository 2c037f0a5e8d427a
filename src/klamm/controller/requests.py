"""The three control requests as logical values: independent of any version of the wire protocol.

`UpdateMetadata` bodies are shared by all brokers (and encoded once); only the head differs. The values compare equal
if their contents are equal, so transcripts and the simulator can read and apply them.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import field
from typing import NamedTuple, TypeAlias
from uuid import UUID

from klamm.lazy_dataclass import lazy_dataclass
from klamm.model import BrokerEndPoints, EndPoint, LeaderAndIsr, TopicPartition


@lazy_dataclass(frozen=True, slots=True)
class RequestHead:
    """The sender of a control request, and the incarnation of the broker that it is for."""

    controller_id: int
    controller_epoch: int
    broker_epoch: int


class LeaderAndIsrPartition(NamedTuple):
    """`controller_epoch` is the epoch that wrote the state, not the sender's."""

    partition: TopicPartition
    leader_and_isr: LeaderAndIsr
    controller_epoch: int
    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    is_new: bool = False


@lazy_dataclass(frozen=True, slots=True)
class LiveLeader:
    id: int
    endpoint: EndPoint


EncodedStates: TypeAlias = dict[int, dict[tuple[TopicPartition, bool], bytes]]
"""The bytes of LeaderAndIsr states by version, then by partition and `is_new`."""


@lazy_dataclass(frozen=True, slots=True)
class LeaderAndIsrRequest:
    """`encoded` is shared by the requests of one batch: a state is encoded for the first broker that receives it."""

    head: RequestHead
    partitions: tuple[LeaderAndIsrPartition, ...]
    topic_ids: tuple[tuple[str, UUID], ...]
    live_leaders: tuple[LiveLeader, ...] = ()
    encoded: EncodedStates = field(default_factory=dict, compare=False, repr=False, hash=False)


class UpdateMetadataPartition(NamedTuple):
    """With `leader` -2 a cache forgets the partition."""

    partition: TopicPartition
    controller_epoch: int
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    zk_version: int
    replicas: tuple[int, ...]
    offline_replicas: tuple[int, ...] = ()


@lazy_dataclass(frozen=True, slots=True)
class UpdateMetadataBody:
    """The content that all brokers share. `encoded` caches its bytes by (version, controller, controller epoch).

    `encoding` has the steps of encodings that are not finished.
    """

    partitions: tuple[UpdateMetadataPartition, ...]
    topic_ids: tuple[tuple[str, UUID], ...]
    live_brokers: tuple[BrokerEndPoints, ...]
    encoded: dict[tuple[int, int, int], tuple[bytes, bytes]] = field(
        default_factory=dict, compare=False, repr=False, hash=False
    )
    encoding: dict[tuple[int, int, int], Generator[None, None, tuple[bytes, bytes]]] = field(
        default_factory=dict, compare=False, repr=False, hash=False
    )
    cut: dict[int, tuple[UpdateMetadataBody, ...]] = field(default_factory=dict, compare=False, repr=False, hash=False)
    shared_ids: dict[str, UUID] = field(default_factory=dict, compare=False, repr=False, hash=False)

    def slices(self, limit: int) -> tuple[UpdateMetadataBody, ...]:
        """Split into bodies of at most `limit` partitions each, which all brokers share.

        The last one is never full, so a broker recognises it. All have the ids of all topics: to look for those of a
        slice would hold the loop, and ids of other topics are not sent.
        """
        found = self.cut.get(limit)
        if found is None:
            parts = [self.partitions[i : i + limit] for i in range(0, len(self.partitions) + 1, limit)]
            found = self.cut[limit] = tuple(
                UpdateMetadataBody(part, self.topic_ids, self.live_brokers, shared_ids=self.shared_ids)
                for part in parts
            )
        return found

    def ids_by_topic(self) -> Mapping[str, UUID]:
        """Return `topic_ids` as a mapping, which is made once for all slices."""
        if not self.shared_ids:
            self.shared_ids.update(self.topic_ids)
        return self.shared_ids


@lazy_dataclass(frozen=True, slots=True)
class UpdateMetadataRequest:
    head: RequestHead
    body: UpdateMetadataBody

    def slices(self, limit: int) -> list[UpdateMetadataRequest]:
        """Returns itself if it has fewer partitions."""
        if len(self.body.partitions) < limit:
            return [self]
        return [UpdateMetadataRequest(self.head, body) for body in self.body.slices(limit)]


@lazy_dataclass(frozen=True, slots=True)
class StopReplicaPartition:
    partition: TopicPartition
    leader_epoch: int
    delete: bool


@lazy_dataclass(frozen=True, slots=True)
class StopReplicaRequest:
    head: RequestHead
    partitions: tuple[StopReplicaPartition, ...]


ControlRequest: TypeAlias = LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest
