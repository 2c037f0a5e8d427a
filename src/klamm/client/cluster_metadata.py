"""The client's view of a cluster, without I/O: which brokers there are, and which of them leads each partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final
from uuid import UUID

from klamm.client.client_errors import ClientError, RetriableError, UnknownTopicError, error_name
from klamm.errors import ErrorCode
from klamm.lazy_dataclass import lazy_dataclass
from klamm.model import ZERO_UUID, TopicPartition
from klamm.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

NO_LEADER: Final = -1
_MISSING: Final = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INVALID_TOPIC_EXCEPTION,
)


@lazy_dataclass(frozen=True, slots=True)
class PartitionView:
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()


@lazy_dataclass(frozen=True, slots=True)
class TopicState:
    topic_id: UUID | None
    """None if the cluster has no topic ids."""
    partitions: Mapping[int, PartitionView]
    is_internal: bool = False
    """Whether the topic is the cluster's own: offsets of groups, transactions, klamm's control log."""


@lazy_dataclass(frozen=True, slots=True)
class ClusterState:
    """The contents of one Metadata response."""

    cluster_id: str | None
    brokers: Mapping[int, tuple[str, int]]
    topics: Mapping[str, TopicState]


def metadata_request(topics: Iterable[str] | None, *, creates: bool = False) -> MetadataRequest:
    """Return a request for these topics, for all topics if None. `creates` allows brokers to create missing ones."""
    wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in sorted(set(topics))]
    return MetadataRequest(topics=wanted, allow_auto_topic_creation=creates)


class ClusterMetadata:
    """Collects Metadata responses. The caller forgets a leader that turned out to be wrong."""

    def __init__(self) -> None:
        self.cluster_id: str | None = None
        self.brokers: dict[int, tuple[str, int]] = {}
        self.topic_ids: dict[str, UUID] = {}
        """By name, as last seen, of every topic that was requested."""
        self._leaders: dict[TopicPartition, int] = {}

    def learn(self, response: MetadataResponse) -> ClusterState:
        """Adopt a response. Topics that do not exist are left out. Raises ClientError for other errors of a topic."""
        self.brokers = {b.node_id: (b.host, b.port) for b in response.brokers}
        self.cluster_id = response.cluster_id
        topics: dict[str, TopicState] = {}
        for topic in response.topics:
            name = topic.name or ""
            if topic.error_code in _MISSING:
                self._forget_topic(name)
                continue
            if topic.error_code not in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
                raise ClientError(f"Topic {name} cannot be read: {error_name(topic.error_code)}.")
            partitions = {
                p.partition_index: PartitionView(
                    p.leader_id, p.leader_epoch, tuple(p.replica_nodes), tuple(p.isr_nodes)
                )
                for p in topic.partitions
            }
            topic_id = topic.topic_id if topic.topic_id != ZERO_UUID else None
            topics[name] = TopicState(topic_id, partitions, topic.is_internal)
            if topic_id is not None:
                self.topic_ids[name] = topic_id
            for index, state in partitions.items():
                self._leaders[TopicPartition(name, index)] = state.leader
        return ClusterState(response.cluster_id, dict(self.brokers), topics)

    def known_leader(self, tp: TopicPartition) -> int | None:
        """Return the last known leader, None if there is none or its address is unknown."""
        leader = self._leaders.get(tp, NO_LEADER)
        return leader if leader in self.brokers else None

    def leader_in(self, tp: TopicPartition, state: ClusterState) -> int:
        """Return the leader after `learn` returned `state`. Raises UnknownTopicError, or RetriableError if none."""
        if tp not in self._leaders or tp.topic not in state.topics:
            raise UnknownTopicError(f"{tp} does not exist.")
        if tp.partition not in state.topics[tp.topic].partitions:
            raise UnknownTopicError(f"{tp} does not exist.")
        leader = self.known_leader(tp)
        if leader is None:
            self.forget_leader(tp)
            raise RetriableError(f"{tp} has no leader")
        return leader

    def address(self, broker_id: int) -> tuple[str, int]:
        """Return a broker's address. Raises RetriableError if it is unknown."""
        address = self.brokers.get(broker_id)
        if address is None:
            raise RetriableError(f"the address of broker {broker_id} is unknown")
        return address

    def forget_leader(self, tp: TopicPartition) -> None:
        self._leaders.pop(tp, None)

    def forget_leaders_without(self, connected: Iterable[tuple[str, int]]) -> None:
        """Forget the leaders whose address is not among these."""
        kept = set(connected)
        self._leaders = {tp: i for tp, i in self._leaders.items() if self.brokers.get(i) in kept}

    def _forget_topic(self, name: str) -> None:
        self.topic_ids.pop(name, None)
        self._leaders = {tp: leader for tp, leader in self._leaders.items() if tp.topic != name}
