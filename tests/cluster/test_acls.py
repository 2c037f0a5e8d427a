"""Access control lists on running brokers: klamm acl, real clients, entries that reach every broker and survive."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.cli.client import BOOTSTRAP_VARIABLE
from klamm.cli.output import Failure
from klamm.testing import LocalCluster
from tests.support.calm import CALM

WAIT_S = 60.0
ANYBODY = "User:ANONYMOUS"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Without logins everybody, the brokers too, is ANONYMOUS: resources without entries are open to all.

    The cluster has none, so the brokers accept each other by their proofs.
    """
    configs = {
        **CALM,
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:admin",
        "allow.everyone.if.no.acl.found": True,
    }
    with LocalCluster(brokers=2, broker_configs=configs) as running:
        yield running


def acl(cluster: LocalCluster, *arguments: str, broker_id: int | None = None, code: int = 0, text: str = "") -> str:
    servers = cluster.bootstrap_servers if broker_id is None else f"127.0.0.1:{cluster.port(broker_id)}"
    done = CliRunner().invoke(app, ["acl", *arguments], input=text, env={BOOTSTRAP_VARIABLE: servers})
    assert done.exit_code == code, f"{done.output}{done.exception!r}"
    return done.output


def listed(cluster: LocalCluster, broker_id: int, *arguments: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(acl(cluster, "list", "--json", *arguments, broker_id=broker_id))
    return found


def until_all_list(cluster: LocalCluster, count: int, *arguments: str) -> None:
    """Wait until every broker knows so many entries: one of them answers a change, and the others learn of it later."""
    cluster.wait_for(
        lambda: all(len(listed(cluster, b, *arguments)) == count for b in cluster.broker_ids),
        WAIT_S,
        what=f"{count} entries of {arguments}",
    )


def test_entries_are_added_listed_and_removed(cluster: LocalCluster) -> None:
    output = acl(cluster, "add", "--topic", "orders", "--allow-principal", "User:alice", "--operation", "Read")
    assert "Added 1 entries." in output
    entry = {
        "resourceType": "Topic",
        "resourceName": "orders",
        "patternType": "literal",
        "principal": "User:alice",
        "permission": "Allow",
        "operation": "Read",
        "host": "*",
    }
    for broker_id in cluster.broker_ids:
        cluster.wait_for(lambda b=broker_id: listed(cluster, b, "--topic", "orders") == [entry], WAIT_S)  # type: ignore[misc]
    assert "User:alice" in acl(cluster, "list", "--principal", "User:alice")
    assert listed(cluster, 1, "--principal", "User:bob") == []
    assert "Removed 1 entries." in acl(cluster, "remove", "--topic", "orders", "--force")
    for broker_id in cluster.broker_ids:
        cluster.wait_for(lambda b=broker_id: listed(cluster, b, "--topic", "orders") == [], WAIT_S)  # type: ignore[misc]


def test_all_entries_of_a_resource_go_only_after_a_question(cluster: LocalCluster) -> None:
    acl(cluster, "add", "--group", "g", "--allow-principal", "User:alice", "--deny-principal", "User:bob")
    until_all_list(cluster, 2, "--group", "g")
    acl(cluster, "remove", "--group", "g", text="n\n", code=1)
    assert len(listed(cluster, 1, "--group", "g")) == 2
    acl(cluster, "remove", "--group", "g", text="y\n")
    until_all_list(cluster, 0, "--group", "g")


def test_roles_of_producers_and_consumers(cluster: LocalCluster) -> None:
    acl(cluster, "add", "--producer", "--topic", "role", "--allow-principal", "User:p")
    acl(cluster, "add", "--consumer", "--topic", "role", "--group", "role", "--allow-principal", "User:c")
    until_all_list(cluster, 5, "--topic", "role")
    until_all_list(cluster, 1, "--group", "role")
    found = {(e["principal"], e["resourceType"], e["operation"]) for e in listed(cluster, 1, "--topic", "role")}
    assert found == {
        ("User:p", "Topic", "Write"),
        ("User:p", "Topic", "Describe"),
        ("User:p", "Topic", "Create"),
        ("User:c", "Topic", "Read"),
        ("User:c", "Topic", "Describe"),
    }
    assert [e["operation"] for e in listed(cluster, 1, "--group", "role")] == ["Read"]
    acl(cluster, "remove", "--topic", "role", "--group", "role", "--force")


def test_a_removal_of_nothing_fails_and_names_what_remains(cluster: LocalCluster) -> None:
    whole = ("--topic", "kept", "--allow-principal", "User:alice")
    assert "there are no such entries" in acl_failure(cluster, "remove", *whole)
    acl(cluster, "add", *whole, "--operation", "Read", "--operation", "Write")
    until_all_list(cluster, 2, "--topic", "kept")
    message = acl_failure(cluster, "remove", *whole)
    command = "klamm acl remove --topic kept --allow-principal User:alice --operation Read --operation Write"
    assert "Other entries remain: 2." in message and command in message
    assert "Removed 2 entries." in acl(cluster, *command.split()[2:])
    until_all_list(cluster, 0, "--topic", "kept")
    assert "there are no such entries" in acl_failure(cluster, "remove", "--topic", "kept", "--force")


def acl_failure(cluster: LocalCluster, *arguments: str) -> str:
    done = CliRunner().invoke(app, ["acl", *arguments], env={BOOTSTRAP_VARIABLE: cluster.bootstrap_servers})
    assert isinstance(done.exception, Failure), done.output
    return str(done.exception)


def test_options_that_contradict_each_other(cluster: LocalCluster) -> None:
    for arguments in (
        ["add", "--topic", "t"],
        ["add", "--allow-principal", "User:a"],
        ["add", "--topic", "t", "--allow-principal", "alice"],
        ["add", "--topic", "t", "--allow-principal", "User:a", "--operation", "ClusterAction"],
        ["add", "--topic", "t", "--allow-principal", "User:a", "--resource-pattern-type", "match"],
        ["add", "--producer", "--topic", "t", "--allow-principal", "User:a", "--operation", "Read"],
        ["add", "--consumer", "--topic", "t", "--allow-principal", "User:a"],
        ["add", "--topic", "t", "--idempotent", "--allow-principal", "User:a"],
        ["add", "--topic", "t", "--deny-host", "10.0.0.1", "--allow-principal", "User:a"],
        ["add", "--topic", "t", "--allow-principal", "User:a", "--allow-host", "10.0.0.0/8"],
        ["list", "--topic", "t", "--resource-pattern-type", "fuzzy"],
        ["list", "--principal", "alice"],
    ):
        acl(cluster, *arguments, code=1)


def test_librdkafka_changes_entries(cluster: LocalCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    binding = AclBinding(
        ResourceType.TOPIC,
        "lib",
        ResourcePatternType.PREFIXED,
        "User:carol",
        "10.1.2.3",
        AclOperation.WRITE,
        AclPermissionType.DENY,
    )
    for future in admin.create_acls([binding]).values():
        future.result(WAIT_S)
    chosen = AclBindingFilter(
        ResourceType.TOPIC,
        "library",
        ResourcePatternType.MATCH,
        None,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    cluster.wait_for(lambda: admin.describe_acls(chosen).result(WAIT_S) == [binding], WAIT_S)
    for future in admin.delete_acls([chosen]).values():
        assert future.result(WAIT_S) == [binding]
    cluster.wait_for(lambda: admin.describe_acls(chosen).result(WAIT_S) == [], WAIT_S)


def send(cluster: LocalCluster, topic: str) -> KafkaError | None:
    outcome: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "message.timeout.ms": 30_000})
    producer.produce(topic, b"v", on_delivery=lambda error, _: outcome.append(error))
    producer.flush(WAIT_S)
    return outcome[0]


def read(cluster: LocalCluster, topic: str, group: str) -> str:
    """Return the first value, or the name of the error."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": group, "auto.offset.reset": "earliest"}
    )
    try:
        consumer.subscribe([topic])
        message = consumer.poll(WAIT_S)
        assert message is not None
        error = message.error()
        return (message.value() or b"").decode() if error is None else str(error.name())
    finally:
        consumer.close()


def test_clients_are_refused_what_they_may_not_do(cluster: LocalCluster) -> None:
    topic = cluster.unique_topic_name("guarded")
    cluster.create_topic(topic, partitions=1, replication_factor=2)
    assert send(cluster, topic) is None
    acl(cluster, "add", "--topic", topic, "--allow-principal", ANYBODY, "--operation", "Read")
    cluster.wait_for(lambda: all(listed(cluster, b, "--topic", topic) for b in cluster.broker_ids), WAIT_S)
    error = send(cluster, topic)
    assert error is not None and error.name() == "TOPIC_AUTHORIZATION_FAILED"
    assert read(cluster, topic, "free") == "v"
    acl(cluster, "add", "--group", "closed", "--allow-principal", "User:alice")
    cluster.wait_for(lambda: all(listed(cluster, b, "--group", "closed") for b in cluster.broker_ids), WAIT_S)
    assert read(cluster, topic, "closed") == "GROUP_AUTHORIZATION_FAILED"
    acl(cluster, "add", "--topic", topic, "--deny-principal", "User:*", "--operation", "Read")
    cluster.wait_for(lambda: all(len(listed(cluster, b, "--topic", topic)) == 2 for b in cluster.broker_ids), WAIT_S)
    assert read(cluster, topic, "free") == "TOPIC_AUTHORIZATION_FAILED"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        admin.delete_topics([topic])[topic].result(WAIT_S)


def test_entries_survive_a_restart_and_denials_are_logged(cluster: LocalCluster) -> None:
    acl(cluster, "add", "--topic", "kept", "--allow-principal", "User:alice")
    until_all_list(cluster, 1, "--topic", "kept")
    cluster.stop(2)
    cluster.start(2)
    assert listed(cluster, 2, "--topic", "kept")
    error = send(cluster, "kept")
    assert error is not None
    line = "User:ANONYMOUS is Denied Operation = Describe from host = 127.0.0.1 on resource = Topic:LITERAL:kept"
    assert any(line in cluster.logs(broker_id).read_text() for broker_id in cluster.broker_ids)


def test_brokers_are_accepted_by_their_proofs(cluster: LocalCluster) -> None:
    """Markers, verified appends, producer ids, changes of the ISR and controlled shutdowns pass between brokers."""
    topic = cluster.unique_topic_name("proven")
    cluster.create_topic(topic, partitions=4, replication_factor=2)
    for number in range(4):  # their coordinators are on both brokers
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": f"proven-{number}"})
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        for partition in range(4):
            producer.produce(topic, b"v", partition=partition)
        producer.commit_transaction(WAIT_S)
        if number == 1:
            cluster.stop(1)
            cluster.start(1)
    cluster.wait_for(lambda: is_replicated(cluster, topic), WAIT_S, what="all replicas are in sync")
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": topic})
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(4)])
    read = consumer.consume(16, WAIT_S)
    consumer.close()
    assert [message.value() for message in read] == [b"v"] * 16
    logs = "".join(cluster.logs(broker_id).read_text() for broker_id in cluster.broker_ids)
    assert "Denied Operation = ClusterAction" not in logs


def is_replicated(cluster: LocalCluster, topic: str) -> bool:
    metadata = AdminClient({"bootstrap.servers": cluster.bootstrap_servers}).list_topics(topic, timeout=WAIT_S)
    return all(len(partition.isrs) == 2 for partition in metadata.topics[topic].partitions.values())
