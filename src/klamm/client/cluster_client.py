"""ClusterClient: blocking calls to a cluster of klamm or Apache Kafka brokers.

If leaders move, brokers fail or errors are temporary, a call refreshes the metadata and retries until its deadline.
After that it raises `ClientError` with the request and the last problem.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Self, TypeVar
from uuid import UUID

from klamm.client.blocking_connection import Address, BlockingConnection, ReceiveBuffer
from klamm.client.client_errors import (
    ClientError,
    OffsetOutOfRangeError,
    RetriableError,
    TopicIdError,
    UnknownTopicError,
    error_name,
    is_retriable,
)
from klamm.client.cluster_metadata import ClusterMetadata, ClusterState, metadata_request
from klamm.client.connection_pool import ClientConfig, Connect, ConnectionPool, connect
from klamm.client.patience import MISSING_TOPIC, Deadline, Patience
from klamm.clock import Clock, SystemClock
from klamm.errors import ErrorCode
from klamm.lazy_dataclass import lazy_dataclass
from klamm.model import INTERNAL_TOPICS, ZERO_UUID, TopicPartition
from klamm.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from klamm.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from klamm.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from klamm.protocol.messages.metadata import MetadataResponse
from klamm.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)

T = TypeVar("T")
_log = logging.getLogger(__name__)

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
FETCH_BY_NAME, FETCH_BY_ID = 12, 13
GROUP, TRANSACTION = 0, 1
"""Kinds of coordinators."""
_EARLIEST, _LATEST = -2, -1
_BATCHED_COORDINATORS: Final = 4
_WRONG_ID: Final = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID)
_FIRST_LOGGED_ATTEMPT: Final = 16


class ClusterClient:
    """One cluster, for one thread. Knows the brokers and the leaders, and asks again when they have moved."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
        connect: Connect = connect,
    ) -> None:
        self.config = config
        self._pool = ConnectionPool(config, connect)
        self._metadata = ClusterMetadata()
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._deadline: Deadline | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._pool.close()

    @property
    def topic_ids(self) -> Mapping[str, UUID]:
        """The ids of all topics that were requested, as last seen."""
        return self._metadata.topic_ids

    @property
    def cluster_id(self) -> str | None:
        return self._metadata.cluster_id

    # --- patience ---

    @contextmanager
    def within(self, patience: Patience) -> Iterator[None]:
        """Give all calls in the block one deadline. Inside another such block the outer deadline holds."""
        if self._deadline is not None:
            yield
            return
        self._deadline = Deadline(patience, self._clock)
        try:
            yield
        finally:
            self._deadline = None

    def retry(self, what: str, attempt: Callable[[], T]) -> T:
        """Repeat the attempt until it succeeds or the deadline passes. Permanent errors are raised at once."""
        with self.within(self.config.patience):
            assert self._deadline is not None
            count = 0
            while True:
                try:
                    return attempt()
                except (RetriableError, OSError) as error:
                    pause_s = self._deadline.pause_s(what, error, was_reached=self._pool.was_reached)
                    if isinstance(error, OSError):
                        self._metadata.forget_leaders_without(self._pool.discard_closed())
                    count += 1
                    if count >= _FIRST_LOGGED_ATTEMPT and count.bit_count() == 1:
                        _log.warning("requesting %s failed (attempt %d): %s", what, count, error)
                self._sleep(pause_s)

    def _request_ms(self) -> float:
        return self.config.patience.request_ms if self._deadline is None else self._deadline.request_ms

    # --- brokers and leaders ---

    def metadata(self, topics: Iterable[str] | None) -> ClusterState:
        """Return the state of these topics, of all topics if None. Topics that do not exist are left out."""
        request = metadata_request(topics)
        return self._metadata.learn(self.retry("metadata", lambda: self.any_broker().ask(request, MetadataResponse)))

    def topics(self, names: Iterable[str] | None = None, pattern: str | None = None) -> dict[str, list[int]]:
        """Return the partitions of the named topics that exist, or of the topics whose name contains the pattern.

        As in Spark's connector, a pattern matches any part of a name, and never an internal topic.
        """
        state = self.metadata(names)
        matching = re.compile(pattern) if pattern is not None else None
        return {
            name: sorted(topic.partitions)
            for name, topic in sorted(state.topics.items())
            if matching is None or not (topic.is_internal or name in INTERNAL_TOPICS or not matching.search(name))
        }

    def partition_count(self, topic: str) -> int:
        """Return the number of partitions for a producer. Brokers that create topics on demand create this one.

        Returns 0 if brokers have reported for long enough that there is no such topic.
        """
        request = metadata_request([topic], creates=True)

        def attempt() -> int:
            state = self._metadata.learn(self.any_broker().ask(request, MetadataResponse))
            if topic not in state.topics:
                raise UnknownTopicError(f"{topic} does not exist.")
            if not state.topics[topic].partitions:
                raise RetriableError(f"{topic} has no partitions yet")
            return len(state.topics[topic].partitions)

        for _ in range(MISSING_TOPIC.tries):
            try:
                return self.retry(f"the partitions of {topic}", attempt)
            except UnknownTopicError:
                self._sleep(MISSING_TOPIC.every_ms / 1000)
        return 0

    def leader_address(self, tp: TopicPartition) -> tuple[int, str, int]:
        """Return (broker id, host, port) of a partition's leader. Raises UnknownTopicError."""

        def find() -> tuple[int, str, int]:
            leader = self._leader(tp)
            return leader, *self._metadata.address(leader)

        return self.retry(f"the leader of {tp}", find)

    def lost_leader(self, tp: TopicPartition) -> None:
        """Close the connection to a partition's leader and look the leader up again at the next request."""
        leader = self._metadata.known_leader(tp)
        if leader is not None:
            self._pool.drop(self._metadata.brokers[leader])
        self._metadata.forget_leader(tp)

    def _leader(self, tp: TopicPartition) -> int:
        """Return the leader; request metadata if it is unknown. Raises RetriableError if there is none."""
        leader = self._metadata.known_leader(tp)
        if leader is None:
            response = self.any_broker().ask(metadata_request([tp.topic]), MetadataResponse)
            leader = self._metadata.leader_in(tp, self._metadata.learn(response))
        return leader

    def any_broker(self) -> BlockingConnection:
        """Return a free connection to any broker. Raises OSError."""
        addresses: tuple[Address, ...] = (*self._metadata.brokers.values(), *self.config.bootstrap)
        return self._pool.get_any(addresses, self._request_ms)

    def _broker(self, broker_id: int) -> BlockingConnection:
        return self._pool.get(self._metadata.address(broker_id), self._request_ms())

    # --- offsets ---

    def list_offsets(self, specs: Mapping[TopicPartition, int], isolation: int = 0) -> dict[TopicPartition, int | None]:
        """Return the offset for each timestamp, or for earliest (-2) and latest (-1); None if no record is that new.

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
                except RetriableError as error:
                    problem = error
                except OSError as error:
                    for tp in tps:
                        self.lost_leader(tp)
                    problem = RetriableError(f"broker {leader}: {error}")
            if problem is not None:
                raise problem
            return found

        return self.retry("offsets", attempt) if specs else {}

    def earliest(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return _without_none(self.list_offsets(dict.fromkeys(tps, _EARLIEST)))

    def latest(self, tps: Iterable[TopicPartition], isolation: int = 0) -> dict[TopicPartition, int]:
        return _without_none(self.list_offsets(dict.fromkeys(tps, _LATEST), isolation))

    def _list_offsets_of(
        self, leader: int, tps: list[TopicPartition], specs: Mapping[TopicPartition, int], isolation: int
    ) -> dict[TopicPartition, int | None]:
        by_topic: dict[str, list[ListOffsetsPartition]] = {}
        for tp in tps:
            asked = ListOffsetsPartition(partition_index=tp.partition, timestamp=specs[tp])
            by_topic.setdefault(tp.topic, []).append(asked)
        topics = [ListOffsetsTopic(name=name, partitions=parts) for name, parts in by_topic.items()]
        request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=topics)
        response = self._broker(leader).ask(request, ListOffsetsResponse)
        found: dict[TopicPartition, int | None] = {}
        problem: str | None = None
        for topic in response.topics:
            for part in topic.partitions:
                tp = TopicPartition(topic.name, part.partition_index)
                if part.error_code == ErrorCode.NONE:
                    found[tp] = part.offset if part.offset >= 0 else None
                else:
                    problem = self._check(tp, part.error_code, f"the offsets of {tp}")
        if problem is not None:
            raise RetriableError(problem)
        return found

    # --- records ---

    def start_fetch(
        self,
        tp: TopicPartition,
        offset: int,
        *,
        max_bytes: int,
        isolation: int = 0,
        topic_id: UUID | None = None,
    ) -> PendingFetch:
        """Send a Fetch for one partition without a session; `finish_fetch` receives the response. Raises OSError.

        With `topic_id`, brokers that support Fetch by id (Kafka 3.1 and later) never read another topic of that name.
        """
        config = self.config
        leader = self._leader(tp)
        part = FetchPartition(partition=tp.partition, fetch_offset=offset, partition_max_bytes=max_bytes)
        request = FetchRequest(
            max_wait_ms=config.fetch_max_wait_ms,
            min_bytes=config.fetch_min_bytes,
            max_bytes=config.fetch_max_bytes or max_bytes,
            isolation_level=isolation,
            topics=[FetchTopic(topic=tp.topic, topic_id=topic_id or ZERO_UUID, partitions=[part])],
        )
        connection = self._broker(leader)
        version = connection.version(FetchRequest, FETCH_BY_NAME if topic_id is None else FETCH_BY_ID)
        connection.send(request, version)
        return PendingFetch(connection, tp, offset, leader, topic_id if version >= FETCH_BY_ID else None)

    def finish_fetch(self, pending: PendingFetch, buffer: ReceiveBuffer | None = None) -> PartitionData:
        """Return the response to `start_fetch`, read into `buffer` if given.

        Raises OSError, RetriableError, OffsetOutOfRangeError or ClientError.
        """
        response = pending.connection.receive(extra_ms=self.config.fetch_max_wait_ms, buffer=buffer)
        assert isinstance(response, FetchResponse)
        if response.error_code != ErrorCode.NONE:
            raise RetriableError(f"Fetch: {error_name(response.error_code)}")
        for topic in response.responses:
            for part in topic.partitions:
                if pending.is_of(topic) and part.partition_index == pending.tp.partition:
                    return self._checked(pending, part)
        raise RetriableError(f"broker {pending.leader} did not answer for {pending.tp}")

    def abandon_fetch(self, pending: PendingFetch) -> None:
        """Give up a Fetch whose response nobody will read. The connection cannot be used again."""
        pending.connection.close()

    def _checked(self, pending: PendingFetch, part: PartitionData) -> PartitionData:
        if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise OffsetOutOfRangeError(f"{pending.tp} has no offset {pending.offset}.")
        if part.error_code in _WRONG_ID:
            raise TopicIdError(self._check(pending.tp, part.error_code, f"records of {pending.tp}"))
        if part.error_code != ErrorCode.NONE:
            raise RetriableError(self._check(pending.tp, part.error_code, f"records of {pending.tp}"))
        return part

    def _check(self, tp: TopicPartition, code: int, what: str) -> str:
        """Forget the leader and return the reason for the next attempt. Raises ClientError for permanent errors."""
        self._metadata.forget_leader(tp)
        if not is_retriable(code):
            raise ClientError(f"The broker rejected the request for {what}: {error_name(code)}.")
        return f"{tp}: {error_name(code)}"

    # --- log directories and groups ---

    def log_dirs(self, tp: TopicPartition) -> list[str]:
        """Return the log directories of the leader that hold the partition."""
        request = DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic=tp.topic, partitions=[tp.partition])])

        def attempt() -> list[str]:
            response = self._broker(self._leader(tp)).ask(request, DescribeLogDirsResponse)
            return [
                result.log_dir
                for result in response.results
                for topic in result.topics
                for part in topic.partitions
                if topic.name == tp.topic and part.partition_index == tp.partition and not part.is_future_key
            ]

        return self.retry(f"the log directories of {tp}", attempt)

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets for a group without members. Raises ClientError if the group has members or rejects them."""
        by_topic: dict[str, list[OffsetCommitRequestPartition]] = {}
        for tp, offset in sorted(offsets.items()):
            part = OffsetCommitRequestPartition(
                partition_index=tp.partition, committed_offset=offset, committed_metadata=""
            )
            by_topic.setdefault(tp.topic, []).append(part)
        topics = [OffsetCommitRequestTopic(name=name, partitions=parts) for name, parts in by_topic.items()]
        request = OffsetCommitRequest(group_id=group, topics=topics)

        def attempt() -> None:
            connection = self._pool.get(self._coordinator(group), self._request_ms())
            response = connection.ask(request, OffsetCommitResponse)
            codes = {part.error_code for topic in response.topics for part in topic.partitions} - {ErrorCode.NONE}
            for code in sorted(codes):
                if not is_retriable(code):
                    raise ClientError(f"Offsets of group {group} cannot be committed: {error_name(code)}.")
                raise RetriableError(error_name(code))

        if offsets:
            self.retry(f"a commit of offsets for group {group}", attempt)

    def _coordinator(self, group: str) -> Address:
        return self.coordinators([group], GROUP)[group]

    # --- for clients that are built on this one ---

    def coordinators(self, keys: Iterable[str], key_type: int) -> dict[str, Address]:
        """Return the coordinator of each group or transactional id. One attempt. Raises RetriableError or OSError."""
        broker = self.any_broker()
        if broker.version(FindCoordinatorRequest) < _BATCHED_COORDINATORS:
            return {key: self._one_coordinator(broker, key, key_type) for key in keys}
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=list(keys))
        found: dict[str, Address] = {}
        for each in broker.ask(request, FindCoordinatorResponse).coordinators:
            _check_coordinator(each.key, each.error_code)
            found[each.key] = each.host, each.port
        return found

    def _one_coordinator(self, broker: BlockingConnection, key: str, key_type: int) -> Address:
        response = broker.ask(FindCoordinatorRequest(key=key, key_type=key_type), FindCoordinatorResponse)
        _check_coordinator(key, response.error_code)
        return response.host, response.port

    def connection(self, address: Address) -> BlockingConnection:
        """Return a free connection to a broker. Raises OSError."""
        return self._pool.get(address, self._request_ms())

    def known_leader(self, tp: TopicPartition) -> Address | None:
        """Return the address of the leader as last seen, without a request."""
        leader = self._metadata.known_leader(tp)
        return None if leader is None else self._metadata.brokers[leader]

    def addresses(self) -> dict[int, Address]:
        """Return the brokers of the last metadata, by id."""
        return dict(self._metadata.brokers)


@lazy_dataclass(frozen=True, slots=True)
class PendingFetch:
    """A Fetch that was sent and not answered yet."""

    connection: BlockingConnection
    tp: TopicPartition
    offset: int
    leader: int
    topic_id: UUID | None = None
    """None if the topic was named."""

    def is_of(self, topic: FetchableTopicResponse) -> bool:
        return topic.topic == self.tp.topic if self.topic_id is None else topic.topic_id == self.topic_id


def _check_coordinator(key: str, code: int) -> None:
    if code == ErrorCode.NONE:
        return
    problem = f"the coordinator of {key}: {error_name(code)}"
    raise RetriableError(problem) if is_retriable(code) else ClientError(f"The broker rejected {problem}.")


def _without_none(found: Mapping[TopicPartition, int | None]) -> dict[TopicPartition, int]:
    missing = [tp for tp, offset in found.items() if offset is None]
    if missing:
        raise ClientError(f"The broker returned no offset for {missing[0]}.")
    return {tp: offset for tp, offset in found.items() if offset is not None}
