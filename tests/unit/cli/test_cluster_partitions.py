"""Which partitions `klamm cluster status` calls not well, and which brokers it misses."""

from __future__ import annotations

from klamm.cli.cluster_partitions import MissingBroker, missing_brokers, unwell_partitions
from klamm.errors import ErrorCode
from klamm.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


def topic(name: str, *partitions: tuple[int, tuple[int, ...], tuple[int, ...], ErrorCode]) -> MetadataResponseTopic:
    described = [
        MetadataResponsePartition(
            error_code=error,
            partition_index=number,
            leader_id=leader,
            leader_epoch=0,
            replica_nodes=replicas,
            isr_nodes=isr,
        )
        for number, (leader, replicas, isr, error) in enumerate(partitions)
    ]
    return MetadataResponseTopic(error_code=ErrorCode.NONE, name=name, is_internal=False, partitions=described)


NONE, NO_LEADER = ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE
VIEW = MetadataResponse(
    brokers=[MetadataResponseBroker(node_id=each, host="h", port=1) for each in (1, 2)],
    cluster_id="c",
    controller_id=1,
    topics=[
        topic("b", (1, (1, 2), (2, 1), NONE), (1, (1, 3), (1,), NONE), (-1, (3, 4), (3,), NO_LEADER)),
        topic("a", (1, (1, 2), (1,), NONE), (-1, (2,), (2,), ErrorCode.LISTENER_NOT_FOUND), (1, (1,), (1,), NONE)),
    ],
)


def states(min_isrs: dict[str, int]) -> list[tuple[str, list[str]]]:
    return [(f"{each.topic}-{each.partition}", each.states) for each in unwell_partitions(VIEW, min_isrs)]


def test_the_worst_comes_first() -> None:
    assert states({"a": 1, "b": 2}) == [
        ("b-2", ["offline", "under min ISR", "under-replicated"]),
        ("b-1", ["under min ISR", "under-replicated"]),
        ("a-0", ["under-replicated"]),
    ]


def test_a_topic_whose_min_isr_nobody_told() -> None:
    assert ("b-1", ["under-replicated"]) in states({})


def test_full_replicas_can_be_too_few() -> None:
    assert ("a-2", ["under min ISR"]) in states({"a": 2})


def test_who_is_missed() -> None:
    assert missing_brokers(VIEW) == [MissingBroker(3, 2), MissingBroker(4, 1)]
