"""How a broker ends, what it leaves on the disk, and who may start beside it."""

from __future__ import annotations

import json
import re
import signal
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from klamm.errors import ErrorCode
from klamm.local.ports import ReservedPort
from klamm.protocol.frames import RequestHeader
from klamm.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from klamm.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from klamm.testing import LocalCluster
from tests.support.broker_process import BrokerProcess, refuse_to_start, write_properties
from tests.support.frames import encode_request_frame
from tests.support.raw_client import EARLIEST, LATEST, TIMEOUT_S, RawClient, batch_of, eventually

CHECKPOINTS = [
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "log-start-offset-checkpoint",
    "meta.properties",
]


def toml_config(tmp_path: Path, port: int = 0) -> Path:
    """As a person writes one: tables and quoted keys mixed; no zookeeper.connect."""
    path = tmp_path / "broker.toml"
    path.write_text(
        f'"broker.id" = 3\nlisteners = "PLAINTEXT://127.0.0.1:{port}"\n\n'
        f'[log]\ndirs = "{tmp_path / "logs"}"\nretention.check.interval.ms = 100\n\n'
        "[offsets.topic]\nreplication.factor = 1\nnum.partitions = 2\n"
        "[group]\ninitial.rebalance.delay.ms = 0\n"
    )
    return path


def open_long_poll(port: int, topic: str) -> socket.socket:
    """A Fetch that waits for a minute for a record that never comes."""
    wanted = FetchTopic(topic=topic, partitions=[FetchPartition(partition=0, fetch_offset=1, partition_max_bytes=1)])
    request = FetchRequest(max_wait_ms=60_000, min_bytes=1, topics=[wanted])
    connection = socket.create_connection(("127.0.0.1", port), 60)
    connection.sendall(b"".join(encode_request_frame(RequestHeader(1, 11, 1, "waiting"), request)))
    return connection


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_clean_stop_with_clients_connected(tmp_path: Path, number: signal.Signals) -> None:
    with BrokerProcess(toml_config(tmp_path)) as broker:
        client, port = broker.client(), broker.ready["listeners"]["PLAINTEXT"]
        assert client.create_topic("t") == ErrorCode.NONE
        client.produce("t", batch_of([b"x"]))
        waiting = open_long_poll(port, "t")
        idle = socket.create_connection(("127.0.0.1", port), 60)
        half = socket.create_connection(("127.0.0.1", port), 60)
        half.sendall(struct.pack(">ih", 1000, 0))
        consumer = Consumer({"bootstrap.servers": f"127.0.0.1:{port}", "group.id": "g", "log_level": 0})
        consumer.subscribe(["t"])
        eventually(lambda: (consumer.poll(0.1), consumer.assignment())[1] or None, "the consumer got no partition")
        assert broker.stop(number) == 0, broker.log
        assert "Traceback" not in broker.log and broker.log.rstrip().endswith(
            "broker 3 stopped (klamm.server.kafka_server)"
        )
        for connection in (waiting, idle, half):
            connection.close()
        consumer.close()
    logs = tmp_path / "logs"
    marker = json.loads((logs / ".kafka_cleanshutdown").read_text())
    assert marker["version"] == 0 and marker["brokerEpoch"] > 0
    for name in CHECKPOINTS:
        assert (logs / name).exists(), name
    lines = (logs / "recovery-point-offset-checkpoint").read_text().splitlines()
    assert lines[0] == "0" and int(lines[1]) == len(lines) - 2 and "t 0 1" in lines
    assert "t 0 1" in (logs / "replication-offset-checkpoint").read_text().splitlines()
    assert not (logs / "zookeeper.session").exists()
    with BrokerProcess(toml_config(tmp_path)) as broker:
        assert not (logs / ".kafka_cleanshutdown").exists(), "a kill from now on is not a clean shutdown"
        assert broker.client().read_all("t") == [(0, b"x")]


def test_every_line_of_a_json_log_is_an_object(tmp_path: Path) -> None:
    """Covers a start, refused requests, a stop, and a failed start. Names of clients stay in their line."""
    with BrokerProcess(toml_config(tmp_path), through_cli=True, options=["--log-format", "json"]) as broker:
        port = int(re.findall(r"PLAINTEXT://127\.0\.0\.1:(\d+)", broker.log)[-1])
        client = RawClient(port)
        assert client.create_topic("t") == ErrorCode.NONE
        assert client.create_topic('no "topic"\n{') == ErrorCode.INVALID_TOPIC_EXCEPTION
        malformed = socket.create_connection(("127.0.0.1", port), 60)
        malformed.sendall(struct.pack(">i4s", 4, b"\xff\xff\xff\xff"))
        assert malformed.recv(1) == b""
        malformed.close()
        assert broker.stop() == 0, broker.log
        lines = [json.loads(line) for line in broker.log.splitlines()]
    assert all({"at", "at_ms", "level", "logger", "thread", "message"} <= line.keys() for line in lines)
    assert any("answers on PLAINTEXT://" in line["message"] for line in lines)
    assert lines[-1]["message"] == "broker 3 stopped" and lines[-1]["logger"] == "klamm.server.kafka_server"
    refused = refuse_to_start(toml_config(tmp_path), "broker.id=4", options=["--log-format", "json"])
    last = [json.loads(line) for line in refused.splitlines()][-1]
    assert last["level"] == "CRITICAL" and "belongs to broker 3, not to 4" in last["message"]


def test_a_stop_while_starting(tmp_path: Path) -> None:
    """Nobody answers at zookeeper.connect, so the broker is still starting when the signal comes."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = {"log.dirs": tmp_path / "logs", "listeners": "PLAINTEXT://127.0.0.1:0"}
        config["zookeeper.connect"] = f"127.0.0.1:{silent.getsockname()[1]}"
        broker = BrokerProcess(write_properties(tmp_path / "broker.properties", config))
        broker.launch()
        silent.settimeout(TIMEOUT_S)
        silent.accept()[0].close()
        assert broker.stop() == 0
        assert "Traceback" not in broker.log


def test_no_zookeeper(tmp_path: Path) -> None:
    config = {"log.dirs": tmp_path / "logs", "zookeeper.connect": "127.0.0.1:1"}
    config["zookeeper.connection.timeout.ms"] = "300"
    said = refuse_to_start(write_properties(tmp_path / "broker.properties", config))
    assert "ZooKeeper did not answer at 127.0.0.1:1 within 300 ms" in said


def test_the_metrics_port_is_taken(tmp_path: Path) -> None:
    config = toml_config(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refuse_to_start(config, f"klamm.metrics.port={port}")
    assert f"the metrics endpoint cannot be bound to 127.0.0.1:{port}: Address already in use" in said


def test_klamm_broker_with_toml_keeps_its_data(tmp_path: Path) -> None:
    """The embedded ZooKeeper lives in the same process; after a kill as after a stop everything is there."""
    with ReservedPort() as port:
        keep_data_over_restarts(toml_config(tmp_path, port.number), port.number)
    assert (tmp_path / "logs-zookeeper").is_dir()


def keep_data_over_restarts(config: Path, port: int) -> None:
    client = RawClient(port)
    for turn, end in enumerate((signal.SIGTERM, signal.SIGKILL, signal.SIGTERM)):
        with BrokerProcess(config, through_cli=True) as broker:
            if turn == 0:
                assert client.create_topic("kept") == ErrorCode.NONE
            assert [value for _, value in client.read_all("kept")] == [b"%d" % n for n in range(turn)]
            producer = Producer({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0, "acks": "all"})
            producer.produce("kept", b"%d" % turn)
            assert producer.flush(TIMEOUT_S) == 0
            assert broker.stop(end) == (0 if end == signal.SIGTERM else -signal.SIGKILL)


def test_a_second_broker_is_refused_with_the_embedded_zookeeper(tmp_path: Path) -> None:
    config = toml_config(tmp_path)
    with BrokerProcess(config) as broker:
        assert broker.client().create_topic("t") == ErrorCode.NONE
        said = refuse_to_start(config)
        line = said.splitlines()[-1]
        assert line.startswith("klamm broker: The embedded ZooKeeper cannot start") and "in use" in line, said
        assert str(tmp_path / "logs-zookeeper") in line and "klamm.zookeeper.embedded.dir" in line
        assert broker.client().produce("t", batch_of([b"x"])).error_code == ErrorCode.NONE
        assert broker.stop() == 0


def test_a_second_broker_is_refused_with_zookeeper_connect() -> None:
    with LocalCluster() as cluster:
        cluster.create_topic("t")
        session = (cluster.data_dir / "broker-1" / "zookeeper.session").read_text()
        said = refuse_to_start(cluster.data_dir / "broker-1.properties")
        line = said.splitlines()[-1]
        assert (
            line.startswith("klamm broker: ") and f"{cluster.data_dir / 'broker-1'} is used by another broker" in line
        )
        # The first one has noticed nothing: its registration and its session file are untouched.
        client = RawClient(cluster.port(1))
        assert client.produce("t", batch_of([b"x"])).error_code == ErrorCode.NONE
        assert (cluster.data_dir / "broker-1" / "zookeeper.session").read_text() == session
        cluster.create_topic("later")


@pytest.mark.long
def test_directories_of_another_broker_or_cluster_are_refused(tmp_path: Path) -> None:
    with BrokerProcess(toml_config(tmp_path)) as broker:
        assert broker.stop() == 0
    assert "belongs to broker 3, not to 4" in refuse_to_start(toml_config(tmp_path), "broker.id=4")
    with LocalCluster() as other:
        said = refuse_to_start(toml_config(tmp_path), f"zookeeper.connect={other.zookeeper_connect}")
        assert "belongs to cluster" in said
    with BrokerProcess(toml_config(tmp_path)) as broker:
        assert broker.client().metadata().brokers[0].node_id == 3


def test_the_same_id_twice_in_one_cluster(tmp_path: Path) -> None:
    with LocalCluster() as cluster:
        config = {
            "broker.id": 1,
            "log.dirs": tmp_path / "logs",
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "zookeeper.connect": cluster.zookeeper_connect,
        }
        said = refuse_to_start(write_properties(tmp_path / "broker.properties", config))
        assert "Broker 1 cannot register" in said
        cluster.create_topic("still-served")


@pytest.fixture(scope="module")
def tidy() -> Iterator[LocalCluster]:
    """Looks after its logs all the time."""
    config = {
        "log.retention.check.interval.ms": 50,
        "log.initial.task.delay.ms": 0,
        "log.segment.delete.delay.ms": 0,
        "log.flush.offset.checkpoint.interval.ms": 50,
        "log.flush.start.offset.checkpoint.interval.ms": 50,
    }
    with LocalCluster(broker_configs=config) as running:
        yield running


def segments(cluster: LocalCluster, topic: str) -> list[int]:
    return sorted(int(path.stem) for path in (cluster.data_dir / "broker-1" / f"{topic}-0").glob("*.log"))


def test_segments_roll_by_size_and_retention_by_size_removes_them(tidy: LocalCluster) -> None:
    client = RawClient(tidy.port(1))
    tidy.create_topic("sized", config={"segment.bytes": 10_000, "retention.bytes": 30_000})
    batch = batch_of([b"x" * 900])
    for n in range(100):
        assert client.produce("sized", batch).base_offset == n
    per_segment = 10_000 // len(batch)
    left = eventually(
        lambda: found if len(found := segments(tidy, "sized")) <= 4 else None, "old segments were never removed"
    )
    assert all(base % per_segment == 0 for base in left) and left[0] > 0
    total = sum(p.stat().st_size for p in (tidy.data_dir / "broker-1" / "sized-0").glob("*.log"))
    assert 30_000 <= total < 40_000
    eventually(lambda: client.offset("sized", EARLIEST) == left[0], "the start of the log does not move")
    assert client.offset("sized", LATEST) == 100
    assert client.fetch("sized", left[0] - 1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    folder = tidy.data_dir / "broker-1" / "sized-0"
    for ending in (".index", ".timeindex"):
        eventually(
            lambda ending=ending: sorted(int(p.stem) for p in folder.glob(f"*{ending}")) == left,  # type: ignore[misc]
            f"the {ending} files do not go with their segments",
        )


def test_retention_by_time(tidy: LocalCluster) -> None:
    client = RawClient(tidy.port(1))
    tidy.create_topic("timed", config={"retention.ms": 3_600_000, "segment.bytes": 1000})
    old = batch_of([b"x" * 900], timestamp=1_600_000_000_000)
    for _ in range(3):
        client.produce("timed", old)
    new = client.produce("timed", batch_of([b"y" * 900]))
    eventually(lambda: client.offset("timed", EARLIEST) == new.base_offset, "old records were never removed")
    eventually(lambda: segments(tidy, "timed") == [new.base_offset], "old segments were never removed")


def test_segments_roll_by_time(tidy: LocalCluster) -> None:
    """By the time of the records: the first of a segment against the one that comes."""
    client = RawClient(tidy.port(1))
    tidy.create_topic("rolled", config={"segment.ms": 60_000, "retention.ms": -1})
    for n in range(5):
        client.produce("rolled", batch_of([b"x"], timestamp=1_600_000_000_000 + n * 40_000))
    assert segments(tidy, "rolled") == [0, 2, 4]


def delete_records(client: RawClient, topic: str, offset: int) -> tuple[ErrorCode, int]:
    wanted = DeleteRecordsTopic(name=topic, partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)])
    answer = client.ask(DeleteRecordsRequest(topics=[wanted], timeout_ms=30_000), 2, DeleteRecordsResponse)
    found = answer.topics[0].partitions[0]
    return ErrorCode(found.error_code), found.low_watermark


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_delete_records(tidy: LocalCluster, how: str) -> None:
    client, topic = RawClient(tidy.port(1)), f"shortened-{how}"
    tidy.create_topic(topic, config={"segment.bytes": 1000})
    for n in range(10):
        client.produce(topic, batch_of([b"%d" % n * 400]))
    assert delete_records(client, topic, 5) == (ErrorCode.NONE, 5)
    assert delete_records(client, topic, 11)[0] == ErrorCode.OFFSET_OUT_OF_RANGE
    assert client.fetch(topic, 4).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    eventually(lambda: segments(tidy, topic)[0] == 4, "the segments before it were never removed")
    checkpoint = tidy.data_dir / "broker-1" / "log-start-offset-checkpoint"
    eventually(
        lambda: checkpoint.exists() and f"{topic} 0 5" in checkpoint.read_text().splitlines(),
        "the start was never noted",
    )
    {"stop": tidy.stop, "kill": tidy.kill}[how](1)
    tidy.start(1)
    assert [offset for offset, _ in client.read_all(topic)] == [5, 6, 7, 8, 9]
    assert delete_records(client, topic, -1) == (ErrorCode.NONE, 10)
    assert client.read_all(topic) == [] and client.produce(topic, batch_of([b"x"])).base_offset == 10


def test_flush_messages(tidy: LocalCluster) -> None:
    """With flush.messages=1 an acknowledgement means that the records are on the disk: the recovery point says so."""
    client = RawClient(tidy.port(1))
    tidy.create_topic("flushed", config={"flush.messages": 1})
    tidy.create_topic("lazy")
    for acks in (1, -1):
        for topic in ("flushed", "lazy"):
            assert client.produce(topic, batch_of([b"x"] * 3), acks=acks).error_code == ErrorCode.NONE
    checkpoint = tidy.data_dir / "broker-1" / "recovery-point-offset-checkpoint"
    eventually(
        lambda: checkpoint.exists() and "flushed 0 6" in checkpoint.read_text().splitlines(),
        "the recovery point did not move",
    )
