"""Unhealthy partitions, and the brokers that they miss."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from klamm.errors import ErrorCode
from klamm.model import TopicPartition

if TYPE_CHECKING:
    from klamm.protocol.messages.metadata import MetadataResponse, MetadataResponsePartition

OFFLINE: Final = "offline"
UNDER_MIN_ISR: Final = "under min ISR"
UNDER_REPLICATED: Final = "under-replicated"
MOVING: Final = "moving"
STATES: Final = (OFFLINE, UNDER_MIN_ISR, UNDER_REPLICATED, MOVING)
"""The worst first."""

NOTHING_MOVES: Final[Mapping[TopicPartition, frozenset[int]]] = MappingProxyType({})
_MIN_ISR: Final = "min.insync.replicas"
_TOPIC: Final = 2
_TOPICS_ASKED_AT_ONCE: Final = 500


@dataclass(slots=True)
class PartitionStatus:
    """An unhealthy or moving partition. `states` begins with the worst.

    `min_isr` is None if no broker reported the topic's min.insync.replicas. `adding` are the new replicas of a move.
    """

    topic: str
    partition: int
    states: list[str]
    leader: int
    replicas: list[int]
    isr: list[int]
    min_isr: int | None
    adding: list[int] = field(default_factory=list)

    @property
    def is_unwell(self) -> bool:
        return self.states != [MOVING]

    def badness(self) -> tuple[object, ...]:
        """Return a sort key; the lowest is the worst: the margin until writes are rejected, then the replicas left."""
        expected = len(self.replicas) - len(self.adding)
        left = len(self.isr) - (1 if self.min_isr is None else self.min_isr)
        return STATES.index(self.states[0]), left, len(self.isr) / max(expected, 1), self.topic, self.partition


@dataclass(slots=True)
class MissingBroker:
    """A broker that is not alive although it has replicas."""

    id: int
    replicas: int


def notable_partitions(
    view: MetadataResponse, min_isrs: Mapping[str, int], adding: Mapping[TopicPartition, frozenset[int]] = NOTHING_MOVES
) -> list[PartitionStatus]:
    """Return unhealthy partitions, worst first, then those that are only being moved: the keys of `adding`."""
    found = []
    for topic in view.topics:
        name = str(topic.name)
        min_isr = min_isrs.get(name)
        for partition in topic.partitions:
            new = adding.get(TopicPartition(name, partition.partition_index))
            if states := _states(partition, min_isr, new):
                status = PartitionStatus(
                    name,
                    partition.partition_index,
                    states,
                    partition.leader_id,
                    list(partition.replica_nodes),
                    sorted(partition.isr_nodes),
                    min_isr,
                    [replica for replica in partition.replica_nodes if replica in (new or ())],
                )
                found.append(status)
    return sorted(found, key=PartitionStatus.badness)


def _states(partition: MetadataResponsePartition, min_isr: int | None, adding: frozenset[int] | None) -> list[str]:
    """Return the states. As in Kafka, a replica that is being added is not missed: it has never been in sync.

    A topic with fewer replicas than `min.insync.replicas` needs all of them.
    """
    in_sync = len(partition.isr_nodes)
    expected = [replica for replica in partition.replica_nodes if replica not in (adding or ())]
    # A leader counts even if it has no address on the listener of this connection.
    is_offline = partition.leader_id < 0 and partition.error_code != ErrorCode.LISTENER_NOT_FOUND
    holds = {
        OFFLINE: is_offline,
        UNDER_MIN_ISR: min_isr is not None and in_sync < min(min_isr, len(partition.replica_nodes)),
        UNDER_REPLICATED: in_sync < len(expected),
        MOVING: adding is not None,
    }
    return [state for state in STATES if holds[state]]


def missing_brokers(view: MetadataResponse) -> list[MissingBroker]:
    alive = {broker.node_id for broker in view.brokers}
    replicas = Counter(
        replica
        for topic in view.topics
        for partition in topic.partitions
        for replica in partition.replica_nodes
        if replica not in alive
    )
    return [MissingBroker(broker_id, count) for broker_id, count in sorted(replicas.items())]


def ask_min_isrs(address: tuple[str, int], topics: Iterable[str], timeout_s: float) -> dict[str, int]:
    """Return `min.insync.replicas` by topic, over one connection; without topics that the broker does not report."""
    from klamm.cli.broker_requests import connect
    from klamm.protocol.messages.describe_configs import (
        DescribeConfigsRequest,
        DescribeConfigsResource,
        DescribeConfigsResponse,
    )

    found: dict[str, int] = {}
    with contextlib.suppress(OSError), connect(address, timeout_s) as connection:
        for names in _chunks(topics):
            resources = [
                DescribeConfigsResource(resource_type=_TOPIC, resource_name=name, configuration_keys=[_MIN_ISR])
                for name in names
            ]
            answer = connection.ask(DescribeConfigsRequest(resources=resources), DescribeConfigsResponse, 1)
            found |= {
                result.resource_name: int(config.value)
                for result in answer.results
                for config in result.configs
                if config.name == _MIN_ISR and config.value
            }
    return found


def _chunks(names: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(names)
    while chunk := list(itertools.islice(rest, _TOPICS_ASKED_AT_ONCE)):
        yield chunk
