"""Listeners of a running broker, and the sentences about a configuration that cannot be used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from klamm.client.blocking_connection import ask_once
from klamm.client.client_errors import AuthenticationError
from klamm.errors import ErrorCode
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.security.client_security import ClientSecurity
from tests.support.broker_process import BrokerProcess, refuse_to_start, write_properties
from tests.support.certificates import write_tls_files
from tests.support.raw_client import batch_of, eventually

WAIT_S = 60.0
LISTENERS = {
    "listeners": "INTERNAL://127.0.0.1:0,EXTERNAL://127.0.0.1:0",
    "advertised.listeners": "INTERNAL://127.0.0.1:0,EXTERNAL://localhost:0",
    "listener.security.protocol.map": "INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "INTERNAL",
}
CONTROL_LISTENERS = {
    **LISTENERS,
    "listeners": LISTENERS["listeners"] + ",CONTROLLER://127.0.0.1:0",
    "advertised.listeners": LISTENERS["advertised.listeners"] + ",CONTROLLER://127.0.0.1:0",
    "control.plane.listener.name": "CONTROLLER",
}


def broker_at(tmp_path: Path, **extra: object) -> BrokerProcess:
    config = {"broker.id": 7, "log.dirs": tmp_path / "logs", "offsets.topic.replication.factor": 1, **extra}
    return BrokerProcess(write_properties(tmp_path / "broker.properties", config))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_at(tmp_path_factory.mktemp("two"), **LISTENERS) as broker:
        yield broker


@pytest.fixture(scope="module")
def planes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_at(tmp_path_factory.mktemp("planes"), **{"klamm.metrics.port": 0}, **CONTROL_LISTENERS) as broker:
        yield broker


@pytest.mark.parametrize(("listener", "host"), [("INTERNAL", "127.0.0.1"), ("EXTERNAL", "localhost")])
def test_a_client_receives_the_addresses_of_its_listener(two: BrokerProcess, listener: str, host: str) -> None:
    client, port = two.client(listener), two.ready["listeners"][listener]
    assert [(b.node_id, b.host, b.port) for b in client.metadata().brokers] == [(7, host, port)]
    cluster = client.ask(
        DescribeClusterRequest(include_cluster_authorized_operations=False), 0, DescribeClusterResponse
    )
    assert [(b.broker_id, b.host, b.port) for b in cluster.brokers] == [(7, host, port)]
    request = FindCoordinatorRequest(key="group", key_type=0)

    def coordinator() -> FindCoordinatorResponse | None:
        answer = client.ask(request, 2, FindCoordinatorResponse)
        return answer if answer.error_code != ErrorCode.COORDINATOR_NOT_AVAILABLE else None

    found = eventually(coordinator, "there was never a coordinator")
    assert (found.node_id, found.host, found.port) == (7, host, port)


def test_both_listeners_serve_the_same_broker(two: BrokerProcess) -> None:
    assert two.client("EXTERNAL").create_topic("shared") == ErrorCode.NONE
    assert two.client("EXTERNAL").produce("shared", batch_of([b"x"])).error_code == ErrorCode.NONE
    assert two.client("INTERNAL").read_all("shared") == [(0, b"x")]


def test_control_requests_travel_by_the_control_plane(planes: BrokerProcess) -> None:
    """All LeaderAndIsr and UpdateMetadata came over the control listener: it alone has connections that sent any."""
    client = planes.client("EXTERNAL")
    assert client.create_topic("controlled") == ErrorCode.NONE
    assert client.produce("controlled", batch_of([b"x"])).error_code == ErrorCode.NONE
    port = planes.ready["listeners"]["CONTROLLER"]
    peers = connections_to(planes.process.pid, port)
    assert len(peers) == 1, "the controller's one sender is connected to the control listener"
    assert connections_to(planes.process.pid, planes.ready["listeners"]["INTERNAL"]) == []


def connections_to(pid: int, port: int) -> list[str]:
    """The established connections of the process whose local end is `port`."""
    lines = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    return [line for line in lines if line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "01"]


def test_the_control_plane_refuses_data(planes: BrokerProcess) -> None:
    control = planes.client("CONTROLLER")
    assert control.ask(ApiVersionsRequest(), 2, ApiVersionsResponse).error_code == ErrorCode.NONE
    with pytest.raises(ConnectionResetError):
        control.ask(MetadataRequest(topics=[]), 7, MetadataResponse)
    with pytest.raises(ConnectionResetError):
        control.produce("controlled", batch_of([b"x"]))
    assert "Metadata is not served on the control plane" in planes.log
    assert planes.client("EXTERNAL").metadata().brokers[0].node_id == 7


def test_a_control_plane_with_sasl_ssl(tmp_path: Path) -> None:
    """The controller logs in to the control listener; strangers, and users in the clear, get nothing from it."""
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    files = write_tls_files(tmp_path)
    extra = {
        **CONTROL_LISTENERS,
        "listener.security.protocol.map": "INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT,CONTROLLER:SASL_SSL",
        "advertised.listeners": LISTENERS["advertised.listeners"] + ",CONTROLLER://localhost:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.controller.plain.sasl.jaas.config": f'{module} required username="broker" '
        'password="of brokers" user_broker="of brokers";',
        **files.settings(),
    }
    with broker_at(tmp_path, **extra) as broker:
        client, port = broker.client("EXTERNAL"), broker.ready["listeners"]["CONTROLLER"]
        assert client.create_topic("controlled") == ErrorCode.NONE
        assert client.produce("controlled", batch_of([b"x"])).error_code == ErrorCode.NONE
        assert len(connections_to(broker.process.pid, port)) == 1, "the controller's one sender"
        with pytest.raises(OSError):
            broker.client("CONTROLLER").ask(ApiVersionsRequest(), 2, ApiVersionsResponse)
        settings = {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(files.ca),
            "sasl.mechanism": "PLAIN",
            "sasl.username": "broker",
            "sasl.password": "of brokers",
        }
        security = ClientSecurity.from_properties(settings)
        asked = ApiVersionsRequest(client_software_name="test", client_software_version="1")
        versions = ask_once(("localhost", port), asked, 3, ApiVersionsResponse, WAIT_S, security=security)
        assert versions.error_code == ErrorCode.NONE
        with pytest.raises(OSError):
            ask_once(("localhost", port), MetadataRequest(topics=[]), 7, MetadataResponse, WAIT_S, security=security)
        wrong = ClientSecurity.from_properties({**settings, "sasl.password": "guessed"})
        with pytest.raises(AuthenticationError):
            ask_once(("localhost", port), asked, 3, ApiVersionsResponse, WAIT_S, security=wrong)
        assert client.read_all("controlled") == [(0, b"x")]
    assert "of brokers" not in broker.log


def test_all_listeners_are_registered(tmp_path: Path) -> None:
    extra = {"klamm.zookeeper.embedded.port": 0, **CONTROL_LISTENERS}
    with broker_at(tmp_path, **extra) as broker:
        address = broker.log.partition(" answers on 127.0.0.1:")[2].split()[0]
        kazoo = KazooClient(f"127.0.0.1:{address}")
        kazoo.start(60)
        data, _ = kazoo.get("/brokers/ids/7")
        kazoo.stop()
        kazoo.close()
        ports = broker.ready["listeners"]
        assert f'"INTERNAL://127.0.0.1:{ports["INTERNAL"]}"'.encode() in data
        assert f'"EXTERNAL://localhost:{ports["EXTERNAL"]}"'.encode() in data
        assert f'"CONTROLLER://127.0.0.1:{ports["CONTROLLER"]}"'.encode() in data


BAD = [
    ("num.io.threads", "many", "a whole number"),
    ("num.io.threads", "0", "at least 1"),
    ("log.cleanup.policy", "shred", "compact"),
    ("auto.create.topics.enable", "perhaps", "true or false"),
    ("listeners", "PLAINTEXT://here", "NAME://host:port"),
    ("ssl.client.auth", "maybe", "one of required, requested, none"),
    ("inter.broker.listener.name", "ELSEWHERE", "ELSEWHERE"),
    ("control.plane.listener.name", "ELSEWHERE", "ELSEWHERE"),
    ("broker.id", "-7", "-1"),
]


@pytest.mark.parametrize(("key", "value", "expected"), BAD)
def test_a_bad_value_names_key_source_and_expectation(tmp_path: Path, key: str, value: str, expected: str) -> None:
    properties = tmp_path / "broker.properties"
    properties.write_text(f"# a comment\nlog.dirs={tmp_path / 'logs'}\n\n{key}={value}\n")
    toml = tmp_path / "broker.toml"
    toml.write_text(f'# a comment\n"log.dirs" = "{tmp_path / "logs"}"\n\n"{key}" = "{value}"\n')
    for path in (properties, toml):
        said = refuse_to_start(path)
        assert said.startswith(f"klamm broker: {path}:4: {key}"), said
        assert expected in said and said.count("\n") == 1, said
    assert not (tmp_path / "logs").exists()


def test_brokers_must_be_able_to_reach_each_other(tmp_path: Path) -> None:
    """A listener for brokers that is not advertised would leave the controller without an address."""
    for needed, config in (("INTERNAL", LISTENERS), ("CONTROLLER", CONTROL_LISTENERS)):
        config = {"log.dirs": str(tmp_path / "logs"), **config, "advertised.listeners": "EXTERNAL://localhost:0"}
        if needed == "CONTROLLER":
            config["advertised.listeners"] += ",INTERNAL://localhost:0"
        said = refuse_to_start(write_properties(tmp_path / "broker.properties", config))
        assert ":3: advertised.listeners cannot be" in said and f"expected an address for the listener {needed}" in said


def test_an_unknown_key_is_named_with_the_one_that_was_meant(tmp_path: Path) -> None:
    config = write_properties(tmp_path / "broker.properties", {"log.dirs": tmp_path / "logs", "num.io.thread": 3})
    said = refuse_to_start(config)
    assert f"{config}:2: " in said and "num.io.thread" in said and "num.io.threads" in said


def test_a_bad_override_names_the_command_line(tmp_path: Path) -> None:
    config = write_properties(tmp_path / "broker.properties", {"log.dirs": tmp_path / "logs"})
    assert "command line: num.io.threads" in refuse_to_start(config, "num.io.threads=x")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in refuse_to_start(tmp_path / "missing.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("a = = b\n")
    assert f"{broken} is not TOML" in refuse_to_start(broken)


def test_a_port_in_use(two: BrokerProcess, tmp_path: Path) -> None:
    port = two.ready["listeners"]["INTERNAL"]
    config = {"log.dirs": tmp_path / "logs", "listeners": f"PLAINTEXT://127.0.0.1:{port}"}
    said = refuse_to_start(write_properties(tmp_path / "broker.properties", config))
    assert str(port) in said and "in use" in said.lower()


def test_an_advertised_address_that_leads_nowhere(tmp_path: Path) -> None:
    """The controller cannot reach this broker: it says what is wrong while it waits, and can be stopped."""
    listeners = {"listeners": "PLAINTEXT://127.0.0.1:0", "advertised.listeners": "PLAINTEXT://127.0.0.1:1"}
    broker = broker_at(tmp_path, **listeners)
    with broker.launched():
        eventually(lambda: "It connects to PLAINTEXT://127.0.0.1:1: advertised.listeners" in broker.log, "silent")
        assert broker.stop() == 0, broker.log
    assert "Traceback" not in broker.log
