"""ClusterClient: what the Spark part asks of a cluster, klamm's or Apache Kafka's, over blocking sockets.

Leaders that move, brokers that go and errors that pass are met here: with fresh metadata and another try, until
`default.api.timeout.ms` is over. What is left is a `ClientError` that says what was asked and what came last.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar
from uuid import UUID

from klamm.clock import Clock, SystemClock
from klamm.errors import ErrorCode, KlammError
from klamm.frozen import dataclass
from klamm.model import ZERO_UUID, TopicPartition
from klamm.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from klamm.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from klamm.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from klamm.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from klamm.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from klamm.spark.client_connection import BrokerSocket
from klamm.spark.options import EARLIEST, LATEST, OptionError

T = TypeVar("T")

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
FETCH_BY_NAME: Final = 12
"""From version 13 on a Fetch names topics by id."""
_UNKNOWN: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


class ClientError(KlammError):
    """The cluster refused, or did not answer in time."""


class RetriableError(Exception):
    """Something that passes: fresh metadata and another try."""


class UnknownTopicError(ClientError):
    """A topic or partition that does not exist (any more)."""


class OffsetOutOfRangeError(ClientError):
    """The leader has no record at the offset: it is before the start or after the end of the log."""


@dataclass(frozen=True, slots=True)
class PartitionState:
    leader: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class TopicState:
    topic_id: UUID | None
    """None where the cluster has no topic ids."""
    partitions: Mapping[int, PartitionState]


@dataclass(frozen=True, slots=True)
class ClusterState:
    """What a Metadata response told, of the topics that were asked for."""

    cluster_id: str | None
    brokers: Mapping[int, tuple[str, int]]
    topics: Mapping[str, TopicState]


class ClusterClient:
    """Not for several threads. `client_options` are Kafka's client configurations without the `kafka.` prefix."""

    def __init__(
        self,
        bootstrap_servers: str,
        client_options: Mapping[str, str] | None = None,
        *,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
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
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._sockets: dict[tuple[str, int], BrokerSocket] = {}
        self._brokers: dict[int, tuple[str, int]] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self.topic_ids: dict[str, UUID] = {}
        """Of every topic that was asked for, as last seen."""
        self.cluster_id: str | None = None

    def __enter__(self) -> ClusterClient:
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
        answer = self._retry("metadata", lambda: self._any_broker().ask(request, MetadataResponse))
        return self._learn(answer)

    def topics(self, names: Iterable[str] | None = None, pattern: str | None = None) -> dict[str, list[int]]:
        """The partitions of the topics with these names, or whose whole name matches the pattern; those that exist."""
        state = self.metadata(names)
        matching = re.compile(pattern) if pattern is not None else None
        return {
            name: sorted(topic.partitions)
            for name, topic in sorted(state.topics.items())
            if matching is None or matching.fullmatch(name)
        }

    def leader_address(self, tp: TopicPartition) -> tuple[int, str, int]:
        """(broker id, host, port) of a partition's leader. UnknownTopicError when there is no such partition."""

        def find() -> tuple[int, str, int]:
            leader = self._leader(tp)
            return leader, *self._brokers[leader]

        return self._retry(f"the leader of {tp}", find)

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
                raise ClientError(f"Topic {name} cannot be read: {_name(topic.error_code)}.")
            partitions = {p.partition_index: PartitionState(p.leader_id, p.leader_epoch) for p in topic.partitions}
            topic_id = topic.topic_id if topic.topic_id != ZERO_UUID else None
            topics[name] = TopicState(topic_id, partitions)
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

    # --- offsets ---

    def list_offsets(self, specs: Mapping[TopicPartition, int], isolation: int = 0) -> dict[TopicPartition, int | None]:
        """The offset for a timestamp, or for EARLIEST (-2) and LATEST (-1); None where no record is that new.

        With isolation READ_COMMITTED the end is the last stable offset. Raises UnknownTopicError.
        """
        found: dict[TopicPartition, int | None] = {}

        def attempt() -> dict[TopicPartition, int | None]:
            missing = {tp: spec for tp, spec in specs.items() if tp not in found}
            by_leader: dict[int, list[TopicPartition]] = {}
            for tp in missing:
                by_leader.setdefault(self._leader(tp), []).append(tp)
            problem: RetriableError | None = None
            for leader, tps in by_leader.items():
                try:
                    found.update(self._list_offsets_of(leader, tps, missing, isolation))
                except RetriableError as e:
                    problem = e
                except OSError as e:
                    for tp in tps:
                        self._forget_leader(tp)
                    self._drop(leader)
                    problem = RetriableError(f"broker {leader}: {e}")
            if problem is not None:
                raise problem
            return found

        return self._retry("offsets", attempt) if specs else {}

    def offsets_for_times(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The first offset whose record is at least that new; None where there is none."""
        return self.list_offsets(timestamps)

    def earliest(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return _without_none(self.list_offsets(dict.fromkeys(tps, EARLIEST)))

    def latest(self, tps: Iterable[TopicPartition], isolation: int = 0) -> dict[TopicPartition, int]:
        return _without_none(self.list_offsets(dict.fromkeys(tps, LATEST), isolation))

    def _list_offsets_of(
        self, leader: int, tps: list[TopicPartition], specs: Mapping[TopicPartition, int], isolation: int
    ) -> dict[TopicPartition, int | None]:
        by_topic: dict[str, list[ListOffsetsPartition]] = {}
        for tp in tps:
            asked = ListOffsetsPartition(partition_index=tp.partition, timestamp=specs[tp])
            by_topic.setdefault(tp.topic, []).append(asked)
        topics = [ListOffsetsTopic(name=name, partitions=parts) for name, parts in by_topic.items()]
        request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=topics)
        answer = self._broker(leader).ask(request, ListOffsetsResponse)
        found: dict[TopicPartition, int | None] = {}
        problem: str | None = None
        for topic in answer.topics:
            for part in topic.partitions:
                tp = TopicPartition(topic.name, part.partition_index)
                if part.error_code == ErrorCode.NONE:
                    found[tp] = part.offset if part.offset >= 0 else None
                else:
                    problem = self._check(tp, part.error_code, f"the offsets of {tp}")
        if problem is not None:
            raise RetriableError(problem)
        return found

    # --- reading ---

    def start_fetch(
        self,
        tp: TopicPartition,
        offset: int,
        *,
        max_bytes: int,
        isolation: int = 0,
        max_wait_ms: int | None = None,
        leader: int | None = None,
    ) -> PendingFetch:
        """Sends a Fetch of one partition without a session, to be finished with `finish_fetch`. Raises OSError."""
        leader = self._leader(tp) if leader is None else leader
        wait_ms = self.fetch_max_wait_ms if max_wait_ms is None else max_wait_ms
        part = FetchPartition(partition=tp.partition, fetch_offset=offset, partition_max_bytes=max_bytes)
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=self.fetch_min_bytes,
            max_bytes=max(self.fetch_max_bytes, max_bytes),
            isolation_level=isolation,
            topics=[FetchTopic(topic=tp.topic, partitions=[part])],
        )
        connection = self._broker(leader)
        connection.send(request, connection.version(FetchRequest, FETCH_BY_NAME))
        return PendingFetch(connection, tp, offset, leader, wait_ms)

    def finish_fetch(self, pending: PendingFetch) -> PartitionData:
        """The answer. Raises OSError, or what `fetch` raises."""
        answer = pending.connection.receive(extra_ms=pending.max_wait_ms)
        assert isinstance(answer, FetchResponse)
        if answer.error_code != ErrorCode.NONE:
            raise RetriableError(f"Fetch: {_name(answer.error_code)}")
        for topic in answer.responses:
            for part in topic.partitions:
                if topic.topic == pending.tp.topic and part.partition_index == pending.tp.partition:
                    return self._checked(pending, part)
        raise RetriableError(f"broker {pending.leader} did not answer for {pending.tp}")

    def abandon_fetch(self, pending: PendingFetch) -> None:
        """Nobody will read the answer: the connection cannot be used any more."""
        pending.connection.close()

    def fetch(self, tp: TopicPartition, offset: int, *, max_bytes: int, isolation: int = 0) -> PartitionData:
        """One Fetch, tried again while the leader moves. OffsetOutOfRangeError, UnknownTopicError, ClientError."""

        def attempt() -> PartitionData:
            try:
                return self.finish_fetch(self.start_fetch(tp, offset, max_bytes=max_bytes, isolation=isolation))
            except OSError:
                self.lost_leader(tp)
                raise

        return self._retry(f"records of {tp} at offset {offset}", attempt)

    def lost_leader(self, tp: TopicPartition) -> None:
        """The connection to a partition's leader is gone: ask anew who leads it."""
        if (leader := self._leaders.get(tp)) is not None:
            self._drop(leader)
        self._forget_leader(tp)

    def _checked(self, pending: PendingFetch, part: PartitionData) -> PartitionData:
        if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise OffsetOutOfRangeError(f"{pending.tp} has no offset {pending.offset}.")
        if part.error_code != ErrorCode.NONE:
            raise RetriableError(self._check(pending.tp, part.error_code, f"records of {pending.tp}"))
        return part

    def _check(self, tp: TopicPartition, code: int, what: str) -> str:
        """What to say before another try. Raises for errors that stay."""
        self._forget_leader(tp)
        known = _code(code)
        if known is None or not known.is_retriable:
            raise ClientError(f"The broker refused {what}: {_name(code)}.")
        return f"{tp}: {_name(code)}"

    # --- log directories and groups ---

    def log_dirs(self, tp: TopicPartition) -> list[str]:
        """The log directories of the leader that hold the partition."""
        request = DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic=tp.topic, partitions=[tp.partition])])

        def attempt() -> list[str]:
            answer = self._broker(self._leader(tp)).ask(request, DescribeLogDirsResponse)
            return [
                result.log_dir
                for result in answer.results
                for topic in result.topics
                for part in topic.partitions
                if topic.name == tp.topic and part.partition_index == tp.partition and not part.is_future_key
            ]

        return self._retry(f"the log directories of {tp}", attempt)

    def commit_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int], *, timeout_ms: int | None = None
    ) -> None:
        """Stores offsets for a group without members. ClientError when the group has members or refuses."""
        by_topic: dict[str, list[OffsetCommitRequestPartition]] = {}
        for tp, offset in sorted(offsets.items()):
            part = OffsetCommitRequestPartition(
                partition_index=tp.partition, committed_offset=offset, committed_metadata=""
            )
            by_topic.setdefault(tp.topic, []).append(part)
        topics = [OffsetCommitRequestTopic(name=name, partitions=parts) for name, parts in by_topic.items()]
        request = OffsetCommitRequest(group_id=group, topics=topics)

        def attempt() -> None:
            answer = self._connection(self._coordinator(group)).ask(request, OffsetCommitResponse)
            codes = {part.error_code for topic in answer.topics for part in topic.partitions} - {ErrorCode.NONE}
            for code in sorted(codes):
                known = _code(code)
                if known is None or not known.is_retriable:
                    raise ClientError(f"Offsets of group {group} cannot be committed: {_name(code)}.")
                raise RetriableError(_name(code))

        if offsets:
            self._retry(f"a commit of offsets for group {group}", attempt, timeout_ms)

    def _coordinator(self, group: str) -> tuple[str, int]:
        broker = self._any_broker()
        batched = broker.version(FindCoordinatorRequest) >= 4
        request = FindCoordinatorRequest(key="" if batched else group, coordinator_keys=[group] if batched else ())
        answer = broker.ask(request, FindCoordinatorResponse)
        found = answer.coordinators[0] if batched else answer
        if found.error_code != ErrorCode.NONE:
            raise RetriableError(f"the coordinator of group {group}: {_name(found.error_code)}")
        return found.host, found.port

    # --- connections ---

    def _retry(self, what: str, attempt: Callable[[], T], timeout_ms: int | None = None) -> T:
        """Tries until the API timeout is over; errors that stay leave at once."""
        timeout_ms = self._api_timeout_ms if timeout_ms is None else timeout_ms
        deadline = self._clock.monotonic() + timeout_ms / 1000
        while True:
            try:
                return attempt()
            except (RetriableError, OSError) as e:
                if self._clock.monotonic() >= deadline:
                    raise ClientError(f"The cluster did not give {what} within {timeout_ms} ms: {e}.") from e
                if isinstance(e, OSError):
                    self._close_broken()
                self._sleep(self._backoff_ms / 1000)

    def _any_broker(self) -> BrokerSocket:
        """A connection that is there, else the first address that answers."""
        problems: list[str] = []
        for connection in self._sockets.values():
            if not connection.is_closed and connection.in_flight == 0:
                return connection
        for address in dict.fromkeys((*self._brokers.values(), *self._bootstrap)):
            try:
                return self._connection(address)
            except OSError as e:
                problems.append(f"{address[0]}:{address[1]}: {e}")
        raise ConnectionError("no broker can be reached: " + "; ".join(problems))

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


@dataclass(frozen=True, slots=True)
class PendingFetch:
    """A Fetch that was sent and not answered yet."""

    connection: BrokerSocket
    tp: TopicPartition
    offset: int
    leader: int
    max_wait_ms: int


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


def _code(code: int) -> ErrorCode | None:
    try:
        return ErrorCode(code)
    except ValueError:
        return None


def _name(code: int) -> str:
    known = _code(code)
    return known.name if known is not None else f"error {code}"


def _without_none(found: Mapping[TopicPartition, int | None]) -> dict[TopicPartition, int]:
    missing = [tp for tp, offset in found.items() if offset is None]
    if missing:
        raise ClientError(f"The broker gave no offset for {missing[0]}.")
    return {tp: offset for tp, offset in found.items() if offset is not None}
