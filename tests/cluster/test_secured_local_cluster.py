"""A cluster with TLS, SASL and ACLs in one line: clients, commands, users, files, and the secrets that stay hidden."""

from __future__ import annotations

import asyncio
import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.errors import KlammError
from klamm.local.cluster_security import ClusterSecurity
from klamm.local.security_choice import SecurityChoice
from klamm.testing import LocalCluster
from klamm.zk.model import paths
from klamm.zk.model.default_acls import default_acl
from klamm.zk.model.ops import Perms
from tests.cluster.test_tutorials import environment, run, servers, started
from tests.support.calm import CALM

WAIT_S = 120.0
BROKER_FILE = "broker-1.properties"
QUIET: dict[str, Any] = {"log_level": 0, "error_cb": lambda error: None}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    configs = {
        **CALM,
        "klamm.control.log.enable": True,
        "klamm.metrics.port": 0,
        "klamm.request.trace.sample": 1,
        "klamm.request.trace.topic.enable": True,
    }
    with LocalCluster(brokers=3, tls=True, sasl="SCRAM-SHA-512", acls=True, broker_configs=configs) as running:
        running.create_topic("orders", 3, 3)
        running.create_topic("measured", 1, 3)
        yield running


def klamm(cluster: LocalCluster, *arguments: str, stdin: str | None = None, user: str | None = None) -> str:
    """Run a command as a user and return its output. Raises the error of a command that fails."""
    path = cluster.write_client_properties(user, cluster.data_dir / f"{user or 'admin'}.properties")
    assert path is not None
    environment = {"KLAMM_BOOTSTRAP_SERVERS": cluster.bootstrap_servers, "KLAMM_COMMAND_CONFIG": str(path)}
    done = CliRunner().invoke(app, arguments, input=stdin, env=environment)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return str(done.output)


def produce(config: dict[str, Any], topic: str, value: bytes = b"x") -> KafkaError | None:
    outcome: list[KafkaError | None] = []
    producer = Producer({**config, **QUIET})
    producer.produce(topic, value, on_delivery=lambda error, _: outcome.append(error))
    assert producer.flush(WAIT_S) == 0
    return outcome[0]


def read_one(config: dict[str, Any], topic: str) -> bytes:
    consumer = Consumer({**config, **QUIET, "group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        message = consumer.poll(WAIT_S)
        assert message is not None and message.error() is None, message and message.error()
        value = message.value()
        assert isinstance(value, bytes)
        return value
    finally:
        consumer.close()


def test_a_super_user_produces_and_consumes(cluster: LocalCluster) -> None:
    assert produce(cluster.client_config(), "orders", b"hello") is None
    assert read_one(cluster.client_config(), "orders") == b"hello"


def test_a_user_may_do_what_it_is_allowed(cluster: LocalCluster) -> None:
    alice = cluster.client_config("alice")
    refused = produce(alice, "orders")
    assert refused is not None and refused.name() == "TOPIC_AUTHORIZATION_FAILED"
    klamm(cluster, "acl", "add", "--allow-principal", "User:alice", "--producer", "--topic", "orders")
    assert cluster.wait_for(lambda: produce(alice, "orders", b"of alice") is None or None, what="alice may write")
    assert json.loads(klamm(cluster, "user", "list", "--json"))[1]["user"] == "alice"


def test_aiokafka_and_kafka_python(cluster: LocalCluster) -> None:
    async def send() -> None:
        async with AIOKafkaProducer(**cluster.client_config(library="aiokafka")) as producer:
            await producer.send_and_wait("orders", b"of aiokafka", partition=0)

    asyncio.run(send())
    consumer = KafkaConsumer(
        "orders", **cluster.client_config(library="kafka-python"), auto_offset_reset="earliest", group_id="python"
    )
    try:
        assert next(iter(consumer)).value is not None
    finally:
        consumer.close()


def test_a_client_without_credentials_gets_nothing(cluster: LocalCluster) -> None:
    plain = {"bootstrap.servers": cluster.bootstrap_servers}
    strangers: list[dict[str, Any]] = [
        plain,
        {**cluster.client_config("alice"), "sasl.password": "wrong"},
        {**cluster.client_config("alice"), "sasl.mechanism": "PLAIN"},
        {**plain, "security.protocol": "SSL", "ssl.ca.location": cluster.client_config()["ssl.ca.location"]},
    ]
    for config in strangers:
        with pytest.raises(KafkaException):
            AdminClient({**config, **QUIET}).list_topics(timeout=3)


def test_users_by_commands(cluster: LocalCluster, tmp_path: Path) -> None:
    klamm(cluster, "user", "add", "bob", "--mechanism", "scram-sha-256", "--mechanism", "scram-sha-512", stdin="b0b\n")
    found = json.loads(klamm(cluster, "user", "list", "--json"))
    assert [row["mechanism"] for row in found if row["user"] == "bob"] == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    bob = {**cluster.client_config("alice"), "sasl.username": "bob", "sasl.password": "b0b"}
    cluster.wait_for(lambda: is_accepted(bob), what="bob can log in")
    klamm(cluster, "user", "remove", "bob", "--mechanism", "SCRAM-SHA-512")
    cluster.wait_for(lambda: not is_accepted(bob), what="bob can no longer log in")
    with pytest.raises(KlammError, match="User bob has no password for SCRAM-SHA-512"):
        klamm(cluster, "user", "remove", "bob", "-m", "SCRAM-SHA-512")
    with pytest.raises(KlammError, match="The password is empty"):
        klamm(cluster, "user", "add", "carol", stdin="\n")
    (tmp_path / "password").write_text("c4r0l\nsecond line\n")
    output = klamm(cluster, "user", "add", "carol", "--password-file", str(tmp_path / "password"))
    assert output == "User carol can log in with SCRAM-SHA-512.\n"
    for name in ("admin", "broker"):
        with pytest.raises(KlammError, match=r"Nothing was removed\. Pass --yes to skip the question"):
            klamm(cluster, "user", "remove", name)
    broker_file = str(cluster.data_dir / "broker-1.properties")
    assert "carol" in klamm(cluster, "user", "list", "--broker-config", broker_file)
    klamm(cluster, "user", "remove", "carol", "--broker-config", broker_file)
    assert "carol" not in klamm(cluster, "user", "list", "--broker-config", broker_file)


def is_accepted(config: dict[str, Any]) -> bool:
    try:
        AdminClient({**config, **QUIET}).list_topics(timeout=3)
    except KafkaException:
        return False
    return True


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "list"),
        ("topic", "describe", "orders"),
        ("cluster", "status"),
        ("config", "describe", "--broker", "1"),
        ("group", "list"),
        ("quota", "list"),
        ("txn", "list"),
        ("acl", "list"),
        ("cluster", "metadata", "--broker", "1"),
        ("partition", "elect", "--preferred", "--topic", "orders"),
        ("partition", "reassign", "--list"),
        ("partition", "confirm-loss", "--topic", "orders", "--broker-config", BROKER_FILE),
        ("perf", "produce", "measured", "--records", "100"),
        ("perf", "consume", "measured", "--records", "100"),
        ("perf", "latency", "measured", "--records", "10", "--rate", "100"),
    ],
)
def test_commands_use_the_command_config(cluster: LocalCluster, arguments: tuple[str, ...]) -> None:
    output = klamm(cluster, *(str(cluster.data_dir / each) if each == BROKER_FILE else each for each in arguments))
    assert output and not secrets_in(cluster, output)


def test_a_command_explains_changes_from_the_control_log(cluster: LocalCluster) -> None:
    def explained() -> str | None:
        output = klamm(cluster, "cluster", "why", "measured", "0")
        return output if "measured" in output else None

    output = cluster.wait_for(explained, WAIT_S, what="the control log has the creation of the topic")
    assert not secrets_in(cluster, output)


def test_a_command_says_how_to_connect(cluster: LocalCluster, tmp_path: Path) -> None:
    needed = r"expects security\.protocol=SASL_SSL with sasl\.mechanism=SCRAM-SHA-512.* pass it with --command-config"
    with pytest.raises(KlammError, match=needed):
        raise_of("topic", "list", "-b", cluster.bootstrap_servers)
    path = cluster.write_client_properties("alice", tmp_path / "alice.properties")
    assert path is not None
    path.write_text(re.sub(r'password="[^"]*"', 'password="s3cret-but-wrong"', path.read_text()))
    with pytest.raises(KlammError, match="do not accept each other") as refused:
        raise_of("topic", "list", "-b", cluster.bootstrap_servers, "--command-config", str(path))
    assert "s3cret" not in str(refused.value)
    assert str(refused.value).endswith("Check the user and the password in the file of --command-config.")


def raise_of(*arguments: str) -> None:
    done = CliRunner().invoke(app, arguments)
    assert done.exception is not None
    raise done.exception


@cache
def secrets_of(cluster: LocalCluster) -> frozenset[str]:
    """Passwords, and secrets in ZooKeeper: that of the brokers, and the keys with which users can be impersonated."""
    kept = json.loads((cluster.data_dir / "security" / "users.json").read_text())
    passwords = {*kept["users"].values(), (cluster.data_dir / "security" / "password").read_text().strip()}
    client = connected_zookeeper(cluster)
    try:
        peer_secret = client.get(paths.PEER_SECRET)[0].decode()
        users = [client.get(f"/config/users/{user}")[0].decode() for user in client.get_children("/config/users")]
    finally:
        client.stop()
        client.close()
    keys = {key for text in users for key in re.findall(r"(?:stored_key|server_key)=([^,\"]+)", text)}
    assert len(keys) >= 2 * len(kept["users"]) and len(peer_secret) >= 32
    return frozenset({kept["zookeeper"], peer_secret} | passwords | keys)


def connected_zookeeper(cluster: LocalCluster) -> KazooClient:
    """Return a connected client that knows the secret of the brokers' ZooKeeper."""
    secret = (cluster.data_dir / "security" / "zookeeper-secret").read_text()
    client = KazooClient(cluster.zookeeper_connect, auth_data=[("digest", secret)])
    client.start(WAIT_S)
    return client


def secrets_in(cluster: LocalCluster, text: str) -> list[str]:
    return [secret for secret in secrets_of(cluster) if secret in text] + re.findall(r"PRIVATE KEY", text)


def test_secrets_stay_where_they_belong(cluster: LocalCluster) -> None:
    """Not in logs, process lists, the logs of control plane and requests, or metrics; private files have mode 0600."""
    from urllib.request import urlopen

    zookeeper = cluster._supervisor.zookeeper.pid
    for pid in (*map(cluster.pid, cluster.broker_ids), zookeeper):
        assert not secrets_in(cluster, Path(f"/proc/{pid}/cmdline").read_text())
        assert not secrets_in(cluster, Path(f"/proc/{pid}/environ").read_text())
    assert not secrets_in(cluster, (cluster.data_dir / "zookeeper.log").read_text())
    for broker_id in cluster.broker_ids:
        assert not secrets_in(cluster, cluster.logs(broker_id).read_text())
        with urlopen(f"http://{cluster.metrics_address(broker_id)}/metrics", timeout=WAIT_S) as answer:
            assert not secrets_in(cluster, answer.read().decode())
    assert records_of(cluster, "__klamm_control_log", bool)

    def has_both(traces: list[dict[str, Any]]) -> bool:
        return {"User:admin", "User:broker"} <= {trace["principal"] for trace in traces}

    traces = records_of(cluster, "__klamm_request_log", has_both)
    assert not {"SaslHandshake", "SaslAuthenticate"} & {trace["api"] for trace in traces}
    assert not [str(path) for path in cluster.data_dir.rglob("*") if is_open_secret(cluster, path)]


def is_open_secret(cluster: LocalCluster, path: Path) -> bool:
    """Whether others can read a secret in the file. A running broker replaces and removes some files."""
    try:
        is_private = not path.is_file() or not stat.S_IMODE(path.stat().st_mode) & 0o077
        return not is_private and bool(secrets_in(cluster, path.read_bytes().decode("latin-1")))
    except FileNotFoundError:
        return False


def records_of(cluster: LocalCluster, topic: str, are_enough: Callable[[list[Any]], bool]) -> list[Any]:
    """The first records of a topic: 500, and as many as the condition needs. None of them has a secret."""
    consumer = Consumer({**cluster.client_config(), **QUIET, "group.id": "check", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    texts: list[bytes] = []
    rows: list[Any] = []

    def are_read() -> bool:
        messages = consumer.consume(500, 1.0)
        for message in messages:
            assert message.error() is None, message.error()
            texts.append(bytes(message.value() or b""))
            rows.append(json.loads(texts[-1]))
        return (not messages or len(rows) >= 500) and are_enough(rows)

    try:
        cluster.wait_for(are_read, WAIT_S, what=f"records in {topic}")
    finally:
        consumer.close()
    assert not secrets_in(cluster, b"".join(texts).decode())
    return rows


def test_the_embedded_zookeeper_requires_its_secret(cluster: LocalCluster) -> None:
    from klamm.zk.client.blocking import BlockingSession
    from klamm.zk.model.ops import ZkError

    with pytest.raises(ZkError), BlockingSession(cluster.zookeeper_connect, WAIT_S) as session:
        session.get("/config/users/admin")


def test_status_says_when_it_cannot_check_znodes(cluster: LocalCluster) -> None:
    from klamm.cli.cluster_problems import zookeeper_of
    from klamm.zk.client.blocking import BlockingSession
    from klamm.zk.model.ops import Create, Delete

    command, file = ("cluster", "status", "--json"), cluster.data_dir / "broker-1.properties"
    znode = paths.lost_records_path("orders", 0, 15, 20)
    with BlockingSession(cluster.zookeeper_connect, WAIT_S, None, zookeeper_of(file)[1]) as session:
        session.write([Create(paths.LOST_RECORDS), Create(znode, b"garbage")])
        unchecked = json.loads(klamm(cluster, *command))
        checked = json.loads(klamm(cluster, *command, "--broker-config", str(file)))
        session.write([Delete(znode), Delete(paths.LOST_RECORDS)])
    assert unchecked["problems"] == [] and "requires a login. Pass --broker-config" in unchecked["unchecked"]
    (problem,) = checked["problems"]
    assert problem.startswith(f"znode {znode}: ") and checked["unchecked"] is None
    assert "Znodes were not checked: ZooKeeper at" in klamm(cluster, "cluster", "status")


def test_every_znode_has_a_rule_for_the_secret(cluster: LocalCluster) -> None:
    """Only brokers may change znodes, those of the server too, and others may not read those with secrets."""
    secret = (cluster.data_dir / "security" / "zookeeper-secret").read_text()
    user = secret.partition(":")[0]
    client = connected_zookeeper(cluster)
    try:
        found = dict(rules_below(client, "/"))
    finally:
        client.stop()
        client.close()
    rules = {
        path: {(acl.perms, acl.id.scheme, acl.id.id.partition(":")[0]) for acl in acls} for path, acls in found.items()
    }
    assert {"/", "/zookeeper", "/zookeeper/quota", "/consumers"} <= rules.keys()
    assert rules.pop("/zookeeper/config") == {(Perms.READ, "digest", user), (Perms.READ, "world", "anyone")}
    assert rules.pop("/consumers") == {(Perms.ALL, "digest", user), (Perms.READ, "world", "anyone")}
    creator = {"auth": ("digest", user)}
    expected = {
        path: {(acl.perms, *creator.get(acl.scheme, (acl.scheme, acl.id))) for acl in default_acl(path)}
        for path in rules
    }
    assert rules == expected
    shown = {path for path, acls in rules.items() if any(scheme == "world" for _, scheme, _ in acls)}
    hidden = {path for path in rules if path not in shown}
    assert {"/config/users/admin", "/config/users/broker", paths.PEER_SECRET} <= hidden
    assert {"/controller", "/brokers/ids/1", "/brokers/topics/orders"} <= shown


def rules_below(client: KazooClient, path: str) -> Iterator[tuple[str, list[Any]]]:
    """This znode and all below it, each with its rules. Znodes may vanish meanwhile."""
    try:
        names, rules = client.get_children(path), client.get_acls(path)[0]
    except NoNodeError:
        return
    yield path, rules
    for name in names:
        yield from rules_below(client, f"{path.rstrip('/')}/{name}")


def test_a_killed_broker_returns(cluster: LocalCluster) -> None:
    cluster.kill(2)
    cluster.start(2)
    cluster.wait_for(lambda: len(cluster.isr("orders", 0)) == 3, what="all replicas in sync")
    cluster.expire_session(3)
    cluster.wait_for(lambda: len(cluster.live_brokers) == 3, what="broker 3 is back")


def test_certificates_of_clients(tmp_path: Path) -> None:
    """mTLS: the name in the certificate is the user. Certificates and users stay across starts."""
    directory = tmp_path / "data"
    with LocalCluster(1, tls="mutual", acls=True, data_dir=directory) as cluster:
        cluster.create_topic("t")
        assert produce(cluster.client_config(), "t") is None
        refused = produce(cluster.client_config("alice"), "t")
        assert refused is not None and refused.name() == "TOPIC_AUTHORIZATION_FAILED"
        first = cluster.client_config("alice")
    with LocalCluster(1, tls="mutual", acls=True, data_dir=directory) as cluster:
        assert cluster.client_config("alice") == {**first, "bootstrap.servers": cluster.bootstrap_servers}
        assert produce(cluster.client_config(), "t") is None
        klamm(cluster, "tls", "issue", str(directory / "security"), "carol")  # as the help of `klamm up` has it
        klamm(cluster, "acl", "add", "--producer", "--topic", "t", "--allow-principal", "User:carol")
        carol = {
            **cluster.client_config("alice"),
            "ssl.certificate.location": str(directory / "security" / "carol-cert.pem"),
            "ssl.key.location": str(directory / "security" / "carol-key.pem"),
        }
        assert produce(carol, "t") is None


def test_users_of_plain_are_those_of_the_start() -> None:
    cluster = LocalCluster(1, tls=True, sasl="PLAIN")
    cluster.add_user("alice", 'with "quotes" and \\ backslash')
    with cluster:
        cluster.create_topic("t")
        assert produce(cluster.client_config("alice"), "t") is None
        with pytest.raises(KlammError, match=r"SASL PLAIN has the users of its start\. Use SCRAM-SHA-512"):
            cluster.add_user("bob")
        with pytest.raises(KlammError, match="The brokers enable PLAIN only"):
            klamm(cluster, "user", "add", "bob", stdin="b0b\n")


def test_users_of_plain_can_be_written_to_the_file_of_users(tmp_path: Path) -> None:
    """As the help of `klamm up` describes it."""
    security = ClusterSecurity(SecurityChoice.of(False, "PLAIN", False), tmp_path, has_own_zookeeper=True)
    security.prepare()
    path = tmp_path / "security" / "users.json"
    document = json.loads(path.read_text())
    document["users"]["alice"] = "s3cret"
    path.write_text(json.dumps(document))
    again = ClusterSecurity(SecurityChoice.of(False, "PLAIN", False), tmp_path, has_own_zookeeper=True)
    again.prepare()
    key = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
    assert ' user_alice="s3cret"' in str(again.broker_properties()[key])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"tls": "yes"}, "tls cannot be 'yes'"),
        ({"sasl": "GSSAPI"}, "sasl cannot be 'GSSAPI'"),
        ({"acls": True}, "acls requires sasl or tls"),
        ({"tls": "mutual", "sasl": "PLAIN"}, 'tls cannot be "mutual" with sasl'),
    ],
)
def test_impossible_choices(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        LocalCluster(1, **arguments)


def test_a_broker_that_others_could_use_does_not_start(tmp_path: Path) -> None:
    config = tmp_path / "broker.properties"
    config.write_text(f"listeners=PLAINTEXT://:0\nlog.dirs={tmp_path / 'data'}\nbroker.id=1\n")
    command = [sys.executable, "-m", "klamm.server", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 1 and "klamm.allow.unauthenticated.listeners=true" in done.stderr
    assert not (tmp_path / "data").exists()


def test_klamm_up_secured(tmp_path: Path) -> None:
    command = "klamm up --brokers 1 --port 0 --tls --sasl scram-sha-512 --acls --data-dir data"
    with started(command, tmp_path, environment()) as process:
        env = environment(KLAMM_BOOTSTRAP_SERVERS=servers(process), KLAMM_COMMAND_CONFIG="data/client.properties")
        assert "orders" in run("klamm topic create orders\nklamm topic list\n", tmp_path, env)
        properties = tmp_path / "data" / "client.properties"
        assert stat.S_IMODE(properties.stat().st_mode) == 0o600 and "ScramLoginModule" in properties.read_text()
        assert process.stdout is not None
        line = next(line for line in process.stdout if "dashboard" in line)
        words = line.split()
        assert words[1:3] == ["klamm", "dashboard"] and words[-1].endswith("data/client.properties")


def test_passwords_are_not_accepted_as_arguments(tmp_path: Path) -> None:
    config = tmp_path / "broker.properties"
    config.write_text("broker.id=1\n")
    with pytest.raises(KlammError, match="others can read the arguments of a process"):
        raise_of("broker", "--config", str(config), "--override", "klamm.zookeeper.digest=a:b")
    with pytest.raises(KlammError, match=r"others can read the arguments .* start the broker with `klamm broker"):
        raise_of("up", "--data-dir", str(tmp_path / "d"), "--config", "ssl.key.password=x")
    assert os.listdir(tmp_path) == ["broker.properties"]
