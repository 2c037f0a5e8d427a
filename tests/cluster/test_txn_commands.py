"""`klamm txn` on a cluster with real transactions, one of which hangs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.cli.client import BOOTSTRAP_VARIABLE
from klamm.testing import LocalCluster
from tests.support.calm import CALM
from tests.support.hanging_transaction import PRODUCER_ID, write_hanging_batch

WAIT_S = 120.0
VERIFICATION = "transaction.partition.verification.enable"
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2, broker_configs={**CALM, VERIFICATION: False}) as running:
        running.create_topic("orders", partitions=2, replication_factor=2)
        yield running


def klamm(cluster: LocalCluster, *arguments: str, fails: bool = False) -> str:
    env = {BOOTSTRAP_VARIABLE: cluster.bootstrap_servers}
    done = CliRunner().invoke(app, ["txn", *arguments], env=env)
    assert done.exit_code == (1 if fails else 0), (done.output, done.exception)
    return str(done.exception) if fails else done.stdout


def open_transaction(cluster: LocalCluster, transactional_id: str) -> Producer:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": transactional_id})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce("orders", value=b"open", partition=0)
    assert producer.flush(WAIT_S) == 0
    return producer


def test_an_open_transaction_is_shown_and_aborted(cluster: LocalCluster) -> None:
    producer = open_transaction(cluster, "shown")
    (listed,) = _json(cluster, "list", "--state", "Ongoing", "--json")
    assert (listed["transactional_id"], listed["state"]) == ("shown", "Ongoing")
    (described,) = _json(cluster, "describe", "shown", "--json")
    assert (described["state"], described["partitions"]) == ("Ongoing", ["orders-0"])
    assert _json(cluster, "find-hanging", "--max-transaction-timeout", "0", "--json") == []
    assert klamm(cluster, "abort", "shown").startswith("The transaction of shown was aborted;")
    (described,) = _json(cluster, "describe", "shown", "--json")
    assert described["partitions"] == [] and described["producer_epoch"] >= 1
    with pytest.raises(KafkaException) as fenced:
        producer.commit_transaction(WAIT_S)
    assert fenced.value.args[0].fatal()


def test_a_hanging_transaction_is_found_and_ended(cluster: LocalCluster) -> None:
    write_hanging_batch(cluster.bootstrap_servers, "orders", 1, timestamp_ms=int(time.time() * 1000) - HOUR_MS)
    (found,) = _json(cluster, "find-hanging", "--json")
    assert (found["partition"], found["producer_id"]) == ("orders-1", PRODUCER_ID)
    follower = next(b for b in cluster.broker_ids if b != cluster.leader("orders", 1))
    cluster.wait_for(
        lambda: _json(cluster, "find-hanging", "--broker-id", str(follower), "--json") == [found],
        what="the follower's view",
    )
    arguments = ("abort", "--topic", "orders", "--partition", "1", "--start-offset", str(found["start_offset"]))
    assert klamm(cluster, *arguments) == f"Aborted the transaction of producer {PRODUCER_ID} in orders-1.\n"
    assert _json(cluster, "find-hanging", "--json") == []
    assert "has no open transaction" in klamm(cluster, *arguments, fails=True)


def test_an_unknown_state_is_answered_with_the_known_ones(cluster: LocalCluster) -> None:
    sentence = klamm(cluster, "list", "--state", "ongoing", fails=True)
    assert sentence.startswith("'ongoing' is not a state of a transaction. There are: Empty, Ongoing, ")
    for state in sentence.split(": ")[1].removesuffix(".").split(", "):
        klamm(cluster, "list", "--state", state)


def test_an_unknown_id(cluster: LocalCluster) -> None:
    assert "No coordinator knows the transactional id nobody" in klamm(cluster, "describe", "nobody", fails=True)


def _json(cluster: LocalCluster, *arguments: str) -> Any:
    return json.loads(klamm(cluster, *arguments))
