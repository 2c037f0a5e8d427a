"""A large cluster without the time it takes to grow: topics written straight into ZooKeeper, in transactions of many.

Writes the znodes that a controller would write: topic, configuration and partition states, with all replicas in sync
and the first of them leading.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from random import Random
from typing import Final
from uuid import UUID

from klamm.model import LeaderAndIsr, LeaderIsrAndControllerEpoch, ReplicaAssignment, TopicPartition
from klamm.zk.client.zk_session import ZkSession
from klamm.zk.model import paths
from klamm.zk.model.ops import Create, WriteOp
from klamm.zk.model.znodes import TopicZnode, encode_config, encode_partition_state, encode_topic

OPS_PER_TRANSACTION: Final = 1_000
PARENTS: Final = (paths.TOPICS, "/config/topics")


def topic_names(count: int, stem: str = "bench") -> list[str]:
    return [f"{stem}-{index:06d}" for index in range(count)]


def spread(brokers: Sequence[int], index: int, replication_factor: int) -> tuple[int, ...]:
    """Replicas in turn, so that every broker leads an equal share."""
    return tuple(brokers[(index + step) % len(brokers)] for step in range(replication_factor))


def topic_ops(name: str, partitions: int, brokers: Sequence[int], rf: int, first: int, rng: Random) -> list[WriteOp]:
    """All znodes of one topic; `first` is the number of its first partition among all, which decides its leader."""
    assignment = {p: ReplicaAssignment(spread(brokers, first + p, rf)) for p in range(partitions)}
    znode = TopicZnode(assignment, UUID(int=rng.getrandbits(128), version=4))
    ops: list[WriteOp] = [
        Create(paths.config_entity_path("topics", name), encode_config({})),
        Create(paths.topic_path(name), encode_topic(znode)),
        Create(paths.topic_partitions_path(name)),
    ]
    for p, replicas in assignment.items():
        state = LeaderIsrAndControllerEpoch(LeaderAndIsr(replicas.replicas[0], 0, replicas.replicas), 0)
        ops += [
            Create(paths.partition_path(name, p)),
            Create(paths.partition_state_path(*TopicPartition(name, p)), encode_partition_state(state)),
        ]
    return ops


def transactions(
    names: Sequence[str], partitions: int, brokers: Sequence[int], replication_factor: int, first: int = 0
) -> Iterator[list[WriteOp]]:
    """Yield the operations of all topics, as many per transaction as fit; `first` counts the partitions before them."""
    rng = Random(first)
    pending: list[WriteOp] = []
    for number, name in enumerate(names):
        ops = topic_ops(name, partitions, brokers, replication_factor, first + number * partitions, rng)
        if pending and len(pending) + len(ops) > OPS_PER_TRANSACTION:
            yield pending
            pending = []
        pending += ops
    if pending:
        yield pending


async def seed(
    zookeeper: str,
    names: Sequence[str],
    partitions: int,
    brokers: Sequence[int],
    replication_factor: int,
    first: int = 0,
) -> None:
    """Writes the topics; brokers that run already learn of them as of topics that a tool made."""
    session = await ZkSession(zookeeper, 30_000).start(30_000)
    try:
        await session.ensure_paths(PARENTS)
        for ops in transactions(names, partitions, brokers, replication_factor, first):
            await session.multi(ops)
    finally:
        await session.close()


def seed_now(
    zookeeper: str,
    names: Sequence[str],
    partitions: int,
    brokers: Sequence[int],
    replication_factor: int,
    first: int = 0,
) -> None:
    asyncio.run(seed(zookeeper, names, partitions, brokers, replication_factor, first))
