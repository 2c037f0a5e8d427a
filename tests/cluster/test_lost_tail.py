"""Brokers that lost the tail of a log, as after a loss of power: what another replica still has is not lost.

A process is killed, its log is cut, and it is started again. Kafka's rule would elect it and truncate the others.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient

from klamm.errors import ErrorCode
from klamm.testing import LocalCluster
from tests.support.calm import CALM, kill_at_once
from tests.support.raw_client import RawClient, batch_of, eventually

RECORDS = 200
LATER_MS = 600_000
"""No test waits until the controller gives up on replicas that are missing."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    configs = {**CALM, "klamm.unclean.replica.wait.ms": LATER_MS}
    with LocalCluster(brokers=3, broker_configs=configs) as cluster:
        yield cluster


def fill(cluster: LocalCluster, topic: str, **config: int) -> tuple[int, int, list[bytes]]:
    """A partition on all brokers that the controller leads, with records that all have: (leader, partition, values)."""
    cluster.create_topic(topic, partitions=3, replication_factor=3, config={"min.insync.replicas": 3, **config})
    leader = cluster.controller_id
    (partition,) = [p for p in range(3) if cluster.leader(topic, p) == leader]
    values = [f"{topic} {i}".encode() for i in range(RECORDS)]
    client = RawClient(cluster.port(leader))
    for start in range(0, RECORDS, 20):
        answer = client.produce(topic, batch_of(values[start : start + 20]), partition=partition)
        assert answer.error_code == ErrorCode.NONE
    return leader, partition, values


def cut(cluster: LocalCluster, broker_id: int, topic: str, partition: int, share: float) -> None:
    """The broker's log loses its end."""
    (log,) = cluster.data_dir.glob(f"broker-{broker_id}/**/{topic}-{partition}/00000000000000000000.log")
    with log.open("r+b") as file:
        file.truncate(int(log.stat().st_size * share))


def all_values(cluster: LocalCluster, topic: str, partition: int) -> list[bytes | None]:
    """Return the leader's records when all replicas follow it."""
    cluster.wait_for(lambda: sorted(cluster.isr(topic, partition)) == [1, 2, 3], what="all replicas in sync")
    leader = RawClient(cluster.port(cluster.leader(topic, partition)))
    return [value for _, value in leader.read_all(topic, partition=partition)]


def kill_all(cluster: LocalCluster) -> None:
    """At once: nobody is left to change the ISR. Their sessions end, too."""
    for broker in (1, 2, 3):
        cluster.pause(broker)
    for broker in (1, 2, 3):
        kill_at_once(cluster, broker)


def until_nobody_is_registered(cluster: LocalCluster) -> None:
    client = KazooClient(cluster.zookeeper_connect)
    client.start()
    try:
        eventually(lambda: client.get_children("/brokers/ids") == [] or None, "broker sessions have not expired")
    finally:
        client.stop()
        client.close()


def test_a_leader_and_controller_that_bounces_before_anybody_looked(cluster: LocalCluster) -> None:
    leader, partition, values = fill(cluster, "bounce")
    others = [broker for broker in (1, 2, 3) if broker != leader]
    for other in others:
        cluster.pause(other)
    cluster.kill(leader)
    cut(cluster, leader, "bounce", partition, 0.3)
    cluster.start(leader)
    for other in others:
        cluster.resume(other)
    assert all_values(cluster, "bounce", partition) == values


def test_all_brokers_are_killed_and_those_with_a_lost_tail_return_first(cluster: LocalCluster) -> None:
    first, partition, values = fill(cluster, "blackout")
    second, last = [broker for broker in (1, 2, 3) if broker != first]
    kill_all(cluster)
    cut(cluster, first, "blackout", partition, 0.3)
    cut(cluster, second, "blackout", partition, 0.6)
    until_nobody_is_registered(cluster)
    for broker in (first, second, last):
        cluster.start(broker)
    assert all_values(cluster, "blackout", partition) == values


@pytest.mark.long
def test_a_clean_stop_does_not_make_up_for_a_lost_tail(cluster: LocalCluster) -> None:
    first, partition, values = fill(cluster, "stopped")
    kill_all(cluster)
    cut(cluster, first, "stopped", partition, 0.5)
    until_nobody_is_registered(cluster)
    cluster.start(first)
    cluster.stop(first)
    for broker in (first, *(broker for broker in (1, 2, 3) if broker != first)):
        cluster.start(broker)
    assert all_values(cluster, "stopped", partition) == values


def damage(cluster: LocalCluster, broker_id: int, topic: str, partition: int) -> None:
    """The end of the broker's log is zeros, as on a disk that did not keep what it had acknowledged."""
    (log,) = cluster.data_dir.glob(f"broker-{broker_id}/**/{topic}-{partition}/00000000000000000000.log")
    data = log.read_bytes()
    log.write_bytes(data[: len(data) // 3] + bytes(len(data) - len(data) // 3))


def truncate_sealed_segment(cluster: LocalCluster, broker_id: int, topic: str, partition: int) -> None:
    """A segment in the middle of the broker's log loses its second half."""
    logs = sorted(cluster.data_dir.glob(f"broker-{broker_id}/**/{topic}-{partition}/*.log"))
    assert len(logs) > 3
    with logs[1].open("r+b") as file:
        file.truncate(logs[1].stat().st_size // 2)


def copies(cluster: LocalCluster, topic: str, partition: int) -> list[bytes]:
    """The bytes of each replica."""
    found = [sorted(cluster.data_dir.glob(f"broker-{b}/**/{topic}-{partition}/*.log")) for b in (1, 2, 3)]
    return [b"".join(log.read_bytes() for log in logs) for logs in found]


def test_the_last_in_sync_was_damaged_after_a_clean_stop_and_another_has_all_records(cluster: LocalCluster) -> None:
    """Brokers that were stopped earlier are not in the ISR, but have all records: the damaged one does not lead.

    It fetches from them what it lacks: the end of one log, and records in the middle of another.
    """
    last, partition, values = fill(cluster, "damaged")
    same, of_sealed, sealed_values = fill(cluster, "sealed", **{"segment.bytes": 1_000})
    assert same == last
    others = [broker for broker in (1, 2, 3) if broker != last]
    for broker in (*others, last):
        cluster.stop(broker)
    damage(cluster, last, "damaged", partition)
    truncate_sealed_segment(cluster, last, "sealed", of_sealed)
    for broker in (*others, last):
        cluster.start(broker)
    assert all_values(cluster, "damaged", partition) == values
    assert all_values(cluster, "sealed", of_sealed) == sealed_values
    for topic, of_topic in (("damaged", partition), ("sealed", of_sealed)):
        assert len(set(copies(cluster, topic, of_topic))) == 1, f"the replicas of {topic} differ"
