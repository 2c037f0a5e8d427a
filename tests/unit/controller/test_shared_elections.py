"""A controller with very many partitions decides once for all that are alike: the outcome is that of each alone."""

from __future__ import annotations

from random import Random

import pytest

from klamm.clock import SystemClock
from klamm.controller.config import ControllerConfig
from klamm.controller.context import ControllerContext
from klamm.controller.context.known_topics import Topics
from klamm.controller.election import ElectionStrategy
from klamm.controller.partition_state_machine import KnownElections, run_strategy
from klamm.model import BrokerEndPoints, EndPoint, LeaderAndIsr, ReplicaAssignment, TopicPartition
from klamm.zk.model.znodes import TopicZnode, decode_topic, encode_topic

BROKERS = (1, 2, 3, 4)


def random_context(rng: Random) -> ControllerContext:
    """Some brokers live, some have lost log directories, and some were not shut down cleanly."""
    ctx = ControllerContext(ControllerConfig(1, (EndPoint("PLAINTEXT", "127.0.0.1", 9092),)), SystemClock(), rng)
    for broker in BROKERS:
        if rng.random() < 0.8:
            ctx.brokers.add(BrokerEndPoints(broker, ()))
    return ctx


def random_states(rng: Random) -> tuple[list[ReplicaAssignment], list[LeaderAndIsr]]:
    assignments = [ReplicaAssignment(tuple(rng.sample(BROKERS, rng.randint(1, 3)))) for _ in range(3)]
    states = [
        LeaderAndIsr(rng.choice((-1, *BROKERS)), rng.randint(0, 5), tuple(rng.sample(BROKERS, rng.randint(1, 3))))
        for _ in range(3)
    ]
    return assignments, states


@pytest.mark.parametrize("seed", range(40))
def test_shared_elections_are_those_of_each_partition_alone(seed: int) -> None:
    rng = Random(seed)
    ctx = random_context(rng)
    assignments, states = random_states(rng)
    tps = [TopicPartition("T", partition) for partition in range(60)]
    state_of = {}
    for tp in tps:
        ctx.topics.put_assignment(tp, rng.choice(assignments))
        state_of[tp] = rng.choice(states)
        if rng.random() < 0.2:
            ctx.brokers.lose_log(rng.choice(BROKERS), tp)
        if rng.random() < 0.1:
            ctx.suspects.left[tp] = (rng.choice(BROKERS),)
    if rng.random() < 0.7:
        ctx.suspects.add(rng.choice(BROKERS), rng.sample(tps, 30))
    known: KnownElections = {}
    for tp in tps:
        allow_unclean = rng.random() < 0.3
        alone = run_strategy(ctx, tp, state_of[tp], ElectionStrategy.OFFLINE, allow_unclean=allow_unclean)
        shared = run_strategy(ctx, tp, state_of[tp], ElectionStrategy.OFFLINE, allow_unclean=allow_unclean, known=known)
        assert shared == alone
    assert len(known) < len(tps), "no two partitions were alike"


def test_an_entry_keeps_the_values_whose_identities_it_has() -> None:
    """Another state could otherwise get the identity of one that is gone, and its election."""
    ctx = random_context(Random(1))
    for broker in BROKERS:
        ctx.brokers.add(BrokerEndPoints(broker, ()))
    tp = TopicPartition("T", 0)
    ctx.topics.put_assignment(tp, ReplicaAssignment((1, 2)))
    known: KnownElections = {}
    for epoch in range(200):
        state = LeaderAndIsr(1, epoch, (1, 2))
        found = run_strategy(ctx, tp, state, ElectionStrategy.OFFLINE, allow_unclean=False, known=known)
        assert found is not None and found.leader_and_isr.leader_epoch == epoch + 1
        del state


def test_assignments_of_a_new_topic_are_those_put_one_by_one() -> None:
    assignments = {0: ReplicaAssignment((1, 2)), 1: ReplicaAssignment((2, 3)), 2: ReplicaAssignment(())}
    together, one_by_one = Topics(), Topics()
    together.put_new("T", assignments)
    for partition, assignment in assignments.items():
        one_by_one.put_assignment(TopicPartition("T", partition), assignment)
    assert dict(together) == dict(one_by_one)
    assert together.by_broker == one_by_one.by_broker
    assert dict(together.all_assignments()) == {TopicPartition("T", p): a for p, a in assignments.items()}
    with pytest.raises(AssertionError, match="known already"):
        together.put_new("T", assignments)


def test_equal_assignments_of_a_topic_share_one_value() -> None:
    replicas = {0: (1, 2), 1: (2, 1), 2: (1, 2), 3: (3,), 4: (2, 1)}
    znode = TopicZnode({p: ReplicaAssignment(r) for p, r in replicas.items()})
    found = decode_topic("T", encode_topic(znode)).assignment
    assert found == znode.assignment
    assert found[0] is found[2] and found[1] is found[4]
