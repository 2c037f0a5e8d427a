"""Apache Kafka's tools with `--command-config` on a cluster with SASL_SSL, SCRAM and ACLs: a line per check."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from confluent_kafka import Producer

from bench.kafka_tools import run_tool
from klamm.errors import KlammError
from klamm.testing import LocalCluster

TOPIC: Final = "tools"
GROUP: Final = "tool-group"
ALICE: Final = "alice"
PASSWORD: Final = "alice's password"
TRANSACTIONAL_ID: Final = "tool-transaction"
WAIT_S: Final = 60.0
ACLS, CONFIGS, TOPICS = "kafka.admin.AclCommand", "kafka.admin.ConfigCommand", "TopicCommand"
ATTEMPTS: Final = 5
OUT_OF_TIME: Final = ("TimeoutException", "Timed out", "Failed to find brokers", "Request METADATA failed")
GROUPS: Final = "consumer.group.ConsumerGroupCommand"
REASSIGN: Final = "reassign.ReassignPartitionsCommand"
DELETE_RECORDS: Final = "DeleteRecordsCommand"


class Tools:
    """Runs a tool as a user; `check` prints a line."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._servers = cluster.bootstrap_servers
        admin = cluster.write_client_properties()
        assert admin is not None
        self._files = {None: admin, ALICE: self._properties_of_alice(admin)}

    def _properties_of_alice(self, admin: Path) -> Path:
        """The cluster does not know alice: only kafka-configs has added her."""
        kept = [line for line in admin.read_text().splitlines() if not line.startswith("sasl.jaas.config")]
        login = f'org.apache.kafka.common.security.scram.ScramLoginModule required username="{ALICE}"'
        path = admin.with_name("alice.properties")
        path.write_text("\n".join([*kept, f'sasl.jaas.config={login} password="{PASSWORD}";\n']))
        path.chmod(0o600)
        return path

    def run(
        self, tool: str, *arguments: str, user: str | None = None, stdin: str = "", option: str = "--command-config"
    ) -> str:
        """A verb, such as `cluster-id`, comes before the options."""
        verbs = [each for each in arguments[:1] if not each.startswith("-")]
        common = ["--bootstrap-server", self._servers, option, str(self._files[user])]
        return in_time(lambda: run_tool(tool, [*verbs, *common, *arguments[len(verbs) :]], stdin))

    def transactions(self, *arguments: str) -> str:
        """kafka-transactions has its common options before the verb."""
        common = ["--bootstrap-server", self._servers, "--command-config", str(self._files[None])]
        return in_time(lambda: run_tool("TransactionsCommand", [*common, *arguments]))

    def check(self, name: str, act: Callable[[], object]) -> None:
        try:
            act()
        except Exception as error:
            print(f"not ok {name}: {' / '.join(str(error).strip().splitlines())[:300]}", flush=True)
        else:
            print(f"ok {name}", flush=True)


def in_time(act: Callable[[], str]) -> str:
    """Repeat a tool that gave up: their timeouts of 5 to 30 s are too short for a JVM on a busy machine."""
    said = ""
    for _ in range(ATTEMPTS):
        try:
            said = act()
        except KlammError as error:
            said = str(error)
            if not any(sign in said for sign in OUT_OF_TIME):
                raise
        if not any(sign in said for sign in OUT_OF_TIME):
            return said
    raise KlammError(f"the tool ran out of time {ATTEMPTS} times: {said}")


def expect(text: str, *wanted: str) -> None:
    if missing := [each for each in wanted if each not in text]:
        raise KlammError(f"{missing} not in: {text}")


def refused(act: Callable[[], str], *wanted: str) -> None:
    try:
        said = act()
    except KlammError as error:
        said = str(error)
    expect(said, *wanted)


def topics(tools: Tools) -> None:
    tools.run(TOPICS, "--create", "--topic", TOPIC, "--partitions", "2", "--replication-factor", "2")
    tools.run(TOPICS, "--alter", "--topic", TOPIC, "--partitions", "3")
    expect(tools.run(TOPICS, "--list"), TOPIC)
    expect(tools.run(TOPICS, "--describe", "--topic", TOPIC), "PartitionCount: 3", "ReplicationFactor: 2")


def users(tools: Tools) -> None:
    secret = f"SCRAM-SHA-512=[iterations=4096,password={PASSWORD}]"
    user = ("--entity-type", "users", "--entity-name")
    tools.run(CONFIGS, "--alter", *user, ALICE, "--add-config", secret)
    tools.run(CONFIGS, "--alter", *user, "bob", "--add-config", secret)
    tools.run(CONFIGS, "--alter", *user, "bob", "--delete-config", "SCRAM-SHA-512")
    said = tools.run(CONFIGS, "--describe", "--entity-type", "users")
    expect(said, f"'{ALICE}'", "SCRAM-SHA-512=iterations=4096")
    if "'bob'" in said:
        raise KlammError(f"bob is still there: {said}")


def configs(tools: Tools) -> None:
    topic = ("--entity-type", "topics", "--entity-name", TOPIC)
    tools.run(CONFIGS, "--alter", *topic, "--add-config", "retention.ms=86400000")
    expect(tools.run(CONFIGS, "--describe", *topic), "retention.ms=86400000")
    said = tools.run(CONFIGS, "--describe", "--entity-type", "brokers", "--entity-name", "1", "--all")
    expect(said, "ssl.keystore.location=", "sasl.jaas.config=null")
    if "password=" in said.lower().replace("password=null", ""):
        raise KlammError("a password is shown")


def denied(tools: Tools) -> None:
    if TOPIC in tools.run(TOPICS, "--list", user=ALICE):
        raise KlammError("alice sees a topic that she may not describe")
    refused(lambda: produce(tools, "refused"), "Not authorized to access topics: [tools]")


def produce(tools: Tools, value: str) -> str:
    """The tool reports a refusal on standard error and ends well, so the outcome is read from the topic."""
    return tools.run(
        "kafka.tools.ConsoleProducer",
        "--topic",
        TOPIC,
        "--sync",
        user=ALICE,
        stdin=f"{value}\n",
        option="--producer.config",
    )


def consume(tools: Tools) -> str:
    return tools.run(
        "consumer.ConsoleConsumer",
        *("--topic", TOPIC, "--group", GROUP, "--from-beginning", "--max-messages", "1", "--timeout-ms", "60000"),
        user=ALICE,
        option="--consumer.config",
    )


def acls(tools: Tools) -> None:
    principal = ("--allow-principal", f"User:{ALICE}", "--topic", TOPIC)
    tools.run(ACLS, "--add", *principal, "--producer")
    tools.run(ACLS, "--add", *principal, "--consumer", "--group", GROUP)
    said = tools.run(ACLS, "--list", "--principal", f"User:{ALICE}")
    expect(said, "operation=WRITE", "operation=READ", f"name={GROUP}")


def allowed(tools: Tools) -> None:
    produce(tools, "allowed")
    if (found := consume(tools).strip()) != "allowed":
        raise KlammError(f"alice reads {found!r}")


def of_groups(tools: Tools, *arguments: str, user: str | None = None) -> str:
    return tools.run(GROUPS, *arguments, "--timeout", "120000", user=user)


def groups(tools: Tools) -> None:
    expect(of_groups(tools, "--list"), GROUP)
    expect(of_groups(tools, "--describe", "--group", GROUP), TOPIC)
    expect(of_groups(tools, "--describe", "--group", GROUP, user=ALICE), TOPIC)
    refused(lambda: of_groups(tools, "--describe", "--group", "another", user=ALICE), "GroupAuthorizationException")


def reset(tools: Tools) -> None:
    arguments = ("--group", GROUP, "--topic", TOPIC, "--reset-offsets", "--to-earliest", "--execute")
    expect(of_groups(tools, *arguments), TOPIC)
    of_groups(tools, "--delete", "--group", GROUP)
    if GROUP in of_groups(tools, "--list"):
        raise KlammError("the group is still there")


def transactions(tools: Tools, cluster: LocalCluster) -> None:
    settings = {"transactional.id": TRANSACTIONAL_ID, "transaction.timeout.ms": 900_000}
    producer = Producer({**cluster.client_config(), **settings})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce(TOPIC, value=b"open", partition=0)
    producer.flush(WAIT_S)
    expect(tools.transactions("list"), TRANSACTIONAL_ID, "Ongoing")
    expect(tools.transactions("describe", "--transactional-id", TRANSACTIONAL_ID), f"{TOPIC}-0")
    tools.transactions("abort", "--topic", TOPIC, "--partition", "0", "--start-offset", _start_offset(tools))


def _start_offset(tools: Tools) -> str:
    said = tools.transactions("describe-producers", "--topic", TOPIC, "--partition", "0").splitlines()
    names = [name.strip() for name in said[0].split("\t")]
    rows = [dict(zip(names, (cell.strip() for cell in line.split("\t")), strict=False)) for line in said[1:] if line]
    return next(row["CurrentTransactionStartOffset"] for row in rows if row["CurrentTransactionStartOffset"] != "None")


def removed(tools: Tools) -> None:
    tools.run(ACLS, "--remove", "--force", "--topic", TOPIC, "--allow-principal", f"User:{ALICE}", "--producer")
    refused(lambda: produce(tools, "refused"), "ClusterAuthorizationException")  # of InitProducerId, as in Kafka


def others(tools: Tools) -> None:
    expect(tools.run("GetOffsetShell", "--topic", TOPIC), f"{TOPIC}:0:")
    expect(tools.run("LogDirsCommand", "--describe", "--topic-list", TOPIC), f"{TOPIC}-0")
    expect(tools.run("ClusterTool", "cluster-id", option="--config"), "Cluster ID: ")
    expect(tools.run("kafka.admin.BrokerApiVersionsCommand"), "Produce(0): 0 to ")
    election = ("--election-type", "preferred", "--all-topic-partitions")
    tools.run("LeaderElectionCommand", *election, option="--admin.config")


def reassign(tools: Tools, folder: Path) -> None:
    """Move partition 0 to one replica; the plan is refused for a user without rights on the cluster."""
    plan = folder / "reassignment.json"
    moved = {"topic": TOPIC, "partition": 0, "replicas": [2]}
    plan.write_text(json.dumps({"version": 1, "partitions": [moved]}))
    arguments = ("--reassignment-json-file", str(plan))
    refused(lambda: tools.run(REASSIGN, "--execute", *arguments, user=ALICE), "ClusterAuthorizationException")
    expect(tools.run(REASSIGN, "--execute", *arguments), "Successfully started partition reassignment for tools-0")
    deadline = time.monotonic() + WAIT_S
    while "tools-0 is completed" not in (said := tools.run(REASSIGN, "--verify", *arguments)):
        if time.monotonic() > deadline:
            raise KlammError(f"the reassignment is not complete: {said}")
    expect(tools.run(TOPICS, "--describe", "--topic", TOPIC), "Partition: 0\tLeader: 2\tReplicas: 2\tIsr: 2")
    expect(tools.run(REASSIGN, "--list"), "No partition reassignments found")


def delete_records(tools: Tools, folder: Path) -> None:
    """Delete all records of partition 0, whose end is -1; a user needs DELETE on the topic."""
    wanted = folder / "delete-records.json"
    wanted.write_text(json.dumps({"version": 1, "partitions": [{"topic": TOPIC, "partition": 0, "offset": -1}]}))
    arguments = ("--offset-json-file", str(wanted))
    refused(lambda: tools.run(DELETE_RECORDS, *arguments, user=ALICE), "TopicAuthorizationException")
    found = re.search(r"partition: tools-0\s+low_watermark: (\d+)", tools.run(DELETE_RECORDS, *arguments))
    if found is None:
        raise KlammError("kafka-delete-records reports no low watermark")
    for when in ("--time=-2", "--time=-1"):
        expect(tools.run("GetOffsetShell", "--topic-partitions", f"{TOPIC}:0", when), f"{TOPIC}:0:{found[1]}")


def main() -> int:
    quick = bool(os.environ.get("KLAMM_QUICK"))
    with LocalCluster(brokers=2, tls=True, sasl="SCRAM-SHA-512", acls=True) as cluster:
        tools = Tools(cluster)
        tools.check("kafka-topics", lambda: topics(tools))
        tools.check("kafka-configs, users", lambda: users(tools))
        tools.check("kafka-configs, settings", lambda: configs(tools))
        tools.check("a user without entries", lambda: denied(tools))
        tools.check("kafka-acls", lambda: acls(tools))
        tools.check("a user with entries", lambda: allowed(tools))
        tools.check("kafka-consumer-groups", lambda: groups(tools))
        tools.check("kafka-transactions", lambda: transactions(tools, cluster))
        if not quick:
            tools.check("kafka-consumer-groups, reset and delete", lambda: reset(tools))
            tools.check("other tools", lambda: others(tools))
            tools.check("kafka-reassign-partitions", lambda: reassign(tools, cluster.data_dir))
            tools.check("kafka-delete-records", lambda: delete_records(tools, cluster.data_dir))
        tools.check("a user whose entries were removed", lambda: removed(tools))
    return 0


if __name__ == "__main__":
    sys.exit(main())
