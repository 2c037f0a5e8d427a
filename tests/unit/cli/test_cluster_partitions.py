"""Which partitions `klamm cluster status` calls not well, and which brokers it misses."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import pack, unpack
from types import SimpleNamespace

import pytest

from klamm.cli import cluster_partitions
from klamm.cli.cluster import look
from klamm.cli.cluster_partitions import MissingBroker, ask_min_isrs, missing_brokers, notable_partitions
from klamm.cli.topic import under_replicated_partitions
from klamm.client.blocking_connection import LINE_ENDS
from klamm.errors import ErrorCode, KlammError
from klamm.model import TopicPartition
from klamm.protocol.frames import decode_request_header
from klamm.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from klamm.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from klamm.protocol.wire import decode
from tests.support.frames import encode_response_frame


def topic(name: str, *partitions: tuple[int, tuple[int, ...], tuple[int, ...], ErrorCode]) -> MetadataResponseTopic:
    described = [
        MetadataResponsePartition(
            error_code=error,
            partition_index=number,
            leader_id=leader,
            leader_epoch=0,
            replica_nodes=replicas,
            isr_nodes=isr,
        )
        for number, (leader, replicas, isr, error) in enumerate(partitions)
    ]
    return MetadataResponseTopic(error_code=ErrorCode.NONE, name=name, is_internal=False, partitions=described)


NONE, NO_LEADER = ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE
VIEW = MetadataResponse(
    brokers=[MetadataResponseBroker(node_id=each, host="h", port=1) for each in (1, 2)],
    cluster_id="c",
    controller_id=1,
    topics=[
        topic("b", (1, (1, 2), (2, 1), NONE), (1, (1, 3), (1,), NONE), (-1, (3, 4), (3,), NO_LEADER)),
        topic("a", (1, (1, 2), (1,), NONE), (-1, (2,), (2,), ErrorCode.LISTENER_NOT_FOUND), (1, (1,), (1,), NONE)),
    ],
)


def states(min_isrs: dict[str, int]) -> list[tuple[str, list[str]]]:
    return [(f"{each.topic}-{each.partition}", each.states) for each in notable_partitions(VIEW, min_isrs)]


def test_the_worst_comes_first() -> None:
    assert states({"a": 1, "b": 2}) == [
        ("b-2", ["offline", "under min ISR", "under-replicated"]),
        ("b-1", ["under min ISR", "under-replicated"]),
        ("a-0", ["under-replicated"]),
    ]


def test_a_topic_with_an_unknown_min_isr() -> None:
    assert ("b-1", ["under-replicated"]) in states({})


def test_a_topic_with_fewer_replicas_than_min_isr_needs_all_of_them() -> None:
    """As brokers do: `acks=all` works for a topic with one replica, whatever min.insync.replicas is."""
    assert states({"a": 2}) == [
        ("b-2", ["offline", "under-replicated"]),
        ("a-0", ["under min ISR", "under-replicated"]),
        ("b-1", ["under-replicated"]),
    ]


def test_of_those_alike_the_one_nearest_to_its_end_comes_first() -> None:
    view = MetadataResponse(
        brokers=[],
        controller_id=1,
        topics=[
            topic("a", (1, (1, 2, 3), (1, 2), NONE), (1, (1, 2, 3, 4), (1, 2), NONE), (1, (1, 2, 3), (1,), NONE)),
            topic("b", (1, (1, 2, 3), (1, 2), NONE), (1, (1, 2, 3), (1,), NONE)),
            topic("c", (-1, (1, 2), (2,), NO_LEADER), (-1, (1, 2), (1, 2), NO_LEADER)),
        ],
    )
    found = notable_partitions(view, {"a": 1, "b": 3, "c": 1})
    assert [f"{each.topic}-{each.partition}" for each in found] == ["c-0", "c-1", "b-1", "b-0", "a-2", "a-1", "a-0"]


def test_replicas_that_a_move_adds_are_not_missed() -> None:
    view = MetadataResponse(
        brokers=[],
        controller_id=1,
        topics=[
            topic("new", (1, (3, 1, 2), (1, 2), NONE), (1, (3, 1, 2), (1,), NONE), (1, (3, 1, 2), (1, 2), NONE)),
            topic("gone", (1, (1, 2), (1, 2), NONE)),
        ],
    )
    adding = {TopicPartition("new", 0): frozenset({3}), TopicPartition("new", 1): frozenset({3})}
    found = notable_partitions(view, {}, adding | {TopicPartition("gone", 0): frozenset()})
    assert [(f"{each.topic}-{each.partition}", each.states, each.adding) for each in found] == [
        ("new-1", ["under-replicated", "moving"], [3]),
        ("new-2", ["under-replicated"], []),
        ("gone-0", ["moving"], []),
        ("new-0", ["moving"], [3]),
    ]
    assert [each.is_unwell for each in found] == [True, True, False, False]


def test_klamm_topic_describe_does_not_miss_them_either() -> None:
    partitions = [SimpleNamespace(id=number, replicas=(3, 1, 2), isr=(1, 2)) for number in (0, 1)]
    found = under_replicated_partitions("t", partitions, {TopicPartition("t", 0): [3]})
    assert [partition.id for partition in found] == [1]


def test_missing_brokers_are_counted() -> None:
    assert missing_brokers(VIEW) == [MissingBroker(3, 2), MissingBroker(4, 1)]


@contextmanager
def broker_that_says(answer: Callable[[bytes], bytes]) -> Iterator[tuple[tuple[str, int], list[int]]]:
    """Where it listens, and how many requests each connection brought."""
    requests: list[int] = []

    def serve(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            while size := stream.read(4):
                requests[-1] += 1
                connection.sendall(answer(stream.read(unpack(">i", size)[0])))

    def accept() -> None:
        while True:
            try:
                connection = server.accept()[0]
            except OSError:
                return
            requests.append(0)
            serve(connection)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield server.getsockname(), requests
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def two_in_sync(frame: bytes) -> bytes:
    header, position = decode_request_header(frame)
    request, _ = decode(DescribeConfigsRequest, header.api_version, frame, position)
    config = DescribeConfigsResourceResult(name="min.insync.replicas", value="2", read_only=False, is_sensitive=False)
    results = [
        DescribeConfigsResult(
            error_code=0, error_message=None, resource_type=2, resource_name=each.resource_name, configs=[config]
        )
        for each in request.resources
    ]
    return b"".join(encode_response_frame(header.correlation_id, DescribeConfigsResponse(results=results), 1))


def test_many_topics_are_asked_for_over_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_partitions, "_TOPICS_ASKED_AT_ONCE", 2)
    with broker_that_says(two_in_sync) as (address, requests):
        assert ask_min_isrs(address, "abcde", 60.0) == dict.fromkeys("abcde", 2)
    assert requests == [3]


@pytest.mark.parametrize(
    ("said", "reported"),
    [
        (pack(">iib", 5, -7, 0), "{at} does not speak Kafka's protocol: response -7 arrived, expected {number}."),
        (pack(">ih", 2, 0), "{at} does not speak Kafka's protocol: "),
    ],
)
def test_an_invalid_answer_is_reported_in_a_sentence(said: bytes, reported: str) -> None:
    with broker_that_says(lambda _: said) as (address, _):
        asks = ((0, lambda: ask_min_isrs(address, "a", 60.0)), (LINE_ENDS, lambda: look([address], {}, 60.0)))
        for number, ask in asks:
            with pytest.raises(KlammError) as raised:
                ask()
            assert str(raised.value).startswith(reported.format(at=f"127.0.0.1:{address[1]}", number=number))
