"""A disk that refuses writes costs the partitions on it, never the broker."""

from __future__ import annotations

import contextlib
import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.errors import ErrorCode
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from klamm.testing import LocalCluster
from tests.support import full_disk_broker
from tests.support.broker_process import BrokerProcess, write_properties
from tests.support.raw_client import TIMEOUT_S, RawClient, batch_of, eventually

BATCH = [b"x" * 500] * 10


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


def fill(client: RawClient, topic: str, until: ErrorCode, limit: int = 1000) -> list[int]:
    """The base offsets that were acknowledged until `until` was answered."""
    acknowledged: list[int] = []
    for _ in range(limit):
        answer = client.produce(topic, batch_of(BATCH))
        if answer.error_code == until:
            return acknowledged
        assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code)
        acknowledged.append(answer.base_offset)
    raise AssertionError(f"{until.name} was never answered")


def assert_alive(cluster: LocalCluster, client: RawClient) -> None:
    assert cluster.is_running(1)
    assert client.ask(ApiVersionsRequest(), 2, ApiVersionsResponse).error_code == ErrorCode.NONE
    assert [broker.node_id for broker in client.metadata().brokers] == [1]


def log_dirs(client: RawClient) -> dict[str, ErrorCode]:
    answer = client.ask(DescribeLogDirsRequest(topics=None), 1, DescribeLogDirsResponse)
    return {result.log_dir: ErrorCode(result.error_code) for result in answer.results}


def problems(cluster: LocalCluster) -> list[str]:
    done = CliRunner().invoke(app, ["cluster", "status", "--json", "-b", cluster.bootstrap_servers])
    found: list[str] = json.loads(done.stdout)["problems"]
    return found


def limit_files(pid: int, size: int) -> None:
    """From now on a write beyond `size` fails in this process with EFBIG, as one does with ENOSPC on a full disk."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def test_full_disk(cluster: LocalCluster) -> None:
    client = RawClient(cluster.port(1))
    cluster.create_topic("full")
    cluster.create_topic("other")
    client.produce("other", batch_of([b"kept"]))
    assert problems(cluster) == []
    limit_files(cluster.pid(1), 1 << 19)
    acknowledged = fill(client, "full", ErrorCode.KAFKA_STORAGE_ERROR)
    assert acknowledged == list(range(0, len(acknowledged) * len(BATCH), len(BATCH))) and acknowledged
    assert_alive(cluster, client)
    # All partitions of the directory are offline, and every request for them fails at once.
    assert client.produce("full", batch_of([b"x"])).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert client.produce("other", batch_of([b"x"])).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert client.fetch("full", 0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert list(log_dirs(client).values()) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert [each.startswith("Broker 1 took log directory ") for each in problems(cluster)] == [True]
    # The controller has learnt that the replicas are offline.
    eventually(
        lambda: [list(p.offline_replicas) for t in client.metadata("full").topics for p in t.partitions] == [[1]],
        "Metadata never named the offline replica",
    )
    said = [line for line in cluster.logs(1).read_text().splitlines() if "has failed while" in line]
    assert len(said) == 1 and " ERROR " in said[0] and "File too large" in said[0] and "full-0" in said[0]
    assert "Traceback" not in cluster.logs(1).read_text()
    cluster.stop(1)
    cluster.start(1)
    found = client.read_all("full")
    assert found[: len(acknowledged) * len(BATCH)] == [(n, BATCH[0]) for n in range(len(acknowledged) * len(BATCH))]
    assert client.read_all("other") == [(0, b"kept")]
    assert client.produce("full", batch_of([b"again"])).error_code == ErrorCode.NONE


@pytest.mark.long
def test_a_full_disk_that_has_room_again_needs_no_restart(tmp_path: Path) -> None:
    config = {"broker.id": 1, "log.dirs": tmp_path / "logs", "listeners": "PLAINTEXT://127.0.0.1:0"}
    path = write_properties(tmp_path / "broker.properties", config)
    flag = tmp_path / "full"
    with BrokerProcess(path, program=[full_disk_broker.__file__, str(flag)]) as broker:
        client = broker.client()
        for topic in ("full", "idle"):
            assert client.create_topic(topic) == ErrorCode.NONE
            assert client.produce(topic, batch_of([b"kept"])).error_code == ErrorCode.NONE
        flag.touch()
        assert client.produce("full", batch_of([b"refused"])).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        eventually(
            lambda: client.fetch("idle", 0).error_code == ErrorCode.KAFKA_STORAGE_ERROR,
            "the other partition of the directory stayed online",
        )
        assert list(log_dirs(client).values()) == [ErrorCode.KAFKA_STORAGE_ERROR]
        flag.unlink()
        for topic in ("full", "idle"):
            write = partial(client.produce, topic, batch_of([b"again"]))
            eventually(lambda: write().error_code == ErrorCode.NONE, "it cannot be written although there is room")  # noqa: B023
            assert client.read_all(topic) == [(0, b"kept"), (1, b"again")]
        assert list(log_dirs(client).values()) == [ErrorCode.NONE]
        assert "Traceback" not in broker.log, broker.log[broker.log.find("Traceback") - 200 :][:4_000]


def test_full_disk_then_kill(cluster: LocalCluster) -> None:
    client = RawClient(cluster.port(1))
    cluster.create_topic("full", config={"segment.bytes": 1 << 16})
    limit_files(cluster.pid(1), 1 << 15)
    acknowledged = fill(client, "full", ErrorCode.KAFKA_STORAGE_ERROR)
    cluster.kill(1)
    cluster.start(1)
    records = len(acknowledged) * len(BATCH)
    assert client.read_all("full")[:records] == [(n, BATCH[0]) for n in range(records)]
    assert client.produce("full", batch_of([b"again"])).error_code == ErrorCode.NONE


def test_a_second_directory_continues(tmp_path: Path) -> None:
    """The new topics go to the directory that is left; those on the failed one come back with it."""
    first, second = tmp_path / "one", tmp_path / "two"
    with LocalCluster(broker_configs={"log.dirs": f"{first},{second}"}) as cluster:
        client = RawClient(cluster.port(1))
        cluster.create_topic("spread", partitions=2)
        here = 0 if (first / "spread-0").exists() else 1
        for partition in (0, 1):
            assert client.produce("spread", batch_of([b"x"]), partition=partition).error_code == ErrorCode.NONE
        # A log that is larger than the limit fails, the small one in the other directory does not.
        big = [b"x" * 100_000]
        client.produce("spread", batch_of(big), partition=here)
        limit_files(cluster.pid(1), 90_000)
        assert client.produce("spread", batch_of(big), partition=here).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert client.produce("spread", batch_of([b"y"]), partition=1 - here).error_code == ErrorCode.NONE
        assert client.read_all("spread", partition=1 - here) == [(0, b"x"), (1, b"y")]
        assert log_dirs(client) == {str(first): ErrorCode.KAFKA_STORAGE_ERROR, str(second): ErrorCode.NONE}
        cluster.create_topic("later")
        assert client.produce("later", batch_of([b"z"])).error_code == ErrorCode.NONE
        assert (second / "later-0").exists()
        cluster.stop(1)
        assert not (first / ".kafka_cleanshutdown").exists() and (second / ".kafka_cleanshutdown").exists()
        cluster.start(1)
        assert client.read_all("spread", partition=here) == [(0, b"x"), (1, big[0])]
        assert client.read_all("spread", partition=1 - here) == [(0, b"x"), (1, b"y")]
        assert client.read_all("later") == [(0, b"z")]


@contextmanager
def without_new_files(folder: Path) -> Iterator[None]:
    """Open files stay writable, new ones cannot be made; root, whom permissions do not stop, finds no directory."""
    if os.geteuid() != 0:
        folder.chmod(0o500)
        yield
        folder.chmod(0o700)
        return
    aside = folder.with_name("aside")
    folder.rename(aside)
    folder.touch()
    yield
    folder.unlink()
    aside.rename(folder)


def test_no_new_segment_can_be_made(cluster: LocalCluster) -> None:
    client = RawClient(cluster.port(1))
    cluster.create_topic("locked", config={"segment.bytes": 1 << 15})
    # Files are forced to the disk one after the other: an answer that waited for this one comes after the new topic's.
    cluster.create_topic("forced", config={"flush.messages": 1})
    assert client.produce("forced", batch_of([b"x"])).error_code == ErrorCode.NONE
    with without_new_files(cluster.data_dir / "broker-1" / "locked-0"):
        acknowledged = fill(client, "locked", ErrorCode.KAFKA_STORAGE_ERROR)
        assert_alive(cluster, client)
        assert "broker-1 has failed while appending to" in cluster.logs(1).read_text()
        cluster.kill(1)
    cluster.start(1)
    records = len(acknowledged) * len(BATCH)
    assert client.read_all("locked")[:records] == [(n, BATCH[0]) for n in range(records)]


def test_one_of_two_directories_is_unusable_from_the_start(tmp_path: Path) -> None:
    """/proc takes no directories, not even from root."""
    with LocalCluster(broker_configs={"log.dirs": f"/proc/klamm,{tmp_path / 'good'}"}) as cluster:
        client = RawClient(cluster.port(1))
        assert "/proc/klamm cannot be used: " in cluster.logs(1).read_text()
        assert log_dirs(client)["/proc/klamm"] == ErrorCode.KAFKA_STORAGE_ERROR
        assert (tmp_path / "good" / "zookeeper.session").exists()
        cluster.create_topic("t")
        assert client.produce("t", batch_of([b"x"])).error_code == ErrorCode.NONE
        cluster.kill(1)
        cluster.start(1)
        assert client.read_all("t") == [(0, b"x")]
        assert "WARNING /proc" not in cluster.logs(1).read_text()


def test_full_disk_of_the_embedded_zookeeper(tmp_path: Path) -> None:
    """No further decision is possible, so the broker logs this and stops cleanly. With space on the disk everything
    works again.
    """
    config = {
        "broker.id": 1,
        "log.dirs": tmp_path / "logs",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "klamm.zookeeper.embedded.dir": tmp_path / "zookeeper",
    }
    path = write_properties(tmp_path / "broker.properties", config)
    with BrokerProcess(path) as broker:
        client = broker.client()
        assert client.create_topic("a") == ErrorCode.NONE
        limit_files(broker.process.pid, 1 << 14)
        assert client.produce("a", batch_of([b"x"])).error_code == ErrorCode.NONE
        with contextlib.suppress(OSError):  # as soon as it stops
            for number in range(200):
                client.create_topic(f"more-{number}", timeout_ms=1000)
        assert broker.process.wait(TIMEOUT_S) == 1 and "Traceback" not in broker.log
        line = broker.log.splitlines()[-1]
        assert line.startswith(
            f"klamm broker: The broker has stopped. The embedded ZooKeeper cannot write to {tmp_path / 'zookeeper'}: "
        )
        assert (tmp_path / "logs" / ".kafka_cleanshutdown").exists()
    with BrokerProcess(path) as broker:
        assert broker.client().read_all("a") == [(0, b"x")]
        assert broker.client().create_topic("again") == ErrorCode.NONE
