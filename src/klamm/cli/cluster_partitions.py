"""Which partitions are not well, and which brokers they miss."""

from __future__ import annotations

import contextlib
import itertools
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from klamm.errors import ErrorCode

if TYPE_CHECKING:
    from klamm.protocol.messages.metadata import MetadataResponse, MetadataResponsePartition

OFFLINE: Final = "offline"
UNDER_MIN_ISR: Final = "under min ISR"
UNDER_REPLICATED: Final = "under-replicated"
STATES: Final = (OFFLINE, UNDER_MIN_ISR, UNDER_REPLICATED)
"""The worst first."""

_MIN_ISR: Final = "min.insync.replicas"
_TOPIC: Final = 2
_TOPICS_ASKED_AT_ONCE: Final = 500


@dataclass(slots=True)
class PartitionStatus:
    """`states` begins with the worst. `min_isr` is None when nobody told the topic's min.insync.replicas."""

    topic: str
    partition: int
    states: list[str]
    leader: int
    replicas: list[int]
    isr: list[int]
    min_isr: int | None


@dataclass(slots=True)
class MissingBroker:
    """A broker that is not alive although it has replicas."""

    id: int
    replicas: int


def unwell_partitions(view: MetadataResponse, min_isrs: Mapping[str, int]) -> list[PartitionStatus]:
    """The worst first, then by name."""
    found = [
        PartitionStatus(
            str(topic.name),
            partition.partition_index,
            states,
            partition.leader_id,
            list(partition.replica_nodes),
            sorted(partition.isr_nodes),
            min_isrs.get(str(topic.name)),
        )
        for topic in view.topics
        for partition in topic.partitions
        if (states := _states(partition, min_isrs.get(str(topic.name))))
    ]
    return sorted(found, key=lambda each: (STATES.index(each.states[0]), each.topic, each.partition))


def _states(partition: MetadataResponsePartition, min_isr: int | None) -> list[str]:
    in_sync = len(partition.isr_nodes)
    # a leader that the listener we came by cannot reach is a leader all the same
    is_offline = partition.leader_id < 0 and partition.error_code != ErrorCode.LISTENER_NOT_FOUND
    holds = {
        OFFLINE: is_offline,
        UNDER_MIN_ISR: min_isr is not None and in_sync < min_isr,
        UNDER_REPLICATED: in_sync < len(partition.replica_nodes),
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
    """`min.insync.replicas` of each topic, over one connection; without those that the broker does not tell."""
    from klamm.protocol.messages.describe_configs import (
        DescribeConfigsRequest,
        DescribeConfigsResource,
        DescribeConfigsResponse,
    )
    from klamm.testing.wire_client import exchange

    told: dict[str, int] = {}
    with contextlib.suppress(OSError), socket.create_connection(address, timeout_s) as connection:
        for names in _chunks(topics):
            resources = [
                DescribeConfigsResource(resource_type=_TOPIC, resource_name=name, configuration_keys=[_MIN_ISR])
                for name in names
            ]
            answer = exchange(connection, DescribeConfigsRequest(resources=resources), 1, DescribeConfigsResponse)
            told |= {
                result.resource_name: int(config.value)
                for result in answer.results
                for config in result.configs
                if config.name == _MIN_ISR and config.value
            }
    return told


def _chunks(names: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(names)
    while chunk := list(itertools.islice(rest, _TOPICS_ASKED_AT_ONCE)):
        yield chunk
