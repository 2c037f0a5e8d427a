"""Brokers that accept connections and are silent, partitions without a leader, and a port that is in use."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from klamm.cli import client, consume
from klamm.cli.broker_requests import cli_client_config
from klamm.cli.client import by_answer, client_config, parse_address
from klamm.cli.cluster import first_metadata
from klamm.cli.dashboard import new_source, open_server
from klamm.cli.output import Failure
from klamm.client.patience import Patience
from klamm.protocol.messages.metadata import MetadataRequest
from klamm.protocol.wire import Message
from tests.support.scripted_broker import scripted_broker, view


@pytest.fixture
def silent() -> Iterator[str]:
    """Like a paused broker: the kernel accepts connections, and nothing answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def answering() -> Iterator[str]:
    def answer(request: Message) -> Message:
        assert isinstance(request, MetadataRequest)
        return view({1: ("127.0.0.1", 1)}, 1, {})

    with scripted_broker(answer) as (host, port):
        yield f"{host}:{port}"


def test_a_silent_broker_is_asked_last(silent: str, answering: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka does not get it at all: it would wait for a broker that it picks by chance."""
    servers = f"{silent},{answering}"
    for quick_s in (0.05, 0.5, 5.0, 50.0):  # as long as this machine needs for an answer
        monkeypatch.setattr(client, "QUICK_ANSWER", Patience(int(1000 * quick_s), request_ms=int(1000 * quick_s)))
        if by_answer(servers)[0]:
            break
    assert by_answer(servers) == ([answering], [silent])
    assert client_config(servers)["bootstrap.servers"] == answering
    assert [f"{host}:{port}" for host, port in cli_client_config(servers).bootstrap] == [answering, silent]


def test_a_silent_broker_does_not_delay_the_first_answer(silent: str, answering: str) -> None:
    """Within a time that the test would not survive: the silent broker is still being asked."""
    addresses = [parse_address(server) for server in (silent, answering)]
    found = first_metadata(addresses, 3600.0)
    assert found is not None and [node.node_id for node in found.brokers] == [1]
    assert first_metadata([parse_address("127.0.0.1:1")], 3600.0) is None


def test_if_all_are_silent_all_are_asked(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "QUICK_ANSWER", Patience(50, request_ms=50))
    assert client_config(f"{silent},{silent}")["bootstrap.servers"] == f"{silent},{silent}"
    assert by_answer(silent) == ([silent], []), "one server alone is not asked"


class LeaderlessConsumer:
    """A consumer of confluent-kafka whose second partition has no leader: it never reaches the end of it."""

    def poll(self, _: float) -> None:
        return None

    def assignment(self) -> list[TopicPartition]:
        return [TopicPartition("orders", 0), TopicPartition("orders", 1)]

    def list_topics(self, topic: str, timeout: float) -> Any:
        partitions = {number: SimpleNamespace(leader=leader) for number, leader in ((0, 1), (1, -1))}
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions=partitions)})


def test_a_partition_without_a_leader_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--exit-at-end` waits until it has one. The sentence is printed once."""
    monkeypatch.setattr(consume, "_SILENT_S", 0.0)
    consumer: Any = LeaderlessConsumer()
    assert list(consume._messages(consumer, 20, exit_at_end=True)) == []
    expected = "Waiting for the end of the topic: partition 1 of orders has no leader.\n"
    assert capsys.readouterr().err == expected
    assert list(consume._messages(consumer, 1, exit_at_end=False)) == []
    assert capsys.readouterr().err == ""


def test_the_option_of_a_port_in_use() -> None:
    source = new_source(title="nothing", records=(b"{}",))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Failure, match=r"Address already in use\. Choose another --port; 0 picks a free port\."):
            open_server(source, port=port)
        with pytest.raises(Failure, match="Choose another --dashboard-port; "):
            open_server(source, port=port, option="--dashboard-port")
    with pytest.raises(Failure, match=r"Choose another --host\."):
        open_server(source, host="192.0.2.1")
