"""Observes a cluster from outside: brokers' metadata over Kafka's protocol, and when znodes come and go."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from kazoo.client import KazooClient

from bench.clusters import BenchCluster
from klamm.client.blocking_connection import BlockingConnection, ask_once
from klamm.errors import ErrorCode, KlammError
from klamm.local.ports import LOOPBACK
from klamm.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from klamm.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from klamm.protocol.wire import Message

REQUEST_TIMEOUT_S: Final = 120.0
LIMIT_S: Final = 180.0
POLL_S: Final = 0.02
TOPICS_PER_REQUEST: Final = 100
R = TypeVar("R", bound=Message)
Leaders = Mapping[tuple[str, int], int]


def ask(cluster: BenchCluster, broker_id: int, request: Message, version: int, answer: type[R]) -> R:
    return ask_once((LOOPBACK, cluster.port(broker_id)), request, version, answer, REQUEST_TIMEOUT_S)


def metadata(cluster: BenchCluster, broker_id: int, topics: Sequence[str] | None = None) -> MetadataResponse:
    """Of all topics, or of these."""
    wanted = None if topics is None else [MetadataRequestTopic(name=topic) for topic in topics]
    request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
    return ask(cluster, broker_id, request, 7, MetadataResponse)


def leaders(cluster: BenchCluster, broker_id: int, topics: Sequence[str] | None = None) -> Leaders:
    """The leader of every partition that the broker knows."""
    return {
        (topic.name or "", partition.partition_index): partition.leader_id
        for topic in metadata(cluster, broker_id, topics).topics
        for partition in topic.partitions
    }


class Connections:
    """A connection to every broker, kept: what is timed through them is the cluster and not the connecting."""

    def __init__(self, cluster: BenchCluster) -> None:
        self._connections = {
            broker_id: BlockingConnection(
                (LOOPBACK, cluster.port(broker_id)), client_id="bench", timeout_ms=REQUEST_TIMEOUT_S * 1000
            )
            for broker_id in cluster.brokers
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._connections.values():
            connection.close()

    def create_topic(self, controller: int, name: str, replication_factor: int) -> None:
        request = _creation([name], 1, replication_factor)
        _created(self._connections[controller].ask(request, CreateTopicsResponse, 5))

    def that_know(self, brokers: Iterable[int], topic: str) -> set[int]:
        """Those whose metadata has the topic and a leader for each of its partitions.

        All are asked at once: a question to one of them must not wait for the answer of another, which would be timed
        as well.
        """
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        asked = list(brokers)
        for broker_id in asked:
            self._connections[broker_id].send(request, 7)
        return {broker_id for broker_id in asked if _has_leaders(self._connections[broker_id].receive())}


def _has_leaders(answer: Message) -> bool:
    assert isinstance(answer, MetadataResponse)
    (topic,) = answer.topics
    return bool(topic.partitions) and all(partition.leader_id >= 0 for partition in topic.partitions)


def wait_until(condition: Callable[[], bool], what: str, limit_s: float = LIMIT_S, poll_s: float = POLL_S) -> float:
    """The moment at which it held; a broker that does not answer just now does not count as an answer."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            if condition():
                return time.monotonic()
        except (OSError, struct.error):
            pass
        if time.monotonic() > deadline:
            raise KlammError(f"{what}: not within {limit_s:g} s")
        time.sleep(poll_s)


def wait_everywhere(cluster: BenchCluster, brokers: Iterable[int], holds: Callable[[int], bool], what: str) -> float:
    """The moment at which the last of `brokers` was seen to hold; one that held is not asked again."""
    waiting = list(brokers)

    def all_hold() -> bool:
        while waiting and holds(waiting[0]):
            waiting.pop(0)
        return not waiting

    return wait_until(all_hold, what)


def create_topics(cluster: BenchCluster, names: Sequence[str], partitions: int, replication_factor: int) -> None:
    """Asks the controller, for `TOPICS_PER_REQUEST` topics at a time; returns when it has answered all."""
    controller = cluster.controller_id()
    for start in range(0, len(names), TOPICS_PER_REQUEST):
        request = _creation(names[start : start + TOPICS_PER_REQUEST], partitions, replication_factor)
        _created(ask(cluster, controller, request, 5, CreateTopicsResponse))


def _creation(names: Sequence[str], partitions: int, replication_factor: int) -> CreateTopicsRequest:
    topics = [
        CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=replication_factor, assignments=(), configs=()
        )
        for name in names
    ]
    return CreateTopicsRequest(topics=topics, timeout_ms=int(REQUEST_TIMEOUT_S * 1000))


def _created(answer: CreateTopicsResponse) -> None:
    for result in answer.topics:
        if result.error_code != ErrorCode.NONE:
            raise KlammError(f"{result.name}: {ErrorCode(result.error_code).name} {result.error_message or ''}")


def elect_preferred(cluster: BenchCluster, partitions: Iterable[tuple[str, int]]) -> None:
    """Asks the controller to give these partitions back to their preferred leaders."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    wanted = [TopicPartitions(topic=topic, partitions=numbers) for topic, numbers in by_topic.items()]
    request = ElectLeadersRequest(election_type=0, topic_partitions=wanted, timeout_ms=int(REQUEST_TIMEOUT_S * 1000))
    answer = ask(cluster, cluster.controller_id(), request, 1, ElectLeadersResponse)
    if answer.error_code != ErrorCode.NONE:
        raise KlammError(f"ElectLeaders: {ErrorCode(answer.error_code).name}")


class ZnodeWatch:
    """When ZooKeeper says that a znode is gone or has come, by this machine's monotonic clock."""

    def __init__(self, zookeeper: str, path: str) -> None:
        self._client = KazooClient(zookeeper, timeout=30.0)
        self._path = path
        self._changed = threading.Condition()
        self.events: list[tuple[float, bytes | None]] = []

    def __enter__(self) -> Self:
        self._client.start(timeout=30)
        self._client.DataWatch(self._path, self._on_change)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.stop()
        self._client.close()

    def _on_change(self, data: bytes | None, stat: Any) -> None:
        with self._changed:
            self.events.append((time.monotonic(), data))
            self._changed.notify_all()

    def wait(self, wanted: Callable[[bytes | None], bool], after: float, limit_s: float = LIMIT_S) -> float:
        """The first moment after `after` at which the znode's data (None: it is not there) was as wanted."""

        def found() -> float | None:
            return next((at for at, data in self.events if at > after and wanted(data)), None)

        with self._changed:
            if not self._changed.wait_for(lambda: found() is not None, limit_s):
                raise KlammError(f"{self._path} did not change within {limit_s:g} s")
            moment = found()
        assert moment is not None
        return moment
