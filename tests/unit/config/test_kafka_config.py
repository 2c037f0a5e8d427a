"""Broker configuration: types, files, sources, precedence, listeners, and every way to be wrong."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from klamm.config import BROKER_KEYS, KafkaConfig
from klamm.config.values import ConfigType
from klamm.controller.config import InterBrokerProtocol
from klamm.errors import ConfigError
from klamm.model import EndPoint

STOCK_SERVER_PROPERTIES = """
# the settings of Kafka's own example file
broker.id=0
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/var/lib/logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.retention.check.interval.ms=300000
zookeeper.connect=localhost:2181
zookeeper.connection.timeout.ms=18000
group.initial.rebalance.delay.ms=0
"""


def test_every_default_is_a_value_its_own_key_accepts() -> None:
    for key in BROKER_KEYS.values():
        if key.default is not None:
            assert key.parse(key.default_text) == key.default, key.name


def test_defaults_are_kafkas() -> None:
    config = KafkaConfig()
    assert config.num_io_threads == config["num.io.threads"] == 8
    assert config.zookeeper_session_timeout_ms == 18000
    assert config.log_retention_time_ms == 7 * 24 * 3_600_000
    assert config.log_roll_time_ms == 7 * 24 * 3_600_000
    # Not Kafka's default, which is every address: decision 0039.
    assert config.endpoints == config.advertised_endpoints == (EndPoint("PLAINTEXT", "localhost", 9092),)
    everywhere = KafkaConfig({"listeners": "PLAINTEXT://:9092"})
    assert everywhere.endpoints == (EndPoint("PLAINTEXT", "", 9092),)
    assert everywhere.advertised_endpoints == (EndPoint("PLAINTEXT", socket.gethostname(), 9092),)
    assert config.warnings == ()


def test_config_is_frozen() -> None:
    with pytest.raises(AttributeError, match="frozen"):
        KafkaConfig().num_io_threads = 3


def test_kafkas_example_file_loads(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text(STOCK_SERVER_PROPERTIES)
    config = KafkaConfig.from_file(path)
    assert (config.broker_id, config.group_initial_rebalance_delay_ms) == (0, 0)
    assert config.log_directories == (Path("/var/lib/logs"),)
    assert (config.transaction_state_log_replication_factor, config.transaction_state_log_min_isr) == (1, 1)
    assert config.warnings == ()


def test_toml_tables_are_flattened_and_the_command_line_wins(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(
        '"broker.id" = 3\nlisteners = "PLAINTEXT://127.0.0.1:0"\n\n[log]\ndirs = "a, b"\ncleanup.policy = ["compact", '
        '"delete"]\n\n[num]\n"io.threads" = 4\n'
    )
    config = KafkaConfig.from_file(path, ["num.io.threads=5"])
    assert config.broker_id == 3
    assert config.log_directories == (Path("a"), Path("b"))
    assert config.log_cleanup_policy == ("compact", "delete")
    assert config.num_io_threads == 5
    assert config.static["log.cleanup.policy"] == "compact,delete"


def test_properties_escapes_and_continuations(tmp_path: Path) -> None:
    path = tmp_path / "b.properties"
    path.write_text("! comment\nbroker.rack = a\\u0062c \nlog.dirs: /x,\\\n   /y\nbroker.id 7\n")
    config = KafkaConfig.from_file(path)
    assert config.broker_rack == "abc"
    assert config.log_directories == (Path("/x"), Path("/y"))
    assert config.broker_id == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "num.io.thread=1",
            r"b\.properties:2: num\.io\.thread is not a configuration key.* Did you mean num\.io\.threads",
        ),
        (
            "num.io.threads=many",
            r"b\.properties:2: num\.io\.threads cannot be 'many': expected a whole number of 32 bits",
        ),
        ("num.io.threads=0", r"b\.properties:2: num\.io\.threads cannot be '0': expected a number of at least 1"),
        (
            "delegation.token.secret.key=k",
            r"b\.properties:2: delegation\.token.*does not support delegation tokens yet",
        ),
        ("sasl.kerberos.service.name=kafka", "does not support Kerberos yet"),
        ("ssl.client.auth=maybe", "ssl.client.auth cannot be 'maybe': expected one of required, requested, none"),
        ("listener.name.x.ssl.client.auth=maybe", "listener.name.x.ssl.client.auth cannot be 'maybe'"),
        ("listener.name.x.num.partitions=3", "is not a configuration key"),
        ("process.roles=broker", "does not support KRaft yet"),
        ("auto.create.topics.enable=yes", "expected true or false"),
        ("log.cleanup.policy=delete,shrink", "expected one of compact, delete"),
        ("listeners=localhost:9092", r"b\.properties:2: listeners .* expected NAME://host:port"),
        ("listeners=INTERNAL://:1", "listener.security.protocol.map knows, but INTERNAL is not in it"),
        ("security.inter.broker.protocol=TLS", "expected one of PLAINTEXT, SSL"),
        ("listeners=PLAINTEXT://:1,PLAINTEXT://:2", "every listener name only once"),
        ("advertised.listeners=PLAINTEXT://0.0.0.0:9092", "an address that clients can connect to"),
        ("listeners=PLAINTEXT://0.0.0.0:9092", r"properties:2: listeners .*an address that clients can connect to"),
        ("listeners=PLAINTEXT://0.0.0.0:9092", r"which 0\.0\.0\.0 is not; to bind it, set advertised\.listeners"),
        ("control.plane.listener.name=PLAINTEXT", "a listener that is not the inter-broker listener"),
        ("inter.broker.listener.name=OTHER", "the name of one of the listeners"),
        ("broker.id.generation.enable=false", "broker.id cannot be '-1'"),
        ("max.connections.per.ip.overrides=127.0.0.1", "max.connections.per.ip.overrides cannot be"),
        ("log.roll.ms=0", r"log\.roll\.ms cannot be '0': expected at least 1"),
        ("log.roll.ms=-9223372036854775808", "expected at least 1"),
        ("log.roll.jitter.ms=-1", r"log\.roll\.jitter\.ms cannot be '-1': expected at least 0"),
        ("log.retention.ms=0", r"log\.retention\.ms cannot be '0': expected at least 1, or -1 for no limit"),
        ("log.retention.minutes=0", r"log\.retention\.minutes cannot be '0'"),
        ("log.retention.hours=0", r"log\.retention\.hours cannot be '0'"),
        ("inter.broker.protocol.version=new", "expected a Kafka release"),
        ("inter.broker.protocol.version=9.9", r"expected a Kafka release from 2\.4 to 3\.9"),
        ("inter.broker.protocol.version=2.3", r"expected a Kafka release from 2\.4 to 3\.9"),
        ("inter.broker.protocol.version=0.10.2.1", r"expected a Kafka release from 2\.4 to 3\.9"),
    ],
)
def test_a_wrong_key_names_itself_its_source_and_what_was_expected(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "b.properties"
    path.write_text(f"num.partitions=1\n{text}\n")
    with pytest.raises(ConfigError, match=message):
        KafkaConfig.from_file(path)


def test_toml_lists(tmp_path: Path) -> None:
    path = tmp_path / "b.toml"
    path.write_text(
        'log.dirs = ["/tmp/a", "/tmp/b"]\nlisteners = ["A://h:1", "B://h:2"]\n'
        'listener.security.protocol.map = ["A:PLAINTEXT", "B:PLAINTEXT"]\nzookeeper.connect = ["z1:1", "z2:1/x"]\n'
        'inter.broker.listener.name = "A"\n'
    )
    config = KafkaConfig.from_file(path)
    assert config.log_directories == (Path("/tmp/a"), Path("/tmp/b"))
    assert [e.listener for e in config.endpoints] == ["A", "B"] and config.zookeeper_connect == "z1:1,z2:1/x"
    assert config.with_dynamic({}).log_directories == config.log_directories
    path.write_text('broker.rack = ["a", "b"]\n')
    with pytest.raises(ConfigError, match=r"b\.toml:1: broker\.rack cannot be 'a,b': expected text, not a list"):
        KafkaConfig.from_file(path)
    path.write_text('log.dirs = ["a", 1]\n')
    with pytest.raises(ConfigError, match=r"log\.dirs cannot be 'a,1': expected text, not a list"):
        KafkaConfig.from_file(path)


@pytest.mark.parametrize("text", ["2.4", "2.4-IV0", "2.8.1", "3.0", "3.9", "3.9.1", "3.9-IV0"])
def test_every_accepted_release_is_a_protocol(text: str) -> None:
    config = KafkaConfig({"inter.broker.protocol.version": text})
    assert str(InterBrokerProtocol.parse(config.inter_broker_protocol_version)).startswith(text[:3])


def test_toml_errors_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "b.toml"
    path.write_text("[log]\n# days\nretention.hours = 1.5\n")
    with pytest.raises(ConfigError, match=r"b\.toml:3: log\.retention\.hours cannot be '1\.5'"):
        KafkaConfig.from_file(path)


def test_command_line_errors() -> None:
    with pytest.raises(ConfigError, match=r"command line: num\.partitions cannot be 'x'"):
        KafkaConfig.from_file(None, ["num.partitions=x"])
    with pytest.raises(ConfigError, match="expected key=value"):
        KafkaConfig.from_file(None, ["num.partitions"])


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothere\.toml cannot be read: No such file"):
        KafkaConfig.from_file(tmp_path / "nothere.toml")
    (tmp_path / "bad.toml").write_text("a = ")
    with pytest.raises(ConfigError, match=r"bad\.toml is not TOML"):
        KafkaConfig.from_file(tmp_path / "bad.toml")


def test_listeners() -> None:
    config = KafkaConfig(
        {
            "listeners": "CONTROL://:9090, internal://[::1]:9093,EXTERNAL://0.0.0.0:0",
            "advertised.listeners": "INTERNAL://b1:9093,EXTERNAL://example.org:443,CONTROL://b1:9090",
            "listener.security.protocol.map": "CONTROL:PLAINTEXT,INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT",
            "control.plane.listener.name": "CONTROL",
            "listener.name.external.max.connections": "7",
        }
    )
    assert [(e.listener, e.host, e.port) for e in config.endpoints] == [
        ("CONTROL", "", 9090),
        ("INTERNAL", "::1", 9093),
        ("EXTERNAL", "0.0.0.0", 0),
    ]
    assert config.inter_broker_listener == "INTERNAL"
    assert config.control_plane_listener == "CONTROL"
    assert config.advertised_endpoints[1].host == "example.org"
    assert config.listener_max_connections == {"EXTERNAL": 7}


@pytest.mark.parametrize(
    ("given", "retention_ms"),
    [
        ({"log.retention.hours": 1}, 3_600_000),
        ({"log.retention.hours": 1, "log.retention.minutes": 2}, 120_000),
        ({"log.retention.minutes": 2, "log.retention.ms": 3}, 3),
        ({"log.retention.hours": -1}, -1),
    ],
)
def test_the_finest_unit_wins(given: dict[str, object], retention_ms: int) -> None:
    assert KafkaConfig(given).log_retention_time_ms == retention_ms


def test_dynamic_settings_lie_above_static_ones() -> None:
    static = KafkaConfig({"num.io.threads": 4})
    assert static.with_dynamic({"num.io.threads": "6"}).num_io_threads == 6
    assert static.with_dynamic({"a.key.of.a.newer.kafka": "6"}).num_io_threads == 4


def test_documentation_is_one_sentence_in_every_key() -> None:
    for key in BROKER_KEYS.values():
        assert key.doc.endswith(".") and key.doc[0].isupper() and "\n" not in key.doc, key.name


_SECRET_ENDS = (".password", ".jaas.config", "keystore.key", "zookeeper.digest", "basic.auth")


def test_a_password_would_be_hidden() -> None:
    passwords = {name for name, key in BROKER_KEYS.items() if key.kind is ConfigType.PASSWORD}
    secret = {name for name in BROKER_KEYS if name.endswith(_SECRET_ENDS)}
    assert passwords == secret and "sasl.jaas.config" in secret


@pytest.mark.parametrize("login", ["scott", "scott:", ":tiger", ":"])
def test_a_login_of_the_metrics_without_user_or_password_is_refused(login: str) -> None:
    with pytest.raises(ConfigError, match=r"basic\.auth cannot be \[hidden\]: expected user:password, both not empty"):
        KafkaConfig({"klamm.metrics.basic.auth": login})
    assert KafkaConfig({"klamm.metrics.basic.auth": "scott:a:b"}).klamm_metrics_basic_auth == "scott:a:b"


def test_passwords_are_hidden_in_errors() -> None:
    secret = {key.name for key in BROKER_KEYS.values() if key.kind is ConfigType.PASSWORD}
    assert {"klamm.zookeeper.digest", "zookeeper.ssl.keystore.password", "klamm.metrics.basic.auth"} <= secret
    with pytest.raises(ConfigError) as refused:
        BROKER_KEYS["klamm.zookeeper.digest"].parse(["s3cret"])
    assert "s3cret" not in str(refused.value) and "[hidden]" in str(refused.value)
