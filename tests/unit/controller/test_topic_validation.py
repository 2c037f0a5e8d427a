"""Validation of topics, with the error codes that clients receive."""

from __future__ import annotations

from random import Random

import pytest

from klamm.controller.events import CreatablePartitions, CreatableTopic
from klamm.controller.topic_validation import (
    Refused,
    TopicDefaults,
    colliding_topic,
    plan_partitions,
    plan_topic,
    validate_topic_name,
)
from klamm.errors import ErrorCode
from klamm.model import ReplicaAssignment

BROKERS: dict[int, str | None] = {1: None, 2: None, 3: None}


def plan(spec: CreatableTopic, **known: object) -> dict[int, tuple[int, ...]] | Refused:
    return plan_topic(
        spec,
        exists=bool(known.get("exists")),
        collides_with=None,
        brokers=BROKERS,
        defaults=TopicDefaults(2, 3, max_partitions=100),
        rng=Random(0),
    )


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "__consumer_offsets"])
def test_good_names(name: str) -> None:
    assert validate_topic_name(name) is None


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "ä", "a\n", "a\0"])
def test_bad_names(name: str) -> None:
    refused = validate_topic_name(name)
    assert refused is not None and refused.error is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_names_that_collide() -> None:
    keys = {"a_b": "a.b"}
    assert colliding_topic("a_b", keys) == "a.b"
    assert colliding_topic("a.b", keys) is None
    assert colliding_topic("ab", keys) is None


def test_defaults_are_the_brokers() -> None:
    planned = plan(CreatableTopic("t"))
    assert isinstance(planned, dict)
    assert [len(replicas) for replicas in planned.values()] == [3, 3]


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        (CreatableTopic("bad name"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (CreatableTopic("t", 0, 1), ErrorCode.INVALID_PARTITIONS),
        (CreatableTopic("t", -5, 1), ErrorCode.INVALID_PARTITIONS),
        (CreatableTopic("t", 2**31 - 1, 1), ErrorCode.INVALID_PARTITIONS),
        (CreatableTopic("t", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (CreatableTopic("t", 1, 4), ErrorCode.INVALID_REPLICATION_FACTOR),
        (CreatableTopic("t", 1, 1, assignments=((0, (1,)),)), ErrorCode.INVALID_REQUEST),
        (CreatableTopic("t", assignments=((1, (1,)),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (CreatableTopic("t", assignments=((0, (1,)), (0, (2,)))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (CreatableTopic("t", assignments=((0, ()),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (CreatableTopic("t", assignments=((0, (1, 1)),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (CreatableTopic("t", assignments=((0, (1, 9)),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (CreatableTopic("t", assignments=((0, (1, 2)), (1, (1,)))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_refusals(spec: CreatableTopic, error: ErrorCode) -> None:
    refused = plan(spec)
    assert isinstance(refused, Refused) and refused.error is error and refused.message


def test_a_topic_that_exists() -> None:
    refused = plan(CreatableTopic("t"), exists=True)
    assert isinstance(refused, Refused) and refused.error is ErrorCode.TOPIC_ALREADY_EXISTS


def test_an_explicit_assignment_is_taken_in_order() -> None:
    assert plan(CreatableTopic("t", assignments=((1, (3, 1)), (0, (2, 3))))) == {0: (2, 3), 1: (3, 1)}


CURRENT = {0: ReplicaAssignment((2, 3)), 1: ReplicaAssignment((3, 1))}


def grow(count: int, assignments: tuple[tuple[int, ...], ...] | None = None) -> dict[int, tuple[int, ...]] | Refused:
    return plan_partitions(CreatablePartitions("t", count, assignments), CURRENT, BROKERS, TopicDefaults())


def test_growth_continues_where_partition_0_began() -> None:
    grown = grow(4)
    assert isinstance(grown, dict)
    assert list(grown) == [2, 3] and grown[2][0] == 1 and all(len(r) == 2 for r in grown.values())


@pytest.mark.parametrize(
    ("count", "assignments", "error"),
    [
        (1, None, ErrorCode.INVALID_PARTITIONS),
        (2, None, ErrorCode.INVALID_PARTITIONS),
        (4, ((1, 2),), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, ((1,),), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, ((1, 9),), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_growth_refused(count: int, assignments: tuple[tuple[int, ...], ...] | None, error: ErrorCode) -> None:
    refused = grow(count, assignments)
    assert isinstance(refused, Refused) and refused.error is error
