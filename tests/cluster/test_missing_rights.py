"""Commands of users without rights: no listing passes for that of an empty cluster, and refusals name what to grant."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer

from klamm.testing import LocalCluster

CONFIGS = {"klamm.metrics.port": 0, "transaction.state.log.replication.factor": 1}
LIMITED = 5


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, sasl="SCRAM-SHA-256", acls=True, broker_configs=CONFIGS) as running:
        running.create_topic("orders", 2, 1)
        running.create_topic("audit", 1, 1)
        producer = Producer({**running.client_config(), "transactional.id": "payments"})
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("orders", b"x")
        producer.commit_transaction()
        consumer = Consumer({**running.client_config(), "group.id": "billing", "auto.offset.reset": "earliest"})
        consumer.subscribe(["orders"])
        while consumer.poll(1.0) is None:
            pass
        consumer.close()
        yield running


def run(cluster: LocalCluster, user: str | None, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    path = cluster.write_client_properties(user, cluster.data_dir / f"{user or 'admin'}.properties")
    environment = {
        **os.environ,
        "KLAMM_COMMAND_CONFIG": str(path),
        "KLAMM_BOOTSTRAP_SERVERS": cluster.bootstrap_servers,
    }
    command = [sys.executable, "-m", "klamm.cli.main", *arguments]
    return subprocess.run(command, input=given, capture_output=True, text=True, env=environment, timeout=120)


def user(cluster: LocalCluster, name: str) -> str:
    cluster.add_user(name)
    return name


def grants_of(text: str) -> list[str]:
    return re.findall(r"`(klamm acl add [^`]*)`", text)


def grant(cluster: LocalCluster, command: str) -> None:
    """Run a command that a note recommends, as the administrator."""
    done = run(cluster, None, *shlex.split(command)[1:])
    assert done.returncode == 0, done.stderr


def allow(cluster: LocalCluster, name: str, operation: str, *resource: str) -> None:
    arguments = ("--allow-principal", f"User:{name}", "--operation", operation, *resource)
    done = run(cluster, None, "acl", "add", *arguments)
    assert done.returncode == 0, done.stderr


def test_the_status_names_the_rights_that_it_lacks(cluster: LocalCluster) -> None:
    name = user(cluster, "watcher")
    seen = run(cluster, name, "cluster", "status")
    assert seen.returncode == LIMITED
    assert "0 of 0 topics that the user may describe" in seen.stdout
    assert "an unknown number under min ISR" in seen.stdout
    assert "the user lacks Describe on all topics: topics without this right are neither shown" in seen.stdout
    assert "This is not the state of the whole cluster." in seen.stderr
    assert "Set klamm.metrics.port" not in seen.stderr, "the metrics are on, the user may not know where"
    found = json.loads(run(cluster, name, "cluster", "status", "--json").stdout)["missing_rights"]
    assert found == [
        {"operation": "Describe", "resourceType": "Topic", "resourceName": "*"},
        {"operation": "DescribeConfigs", "resourceType": "Topic", "resourceName": "*"},
        {"operation": "Describe", "resourceType": "Cluster", "resourceName": "kafka-cluster"},
        {"operation": "DescribeConfigs", "resourceType": "Cluster", "resourceName": "kafka-cluster"},
    ]
    recommended = grants_of(seen.stderr)
    assert recommended == [
        "klamm acl add --allow-principal User:watcher --operation Describe --operation DescribeConfigs --topic '*'",
        "klamm acl add --allow-principal User:watcher --operation Describe --operation DescribeConfigs --cluster",
    ]
    for command in recommended:
        grant(cluster, command)
    seen = run(cluster, name, "cluster", "status")
    assert seen.returncode == 0 and "lacks" not in seen.stdout + seen.stderr
    admin = run(cluster, None, "cluster", "status", "--json")
    assert json.loads(admin.stdout)["missing_rights"] == []
    assert json.loads(run(cluster, name, "cluster", "status", "--json").stdout)["topics"] == 4
    assert json.loads(admin.stdout)["topics"] == 4


def test_a_right_to_one_topic_is_not_one_to_all(cluster: LocalCluster) -> None:
    name = user(cluster, "partial")
    allow(cluster, name, "Describe", "--topic", "orders")
    seen = run(cluster, name, "cluster", "status")
    assert seen.returncode == LIMITED and "2 of 1 topics that the user may describe" in seen.stdout
    listed = run(cluster, name, "topic", "list")
    assert listed.stdout.split() == ["orders"]
    assert "Topics that the user may not describe are not shown" in listed.stderr


@pytest.mark.parametrize(
    ("arguments", "shown", "right", "option"),
    [
        (("topic", "list"), "orders", "Describe on all topics", "--topic '*'"),
        (("topic", "describe"), "orders", "Describe on all topics", "--topic '*'"),
        (("group", "list"), "billing", "Describe on all groups", "--group '*'"),
        (("group", "describe"), "billing", "Describe on all groups", "--group '*'"),
        (("txn", "list"), "payments", "Describe on all transactional ids", "--transactional-id '*'"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_listings_say_what_they_leave_out(
    cluster: LocalCluster, arguments: tuple[str, ...], shown: str, right: str, option: str
) -> None:
    name = user(cluster, "lister-" + "-".join(arguments))
    seen = run(cluster, name, *arguments)
    assert seen.returncode == 0 and shown not in seen.stdout
    assert f"the user lacks {right}." in seen.stderr
    assert grants_of(seen.stderr) == [f"klamm acl add --allow-principal User:{name} --operation Describe {option}"]
    whole = run(cluster, None, *arguments)
    assert whole.returncode == 0 and shown in whole.stdout and "lacks" not in whole.stderr


def test_top_is_not_that_of_an_empty_cluster(cluster: LocalCluster) -> None:
    name = user(cluster, "idler")
    seen = run(cluster, name, "top", "--count", "1")
    assert "The user lacks Describe on all topics" in seen.stdout
    status = json.loads(run(cluster, name, "top", "--count", "1", "--json").stdout)["status"]
    assert status["missing_rights"][0]["resourceType"] == "Topic"


def test_whether_a_transaction_hangs_is_not_decided_without_its_coordinator(cluster: LocalCluster) -> None:
    """Hidden transactional ids are unknown to the user, as those of transactions that hang are to coordinators."""
    name = user(cluster, "cleaner")
    allow(cluster, name, "Read", "--topic", "orders")
    producer = Producer({**cluster.client_config(), "transactional.id": "open"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("orders", b"y")
    producer.flush()
    arguments = ("txn", "find-hanging", "--max-transaction-timeout", "0", "--topic", "orders")
    try:
        seen = run(cluster, name, *arguments)
        assert seen.returncode == 1 and "lacks Describe on all transactional ids" in seen.stderr
        assert "No transaction hangs" in run(cluster, None, *arguments).stderr
    finally:
        producer.abort_transaction()


def test_a_search_for_hanging_transactions_says_which_topics_it_left_out(cluster: LocalCluster) -> None:
    name = user(cluster, "searcher")
    allow(cluster, name, "Describe", "--transactional-id", "*")
    seen = run(cluster, name, "txn", "find-hanging")
    assert seen.returncode == 0 and "Topics that the user may not describe are not shown" in seen.stderr
    allow(cluster, name, "Describe", "--topic", "orders")
    refused = run(cluster, name, "txn", "find-hanging", "--topic", "orders")
    assert refused.returncode == 1 and "The user lacks Read on topic orders." in refused.stderr
    grant(cluster, *grants_of(refused.stderr))
    seen = run(cluster, name, "txn", "find-hanging", "--topic", "orders")
    assert (seen.returncode, seen.stderr) == (0, "No transaction hangs.\n")


def test_commands_for_one_transactional_id_name_the_right(cluster: LocalCluster) -> None:
    name = user(cluster, "settler")
    for operation in ("Describe", "Write"):
        refused = run(cluster, name, "txn", "abort", "payments")
        assert refused.returncode == 1
        (command,) = grants_of(refused.stderr)
        assert command.endswith(f"--operation {operation} --transactional-id payments")
        described = run(cluster, name, "txn", "describe", "payments")
        assert described.returncode == (1 if operation == "Describe" else 0)
        assert grants_of(described.stderr) == ([command] if operation == "Describe" else [])
        grant(cluster, command)
    assert run(cluster, name, "txn", "abort", "payments").returncode == 0


def test_produce_names_the_right_to_the_topic(cluster: LocalCluster) -> None:
    """An idempotent producer is refused by the cluster, although it is the topic that it needs access to."""
    name = user(cluster, "shop")
    unseen = run(cluster, name, "produce", "orders", given="a\n")
    allow(cluster, name, "Describe", "--topic", "orders")
    seen = run(cluster, name, "produce", "orders", given="a\n")
    plain = run(cluster, name, "produce", "orders", "--acks", "1", given="a\n")
    for refused in (unseen, seen, plain):
        assert refused.returncode == 1
        assert "The user lacks Write on topic orders." in refused.stderr, refused.stderr
        (command,) = grants_of(refused.stderr)
        assert command == "klamm acl add --allow-principal User:shop --operation Write --topic orders"
    grant(cluster, command)
    done = run(cluster, name, "produce", "orders", given="a\n")
    assert done.returncode == 0, done.stderr


def test_a_refusal_mentions_entries_that_deny(cluster: LocalCluster) -> None:
    """The brokers answer a denied operation like one without an entry, and one more entry would not help."""
    name = user(cluster, "banned")
    allow(cluster, name, "Write", "--topic", "orders")
    deny = ("acl", "add", "--deny-principal", f"User:{name}", "--operation", "Write", "--topic", "orders")
    assert run(cluster, None, *deny).returncode == 0
    refused = run(cluster, name, "produce", "orders", given="a\n")
    assert refused.returncode == 1 and "Deny entries in `klamm acl list` take precedence." in refused.stderr


def test_the_right_to_a_topic_is_enough_for_an_idempotent_producer(cluster: LocalCluster) -> None:
    """Write on any topic replaces IdempotentWrite on the cluster, also if that is denied (KIP-679)."""
    name = user(cluster, "strict")
    allow(cluster, name, "Write", "--topic", "orders")
    deny = ("acl", "add", "--deny-principal", f"User:{name}", "--operation", "IdempotentWrite", "--cluster")
    assert run(cluster, None, *deny).returncode == 0
    done = run(cluster, name, "produce", "orders", given="a\n")
    assert done.returncode == 0, done.stderr


def test_consume_names_the_right_to_topic_or_group(cluster: LocalCluster) -> None:
    name = user(cluster, "reader")
    arguments = ("consume", "orders", "--from-beginning", "--max-messages", "1")
    unseen = run(cluster, name, *arguments)
    allow(cluster, name, "Describe", "--topic", "orders")
    refused = run(cluster, name, *arguments)
    for each in (unseen, refused):
        assert each.returncode == 1 and "lacks Read on topic orders" in each.stderr, each.stderr
        (command,) = grants_of(each.stderr)
        assert command == "klamm acl add --allow-principal User:reader --operation Read --topic orders"
    grant(cluster, command)
    assert run(cluster, name, *arguments).returncode == 0
    in_group = run(cluster, name, *arguments, "--group", "team")
    assert in_group.returncode == 1, in_group.stderr
    assert grants_of(in_group.stderr) == ["klamm acl add --allow-principal User:reader --operation Read --group team"]
    grant(cluster, *grants_of(in_group.stderr))
    assert run(cluster, name, *arguments, "--group", "team").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "operation", "resource"),
    [
        (("topic", "create", "mine"), "Create", "--topic mine"),
        (("topic", "delete", "audit"), "Delete", "--topic audit"),
        (("topic", "alter", "audit", "--partitions", "3"), "Alter", "--topic audit"),
        (("topic", "describe", "audit"), "Describe", "--topic audit"),
        (("config", "describe", "--topic", "audit"), "DescribeConfigs", "--topic audit"),
        (("config", "alter", "--topic", "audit", "--set", "retention.ms=1"), "AlterConfigs", "--topic audit"),
        (("config", "alter", "--broker", "1", "--set", "num.io.threads=2"), "AlterConfigs", "--cluster"),
        (("group", "describe", "billing"), "Describe", "--group billing"),
        (("group", "delete", "billing"), "Delete", "--group billing"),
        (("group", "reset", "billing", "--all-topics", "--to-earliest"), "Describe", "--group billing"),
    ],
    ids=lambda value: "-".join(value[:2]) if isinstance(value, tuple) else "",
)
def test_refusals_name_the_least_right(
    cluster: LocalCluster, arguments: tuple[str, ...], operation: str, resource: str
) -> None:
    name = user(cluster, "nobody")
    refused = run(cluster, name, *arguments)
    assert refused.returncode == 1
    assert grants_of(refused.stderr) == [
        f"klamm acl add --allow-principal User:nobody --operation {operation} {resource}"
    ], refused.stderr


def test_the_control_log_and_the_traces_name_their_rights(cluster: LocalCluster) -> None:
    name = user(cluster, "tracer")
    for arguments, steps in (
        (("cluster", "why", "orders", "0"), ("Read --topic __klamm_control_log",)),
        (("trace", "--exit-at-end"), ("Read --topic __klamm_request_log",)),
        (("trace", "--on", "1", "--count", "1"), ("DescribeConfigs --cluster", "AlterConfigs --cluster")),
    ):
        for step in steps:
            refused = run(cluster, name, *arguments)
            command = f"klamm acl add --allow-principal User:{name} --operation {step}"
            assert refused.returncode == 1 and grants_of(refused.stderr) == [command], refused.stderr
            grant(cluster, command)


def test_a_refused_producer_is_reported_in_one_sentence(cluster: LocalCluster) -> None:
    """librdkafka logs its fatal error at the level that no setting turns off."""
    name = user(cluster, "visitor")
    allow(cluster, name, "Describe", "--topic", "orders")
    refused = run(cluster, name, "produce", "orders", given="a\nb\n")
    assert refused.returncode == 1
    assert "FATAL" not in refused.stderr and "%0|" not in refused.stderr
    assert f"--allow-principal User:{name}" in refused.stderr
