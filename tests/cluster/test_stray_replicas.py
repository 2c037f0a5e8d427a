"""A replica is moved away from a broker that is down, and the controller that knew of it is gone when it returns."""

from __future__ import annotations

from pathlib import Path

from klamm.client.blocking_connection import ask_once
from klamm.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from klamm.testing import LocalCluster
from tests.support.calm import CALM, kill_at_once
from tests.support.raw_client import RawClient

WAIT_S = 60.0


def reassign(cluster: LocalCluster, topic: str, replicas: list[int]) -> None:
    partition = ReassignablePartition(partition_index=0, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=topic, partitions=[partition])])
    to = ("127.0.0.1", cluster.port(cluster.controller_id))
    answer = ask_once(to, request, 0, AlterPartitionReassignmentsResponse, WAIT_S)
    assert answer.error_code == 0 and answer.responses[0].partitions[0].error_code == 0


def directory(cluster: LocalCluster, broker_id: int) -> Path:
    return cluster.data_dir / f"broker-{broker_id}" / "moved-0"


def replicas(cluster: LocalCluster, asked: int) -> set[int]:
    """Of the topic that is moved, as this broker knows it."""
    topics = RawClient(cluster.port(asked)).metadata("moved").topics
    return {replica for topic in topics for partition in topic.partitions for replica in partition.replica_nodes}


def test_the_log_goes_when_its_broker_returns() -> None:
    with LocalCluster(brokers=3, broker_configs=CALM) as cluster:
        first = cluster.controller_id
        away, target = (broker for broker in cluster.broker_ids if broker != first)
        cluster.create_topic("moved", replication_factor=3)
        cluster.create_topic("kept", replication_factor=3)
        cluster.wait_for(lambda: directory(cluster, away).is_dir(), WAIT_S, what="the replica")
        kill_at_once(cluster, away)
        reassign(cluster, "moved", [first, target])
        cluster.wait_for(lambda: away not in replicas(cluster, first), WAIT_S, what="the end of the move")
        kill_at_once(cluster, first)
        cluster.wait_for(lambda: cluster.controller_id == target, WAIT_S, what="another controller")
        assert directory(cluster, away).is_dir()
        cluster.start(away)
        cluster.wait_for(lambda: not directory(cluster, away).exists(), WAIT_S, what="the end of the stray replica")
        assert (
            "1 replicas were moved away while this broker was offline or lagging: moved-0"
            in cluster.logs(away).read_text()
        )
        cluster.wait_for(lambda: away in cluster.isr("kept"), WAIT_S, what="the other replica in sync")
