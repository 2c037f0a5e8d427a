"""Brokers move from the oldest inter-broker protocol to the newest one after another, while records are written.

Until the last has moved, some leaders change their ISR in ZooKeeper and others through the controller, which itself is
first of the old and then of the new protocol; topics have ids or not.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, Producer

from klamm.client.blocking_connection import ask_once
from klamm.controller.config import NEWEST, OLDEST
from klamm.model import ZERO_UUID
from klamm.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from klamm.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from klamm.testing import LocalCluster
from tests.support.calm import CALM
from tests.support.raw_client import TIMEOUT_S, RawClient, batch_of, eventually

TOPIC, PARTITIONS = "written", 3
PAUSE_S = 0.002


class Writer(threading.Thread):
    """Writes numbers to all partitions in turn, and remembers which were acknowledged."""

    def __init__(self, servers: str) -> None:
        super().__init__(daemon=True)
        self._servers = servers
        self._stop_wanted = threading.Event()
        self.acknowledged: dict[int, list[bytes]] = defaultdict(list)
        self.errors: list[KafkaError] = []

    def run(self) -> None:
        producer = Producer({"bootstrap.servers": self._servers, "enable.idempotence": True, "linger.ms": 5})
        number = 0
        while not self._stop_wanted.wait(PAUSE_S):
            producer.produce(TOPIC, b"%d" % number, partition=number % PARTITIONS, on_delivery=self._delivered)
            producer.poll(0)
            number += 1
        producer.flush(TIMEOUT_S)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(error)
        else:
            partition, value = message.partition(), message.value()
            assert partition is not None and isinstance(value, bytes)
            self.acknowledged[partition].append(value)

    def stop(self) -> None:
        self._stop_wanted.set()
        self.join()


class Upgrade:
    def __init__(self, cluster: LocalCluster, configs: dict[int, dict[str, object]]) -> None:
        self.cluster, self._configs = cluster, configs

    def upgrade(self, broker_id: int) -> None:
        """The cluster reads the configuration when the broker starts."""
        self.cluster.stop(broker_id)
        self._configs[broker_id]["inter.broker.protocol.version"] = str(NEWEST)
        self.cluster.start(broker_id)
        self.wait_until_in_sync(TOPIC)

    def wait_until_in_sync(self, topic: str) -> None:
        everybody = list(self.cluster.broker_ids)

        def is_in_sync() -> bool:
            partitions = self.described(topic).partitions
            return bool(partitions) and all(sorted(p.isr_nodes) == everybody for p in partitions)

        self.cluster.wait_for(is_in_sync, TIMEOUT_S, what=f"all replicas of {topic} in sync")

    def described(self, topic: str) -> MetadataResponseTopic:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        return self._client(self.cluster.controller_id).ask(request, 10, MetadataResponse).topics[0]

    def use(self, stage: str) -> None:
        """A topic of this stage is created, written, moved to two brokers and back, read, and deleted."""
        topic, (one, two, three) = f"stage-{stage}", self.cluster.broker_ids
        self.cluster.create_topic(topic, 1, 3)
        self.wait_until_in_sync(topic)
        self._produce(topic, b"before")
        for replicas in ([three, one], [one, two, three]):
            self._reassign(topic, replicas)
            self.cluster.wait_for(lambda: self._is_moved(topic, replicas), TIMEOUT_S, what=f"{topic} on {replicas}")  # noqa: B023
        self._produce(topic, b"after")
        leader = self._client(self.cluster.leader(topic))
        assert [value for _, value in leader.read_all(topic)] == [b"before", b"after"]
        self.cluster.delete_topic(topic)
        self.cluster.wait_for(lambda: not self._has_directory(topic), TIMEOUT_S, what=f"the end of {topic}")

    def _client(self, broker_id: int) -> RawClient:
        return RawClient(self.cluster.port(broker_id))

    def _produce(self, topic: str, value: bytes) -> None:
        def is_written() -> bool:
            return self._client(self.cluster.leader(topic)).produce(topic, batch_of([value])).error_code == 0

        eventually(is_written, f"{topic} cannot be written")

    def _reassign(self, topic: str, replicas: list[int]) -> None:
        partition = ReassignablePartition(partition_index=0, replicas=replicas)
        request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=topic, partitions=[partition])])
        to = ("127.0.0.1", self.cluster.port(self.cluster.controller_id))
        answer = ask_once(to, request, 0, AlterPartitionReassignmentsResponse, TIMEOUT_S)
        assert answer.error_code == 0 and answer.responses[0].partitions[0].error_code == 0

    def _is_moved(self, topic: str, replicas: list[int]) -> bool:
        (partition,) = self.described(topic).partitions
        return list(partition.replica_nodes) == replicas and set(partition.isr_nodes) == set(replicas)

    def _has_directory(self, topic: str) -> bool:
        """One in use: what is marked for deletion goes later."""
        directories = (self.cluster.data_dir / f"broker-{b}" / f"{topic}-0" for b in self.cluster.broker_ids)
        return any(directory.exists() for directory in directories)


@pytest.mark.long
def test_one_broker_after_another_moves_to_the_newest_protocol() -> None:
    configs: dict[int, dict[str, object]] = {
        b: {**CALM, "inter.broker.protocol.version": str(OLDEST)} for b in (1, 2, 3)
    }
    with LocalCluster(brokers=3, broker_configs=configs) as cluster:
        upgrade = Upgrade(cluster, configs)
        cluster.create_topic(TOPIC, PARTITIONS, 3, {"min.insync.replicas": 2})
        upgrade.wait_until_in_sync(TOPIC)
        assert upgrade.described(TOPIC).topic_id == ZERO_UUID, "the oldest protocol has no topic ids"
        writer = Writer(cluster.bootstrap_servers)
        writer.start()
        try:
            _upgrade_all(cluster, upgrade)
        finally:
            writer.stop()
        assert not [b for b in cluster.broker_ids if "Traceback" in cluster.logs(b).read_text()]
        assert not writer.errors and set(writer.acknowledged) == set(range(PARTITIONS))
        for partition, values in writer.acknowledged.items():
            leader: Any = RawClient(cluster.port(cluster.leader(TOPIC, partition)))
            assert [value for _, value in leader.read_all(TOPIC, partition=partition)] == values


def _upgrade_all(cluster: LocalCluster, upgrade: Upgrade) -> None:
    """The controller last but one: there is an old controller over new brokers, and a new one over an old broker."""
    first = cluster.controller_id
    second, last = (b for b in cluster.broker_ids if b != first)
    upgrade.upgrade(second)
    assert cluster.controller_id == first
    upgrade.use("old-controller")
    upgrade.upgrade(first)
    if cluster.controller_id == last:  # still the old protocol: the role goes to one of the new
        cluster.expire_session(last)
        cluster.wait_for(lambda: cluster.controller_id != last, TIMEOUT_S, what="a controller of the new protocol")
        upgrade.wait_until_in_sync(TOPIC)
    upgrade.use("new-controller")
    upgrade.upgrade(last)
    eventually(lambda: upgrade.described(TOPIC).topic_id != ZERO_UUID, "the new controller gave it no id")
    upgrade.use("all-new")
