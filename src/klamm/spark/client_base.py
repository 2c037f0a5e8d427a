"""Brokers, leaders and retries: what is under every question that the Spark part asks of a cluster."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Self, TypeVar
from uuid import UUID

from klamm.clock import Clock, SystemClock
from klamm.errors import ErrorCode, KlammError
from klamm.frozen import dataclass
from klamm.model import ZERO_UUID, TopicPartition
from klamm.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from klamm.spark.client_connection import BrokerSocket
from klamm.spark.source.read_options import OptionError

T = TypeVar("T")

FIRST_CONTACT_MS: Final = 5_000
"""How long a driver asks for a first broker where all of them refuse: about what one takes to start."""
_UNKNOWN: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


class ClientError(KlammError):
    """The cluster refused, or did not answer in time."""


class UnreachableError(ClientError):
    """No broker has ever been reached: another try is not worth the wait."""


class RetriableError(Exception):
    """Something that passes: fresh metadata and another try."""


class TopicIdError(RetriableError):
    """A broker has no topic with the id that was asked for: it does not know it yet, or another has its name now."""


class UnknownTopicError(ClientError):
    """A topic or partition that does not exist (any more)."""


class OffsetOutOfRangeError(ClientError):
    """The leader has no record at the offset: it is before the start or after the end of the log."""


class _AllRefused(ConnectionError):
    """Nothing listens at any address, or its name does not exist: unlike silence, this is known at once."""


@dataclass(frozen=True, slots=True)
class PartitionState:
    leader: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class TopicState:
    topic_id: UUID | None
    """None where the cluster has no topic ids."""
    partitions: Mapping[int, PartitionState]
    is_internal: bool = False
    """Of the cluster's own: offsets of groups, transactions, klamm's control log."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """What a Metadata response told, of the topics that were asked for."""

    cluster_id: str | None
    brokers: Mapping[int, tuple[str, int]]
    topics: Mapping[str, TopicState]


class BrokerClient:
    """Knows the brokers and the leaders, and asks again who they are when they have moved. Not for several threads."""

    def __init__(
        self,
        bootstrap_servers: str,
        client_options: Mapping[str, str] | None = None,
        *,
        first_contact_ms: int | None = None,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """With `first_contact_ms`, UnreachableError after that time when every bootstrap server refuses connections.

        Without it the API timeout holds from the start: a task may begin just when the brokers are away.
        """
        options = {key.lower(): value for key, value in (client_options or {}).items()}
        self._bootstrap = parse_addresses(bootstrap_servers)
        self._client_id = options.get("client.id") or "klamm-spark"
        self._request_timeout_ms = _number(options, "request.timeout.ms", 30_000)
        self._api_timeout_ms = _number(options, "default.api.timeout.ms", 60_000)
        self._backoff_ms = _number(options, "retry.backoff.ms", 100)
        self._receive_buffer_bytes = max(0, _number(options, "receive.buffer.bytes", 0, least=-1)) or None
        self.fetch_max_bytes = _number(options, "fetch.max.bytes", 0)
        self.partition_fetch_bytes = _number(options, "max.partition.fetch.bytes", 0)
        self.fetch_max_wait_ms = _number(options, "fetch.max.wait.ms", 500)
        self.fetch_min_bytes = _number(options, "fetch.min.bytes", 1)
        self.check_crcs = options.get("check.crcs", "true").strip().lower() != "false"
        self._first_contact_ms = first_contact_ms
        self._was_reached = False
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._sockets: dict[tuple[str, int], BrokerSocket] = {}
        self._brokers: dict[int, tuple[str, int]] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self.topic_ids: dict[str, UUID] = {}
        """Of every topic that was asked for, as last seen."""
        self.cluster_id: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._sockets.values():
            connection.close()
        self._sockets.clear()

    # --- metadata ---

    def metadata(self, topics: Iterable[str] | None) -> ClusterState:
        """The state of these topics, of all of them when None. Topics that do not exist are left out."""
        wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in sorted(set(topics))]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        answer = self.retry("metadata", lambda: self._any_broker().ask(request, MetadataResponse))
        return self._learn(answer)

    def topics(self, names: Iterable[str] | None = None, pattern: str | None = None) -> dict[str, list[int]]:
        """The partitions of the topics with these names that exist, or of those in whose name the pattern is found.

        As in Spark's connector a part of the name is enough for a pattern, and none finds an internal topic.
        """
        state = self.metadata(names)
        matching = re.compile(pattern) if pattern is not None else None
        return {
            name: sorted(topic.partitions)
            for name, topic in sorted(state.topics.items())
            if matching is None or (matching.search(name) and not topic.is_internal)
        }

    def leader_address(self, tp: TopicPartition) -> tuple[int, str, int]:
        """(broker id, host, port) of a partition's leader. UnknownTopicError when there is no such partition."""

        def find() -> tuple[int, str, int]:
            leader = self._leader(tp)
            return leader, *self._brokers[leader]

        return self.retry(f"the leader of {tp}", find)

    def _learn(self, answer: MetadataResponse) -> ClusterState:
        self._brokers = {b.node_id: (b.host, b.port) for b in answer.brokers}
        self.cluster_id = answer.cluster_id
        topics: dict[str, TopicState] = {}
        for topic in answer.topics:
            name = topic.name or ""
            if topic.error_code in (*_UNKNOWN, ErrorCode.INVALID_TOPIC_EXCEPTION):
                self.topic_ids.pop(name, None)
                self._leaders = {tp: leader for tp, leader in self._leaders.items() if tp.topic != name}
                continue
            if topic.error_code not in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
                raise ClientError(f"Topic {name} cannot be read: {error_name(topic.error_code)}.")
            partitions = {p.partition_index: PartitionState(p.leader_id, p.leader_epoch) for p in topic.partitions}
            topic_id = topic.topic_id if topic.topic_id != ZERO_UUID else None
            topics[name] = TopicState(topic_id, partitions, topic.is_internal)
            if topic_id is not None:
                self.topic_ids[name] = topic_id
            for index, state in partitions.items():
                self._leaders[TopicPartition(name, index)] = state.leader
        return ClusterState(answer.cluster_id, dict(self._brokers), topics)

    def _leader(self, tp: TopicPartition) -> int:
        """Asks when the leader is not known. RetriableError while there is none."""
        leader = self._leaders.get(tp, -1)
        if leader < 0 or leader not in self._brokers:
            wanted = [MetadataRequestTopic(name=tp.topic)]
            request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
            state = self._learn(self._any_broker().ask(request, MetadataResponse))
            if tp.topic not in state.topics or tp.partition not in state.topics[tp.topic].partitions:
                raise UnknownTopicError(f"{tp} does not exist.")
            leader = self._leaders[tp]
            if leader < 0 or leader not in self._brokers:
                self._leaders.pop(tp, None)
                raise RetriableError(f"{tp} has no leader")
        return leader

    def _forget_leader(self, tp: TopicPartition) -> None:
        self._leaders.pop(tp, None)

    # --- connections ---

    def retry(self, what: str, attempt: Callable[[], T], timeout_ms: int | None = None) -> T:
        """Tries until the API timeout is over; errors that stay leave at once."""
        timeout_ms = self._api_timeout_ms if timeout_ms is None else timeout_ms
        began = self._clock.monotonic()
        while True:
            try:
                return attempt()
            except (RetriableError, OSError) as e:
                waited_ms = (self._clock.monotonic() - began) * 1000
                if self._first_contact_ms is not None and not self._was_reached:
                    wait_ms = min(self._first_contact_ms, timeout_ms) if isinstance(e, _AllRefused) else timeout_ms
                    _give_up_first_contact(e, waited_ms, wait_ms)
                if waited_ms >= timeout_ms:
                    raise ClientError(f"The cluster did not give {what} within {timeout_ms} ms: {e}.") from e
                if isinstance(e, OSError):
                    self._close_broken()
                self._sleep(self._backoff_ms / 1000)

    def _any_broker(self) -> BrokerSocket:
        """A connection that is there, else the first address that answers."""
        problems: list[str] = []
        all_refused = True
        for connection in self._sockets.values():
            if not connection.is_closed and connection.in_flight == 0:
                return connection
        for address in dict.fromkeys((*self._brokers.values(), *self._bootstrap)):
            try:
                return self._connection(address)
            except OSError as e:
                problems.append(f"{address[0]}:{address[1]}: {e}")
                all_refused &= isinstance(e, ConnectionRefusedError | socket.gaierror)
        kind = _AllRefused if all_refused else ConnectionError
        raise kind("no broker answers: " + "; ".join(problems))

    def _broker(self, broker_id: int) -> BrokerSocket:
        if broker_id not in self._brokers:
            raise RetriableError(f"broker {broker_id} is not known")
        return self._connection(self._brokers[broker_id])

    def _connection(self, address: tuple[str, int]) -> BrokerSocket:
        connection = self._sockets.get(address)
        if connection is None or connection.is_closed or connection.in_flight:
            if connection is not None:
                connection.close()
            connection = self._sockets[address] = BrokerSocket(
                *address,
                client_id=self._client_id,
                timeout_ms=self._request_timeout_ms,
                receive_buffer_bytes=self._receive_buffer_bytes,
            )
            self._was_reached = True
        return connection

    def _drop(self, broker_id: int) -> None:
        address = self._brokers.get(broker_id)
        if address is not None and (connection := self._sockets.pop(address, None)) is not None:
            connection.close()

    def _close_broken(self) -> None:
        for address, connection in list(self._sockets.items()):
            if connection.is_closed:
                del self._sockets[address]
        self._leaders = {tp: i for tp, i in self._leaders.items() if self._brokers.get(i) in self._sockets}


def _give_up_first_contact(problem: Exception, waited_ms: float, limit_ms: int) -> None:
    if waited_ms >= limit_ms:
        raise UnreachableError(
            f"The cluster cannot be reached: {problem}. Is it up, and is kafka.bootstrap.servers right?"
        ) from None


def parse_addresses(text: str) -> list[tuple[str, int]]:
    """`host:port,[::1]:port`. OptionError when it is something else."""
    found: list[tuple[str, int]] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        host, _, port = part.removeprefix("PLAINTEXT://").rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise OptionError(f"Option 'kafka.bootstrap.servers' is a list of host:port; {part!r} is not.")
        found.append((host.strip("[]"), int(port)))
    if not found:
        raise OptionError("Option 'kafka.bootstrap.servers' names no broker.")
    return found


def _number(options: Mapping[str, str], name: str, default: int, *, least: int = 0) -> int:
    value = options.get(name, str(default)).strip()
    try:
        number = int(value)
    except ValueError:
        raise OptionError(f"Option 'kafka.{name}' is a whole number, not {value!r}.") from None
    if number < least:
        raise OptionError(f"Option 'kafka.{name}' must be at least {least}, not {number}.")
    return number


def error_code(code: int) -> ErrorCode | None:
    try:
        return ErrorCode(code)
    except ValueError:
        return None


def error_name(code: int) -> str:
    known = error_code(code)
    return known.name if known is not None else f"error {code}"
