"""The first consumer group and the first transaction of a cluster that has lost a broker since its start."""

from __future__ import annotations

from confluent_kafka import Consumer, Producer

from klamm.errors import ErrorCode
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from klamm.testing import LocalCluster
from tests.support.raw_client import RawClient, eventually

PATIENCE_S = 60


def test_it_works_although_a_broker_was_killed_right_after_the_start() -> None:
    with LocalCluster(brokers=3, broker_configs={"transaction.state.log.replication.factor": 3}) as cluster:
        cluster.kill(cluster.controller_id)
        alive = [broker_id for broker_id in cluster.broker_ids if cluster.is_running(broker_id)]
        servers = ",".join(f"127.0.0.1:{cluster.port(broker_id)}" for broker_id in alive)
        cluster.create_topic("t")
        producer = Producer({"bootstrap.servers": servers, "transactional.id": "first"})
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        producer.produce("t", b"first")
        producer.commit_transaction(PATIENCE_S)
        consumer = Consumer({"bootstrap.servers": servers, "group.id": "g", "auto.offset.reset": "earliest"})
        try:
            consumer.subscribe(["t"])
            record = eventually(lambda: consumer.poll(0.1), "the group never got a record")
            assert record.value() == b"first"
        finally:
            consumer.close()


def test_a_factor_that_no_cluster_of_this_size_can_have() -> None:
    """Clients do not wait for an impossible result, and receive the reason."""
    with LocalCluster(brokers=2, broker_configs={"offsets.topic.replication.factor": 3}) as cluster:
        cluster.kill(2)
        request = FindCoordinatorRequest(key="g", key_type=0)
        answer = RawClient(cluster.port(1)).ask(request, 1, FindCoordinatorResponse)
        assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert "offsets.topic.replication.factor is 3" in (answer.error_message or "")
        said = "The topic __consumer_offsets cannot be created"
        eventually(lambda: said in cluster.logs(1).read_text() or said in cluster.logs(2).read_text(), "nobody said so")
