"""A transaction whose coordinator is killed after the outcome was stored and before any marker was written."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from klamm.client.blocking_connection import ask_once
from klamm.errors import ErrorCode
from klamm.protocol.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from klamm.testing import LocalCluster
from tests.support.calm import CALM, kill_at_once
from tests.support.raw_client import eventually

WAIT_S = 120
TXN = "payments"


def coordinator(cluster: LocalCluster, via: int) -> int:
    request = FindCoordinatorRequest(key=TXN, key_type=1)
    found = ask_once(("127.0.0.1", cluster.port(via)), request, 1, FindCoordinatorResponse, WAIT_S)
    return found.node_id


def state(cluster: LocalCluster, broker_id: int) -> str | None:
    """The state of the transaction as this broker has it; None if it does not coordinate it."""
    request = DescribeTransactionsRequest(transactional_ids=[TXN])
    answer = ask_once(("127.0.0.1", cluster.port(broker_id)), request, 0, DescribeTransactionsResponse, WAIT_S)
    [found] = answer.transaction_states
    return found.transaction_state if found.error_code == ErrorCode.NONE else None


@pytest.mark.parametrize("commit", [True, pytest.param(False, marks=pytest.mark.long)])
def test_the_next_coordinator_writes_the_markers(commit: bool) -> None:
    with LocalCluster(brokers=3, broker_configs=CALM) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": TXN, "log_level": 0})
        producer.init_transactions(WAIT_S)
        first = coordinator(cluster, via=1)
        topic = cluster.unique_topic_name()
        cluster.create_topic(topic, partitions=3)  # one replica each, on three brokers
        partition = next(number for number in range(3) if cluster.leader(topic, number) != first)
        holder = cluster.leader(topic, partition)
        producer.begin_transaction()
        producer.produce(topic, b"record", partition=partition)
        producer.flush(WAIT_S)
        cluster.pause(holder)  # its partition has no other replica: the marker cannot be written
        cluster.expire_session(holder)  # the coordinator does not wait for its copy of the transaction log
        end = producer.commit_transaction if commit else producer.abort_transaction
        end(WAIT_S)
        prepared = "PrepareCommit" if commit else "PrepareAbort"
        assert state(cluster, first) == prepared
        kill_at_once(cluster, first)
        second = 6 - first - holder
        eventually(lambda: state(cluster, second) == prepared, "the other broker did not become the coordinator")
        cluster.resume(holder)
        completed = "CompleteCommit" if commit else "CompleteAbort"
        eventually(
            lambda: completed in (state(cluster, second), state(cluster, holder)), "the transaction was not completed"
        )
        assert visible(cluster, topic, partition, holder) == ([b"record"] if commit else [])


def visible(cluster: LocalCluster, topic: str, partition: int, broker_id: int) -> list[bytes]:
    """All records that a read_committed consumer sees up to the end of the partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{cluster.port(broker_id)}",
            "group.id": "readers",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[bytes] = []
    while True:
        message = eventually(lambda: consumer.poll(0.5), "the partition was not read")
        if (error := message.error()) is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            consumer.close()
            return found
        found.append(message.value() or b"")
