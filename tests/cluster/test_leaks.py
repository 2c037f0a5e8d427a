"""Everything that a secured broker writes or answers, searched for everything that it must keep to itself.

The broker logs at DEBUG, and clients make the mistakes in which secrets get into logs: wrong passwords, passwords in
wrong places, and settings with misspelt names.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from klamm.client.blocking_connection import BlockingConnection
from klamm.client.client_errors import AuthenticationError
from klamm.config import KafkaConfig
from klamm.errors import ConfigError, KlammError
from klamm.security.sasl.token_source import unsecured_token
from klamm.server.kafka_server import KafkaServer
from klamm.zk.client.blocking import BlockingSession
from klamm.zk.client.zk_security import Login, ZkSecurity
from klamm.zk.model import paths
from tests.support.broker_process import write_properties
from tests.support.certificates import STORE_PASSWORD
from tests.support.raw_client import eventually
from tests.support.secured_cluster import ADMIN, ALICE, SecuredCluster, secured_cluster

WAIT_S = 120
BOB = ("bob", "bobs-own-password")
METRICS = "reader:metrics-password"
DIGEST = "zk-user:zk-password"
WRONG = "a-wrong-password"
MISSPELT = "misspelt-password"
ALTERED = "altered-password"
NAMED = "typed-as-a-name"
TOKEN = unsecured_token({"sub": "carol", "iat": 1_700_000_000, "exp": 4_000_000_000, "note": "a-token"})
EXPIRED = unsecured_token({"sub": "carol", "iat": 1_600_000_000, "exp": 1_600_000_001, "note": "an-old-token"})
SETTINGS = {
    "klamm.metrics.basic.auth": METRICS,
    "klamm.zookeeper.digest": DIGEST,
    "zookeeper.set.acl": "true",
    "klamm.control.log.enable": "true",
    "offsets.topic.num.partitions": 1,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    program = ["-m", "klamm.server", "--log-level", "DEBUG"]
    directory = tmp_path_factory.mktemp("leaks")
    with secured_cluster(directory, 1, SETTINGS, "PKCS12", program) as cluster:
        make_mistakes(cluster)
        yield cluster


def make_mistakes(cluster: SecuredCluster) -> None:
    admin = AdminClient(cluster.librdkafka(ADMIN))
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(WAIT_S)
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    admin.alter_user_scram_credentials([UserScramCredentialUpsertion(BOB[0], info, BOB[1].encode())])[BOB[0]].result(
        WAIT_S
    )
    host, _, port = cluster.bootstrap().partition(":")
    for user, mechanism in (
        (ADMIN, "PLAIN"),
        (BOB, "SCRAM-SHA-256"),
        ((ADMIN[0], WRONG), "PLAIN"),
        ((NAMED, WRONG), "PLAIN"),
        ((BOB[0], WRONG), "SCRAM-SHA-256"),
        ((NAMED, WRONG), "SCRAM-SHA-256"),
        ((BOB[0], WRONG), "SCRAM-SHA-512"),
    ):
        with contextlib.suppress(AuthenticationError):
            security = cluster.client_security(user, mechanism)
            BlockingConnection((host, int(port)), client_id="leaks", security=security).close()
    for token in (TOKEN, EXPIRED):
        log_in_with_token(cluster, token)
    for key in ("ssl.keystore.password", "sasl.jaas.config", "listener.name.ssl.ssl.key.password", "no.such.password"):
        entry = ConfigEntry(key, ALTERED, incremental_operation=AlterConfigOpType.SET)
        for resource in (ResourceType.BROKER, ResourceType.TOPIC):
            change = ConfigResource(
                resource, "1" if resource is ResourceType.BROKER else "t", incremental_configs=[entry]
            )
            with pytest.raises(KafkaException) as refused:
                admin.incremental_alter_configs([change])[change].result(WAIT_S)
            assert ALTERED not in str(refused.value)
    for login in (METRICS, f"reader:{WRONG}"):
        with contextlib.suppress(HTTPError):
            metrics(cluster, login)
    with contextlib.suppress(HTTPError):
        metrics(cluster, METRICS, f"/{WRONG}?password={WRONG}")


def log_in_with_token(cluster: SecuredCluster, token: str) -> None:
    config = cluster.librdkafka(mechanism="OAUTHBEARER")
    del config["sasl.username"], config["sasl.password"]
    config |= {"sasl.oauthbearer.config": "", "oauth_cb": lambda _: (token, 4e9), "log_level": 0}
    producer = Producer(config)
    with contextlib.suppress(KafkaException):
        producer.list_topics(timeout=5 if token == EXPIRED else WAIT_S)


def metrics(cluster: SecuredCluster, login: str, path: str = "/metrics") -> str:
    port = cluster.brokers[0].ready["metrics_port"]
    headers = {"Authorization": "Basic " + base64.b64encode(login.encode()).decode()}
    with urlopen(Request(f"http://127.0.0.1:{port}{path}", headers=headers), timeout=WAIT_S) as answer:
        text: str = answer.read().decode()
    return text


@pytest.fixture(scope="module")
def secrets(cluster: SecuredCluster) -> dict[str, str]:
    """Names of what must not appear, by its text."""
    plain = {
        ADMIN[1], ALICE[1], BOB[1], METRICS.partition(":")[2], DIGEST.partition(":")[2], STORE_PASSWORD,
        WRONG, MISSPELT, ALTERED, NAMED, TOKEN, EXPIRED,
    }  # fmt: skip
    found = {text: f"the secret {text[:20]}" for text in plain}
    for text in plain:
        found[base64.b64encode(text.encode()).decode().rstrip("=")] = f"{text[:20]} in base64"
    with BlockingSession(
        cluster.zookeeper_connect, WAIT_S, security=ZkSecurity(digest=Login(*DIGEST.split(":")))
    ) as session:
        user = json.loads(session.get(f"/config/users/{BOB[0]}") or b"")["config"]["SCRAM-SHA-256"]
        for field in user.split(","):
            name, _, value = field.partition("=")
            if name != "iterations":
                found[value] = f"the {name} of a user"
        found[(session.get(paths.PEER_SECRET) or b"").decode()] = "the secret of the brokers"
    session_file = json.loads((cluster.log_dir(1) / "zookeeper.session").read_text())
    found[session_file["password"]] = "the password of the session with ZooKeeper"
    found["PRIVATE KEY"] = "a private key"
    return found


def leaks(text: str, secrets: dict[str, str]) -> list[str]:
    return [name for secret, name in secrets.items() if secret in text]


def test_the_log_has_no_secret(cluster: SecuredCluster, secrets: dict[str, str]) -> None:
    log = cluster.brokers[0].log
    assert " DEBUG " in log, "the broker logs everything"
    assert not leaks(log, secrets)


def test_the_process_list_has_no_secret(cluster: SecuredCluster, secrets: dict[str, str]) -> None:
    process = Path(f"/proc/{cluster.brokers[0].process.pid}")
    for name in ("cmdline", "environ"):
        assert not leaks((process / name).read_text(), secrets)
    for task in (process / "task").iterdir():
        assert not leaks((task / "comm").read_text(), secrets)


def test_the_metrics_have_no_secret(cluster: SecuredCluster, secrets: dict[str, str]) -> None:
    text = metrics(cluster, METRICS)
    assert "kafka_server" in text and not leaks(text, secrets)


@pytest.mark.parametrize(
    ("kind", "name"),
    [(ResourceType.BROKER, "1"), (ResourceType.TOPIC, "t")],
)
def test_described_settings_have_no_secret(
    cluster: SecuredCluster, secrets: dict[str, str], kind: ResourceType, name: str
) -> None:
    admin = AdminClient(cluster.librdkafka(ADMIN))
    resource = ConfigResource(kind, name)
    entries = admin.describe_configs([resource])[resource].result(WAIT_S)
    shown = {key: entry.value for key, entry in entries.items()}
    assert not leaks(json.dumps(shown), secrets)
    assert shown


def test_logged_records_have_no_secret(cluster: SecuredCluster, secrets: dict[str, str]) -> None:
    config = cluster.librdkafka(ADMIN) | {"group.id": "leaks", "auto.offset.reset": "earliest"}
    consumer = Consumer(config)
    consumer.subscribe(["__klamm_control_log"])
    texts: list[str] = []

    def are_read() -> bool:
        messages = consumer.consume(500, 1.0)
        texts.extend((message.value() or b"").decode() for message in messages)
        return not messages and bool(texts)

    try:
        eventually(are_read, "the control log has no records")
    finally:
        consumer.close()
    assert not leaks("".join(texts), secrets)


def test_files_with_secrets_are_private(cluster: SecuredCluster, secrets: dict[str, str]) -> None:
    """Files of the broker: its logs, and those of the embedded ZooKeeper, which has the users."""
    directory = cluster.log_dir(1)
    private = []
    for path in (*directory.rglob("*"), *directory.with_name(f"{directory.name}-zookeeper").rglob("*")):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file() and leaks(path.read_bytes().decode("latin-1"), secrets):
                assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
                private.append(path)
    assert private, "ZooKeeper has stored the users"
    assert {path.name for path in private if directory in path.parents} <= {"zookeeper.session"}


LINES = [
    "ssl.keystore.pasword={}",
    "my.reporter.password={}",
    "{}",
    "{}==",
    "{} and more",
    '"ssl.keystore.password" = {}',
]
LINES_OF_LISTENERS = [
    "ssl.keystore.password {}",
    "ssl.keystore.password: [{}",
    "klamm.metrics.basic.auth={}",
    "klamm.zookeeper.digest={}",
    "klamm.zookeeper.sasl.jaas.config={}",
    "listener.name.sasl_ssl.plain.sasl.jaas.config=Module required password={}",
    "listener.name.other.plain.sasl.jaas.config={}",
    "ssl.keystore.key={}",
]
"""Settings that are read when the listeners are made."""


@pytest.mark.parametrize("suffix", [".properties", ".toml"])
@pytest.mark.parametrize("line", LINES)
def test_unusable_lines_are_refused_without_their_text(tmp_path: Path, line: str, suffix: str) -> None:
    """A line may be the second one of a private key, or a password whose key is on another line."""
    path = tmp_path / f"broker{suffix}"
    path.write_text(line.format(MISSPELT) + "\n")
    with pytest.raises(ConfigError) as refused:
        KafkaConfig.from_file(path, [])
    assert MISSPELT not in str(refused.value)


def test_unusable_settings_are_refused_without_their_text(tmp_path: Path) -> None:
    good: dict[str, object] = {
        "broker.id": 1,
        "listeners": "SASL_SSL://localhost:0",
        "security.inter.broker.protocol": "SASL_SSL",
        "sasl.enabled.mechanisms": "PLAIN",
        "log.dirs": str(tmp_path / "logs"),
    }
    path = write_properties(tmp_path / "broker.properties", good)
    start = path.read_text()

    async def refused(line: str) -> str:
        path.write_text(start + line.format(MISSPELT) + "\n")
        server: KafkaServer | None = None
        try:
            server = KafkaServer(KafkaConfig.from_file(path, []))
            await server.start()
        except KlammError as error:
            return str(error)
        finally:
            if server is not None:
                await server.stop()
        raise AssertionError(f"{line} was accepted")

    for line in LINES_OF_LISTENERS:
        assert MISSPELT not in asyncio.run(refused(line)), line
