"""ClusterClient: what the Spark part asks of a cluster, klamm's or Apache Kafka's, over blocking sockets.

Leaders that move, brokers that go and errors that pass are met here: with fresh metadata and another try, until
`default.api.timeout.ms` is over. What is left is a `ClientError` that says what was asked and what came last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final
from uuid import UUID

from klamm.errors import ErrorCode
from klamm.frozen import dataclass
from klamm.model import ZERO_UUID, TopicPartition
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
from klamm.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from klamm.spark.client_base import FIRST_CONTACT_MS as FIRST_CONTACT_MS
from klamm.spark.client_base import BrokerClient, error_code, error_name
from klamm.spark.client_base import ClientError as ClientError
from klamm.spark.client_base import ClusterState as ClusterState
from klamm.spark.client_base import OffsetOutOfRangeError as OffsetOutOfRangeError
from klamm.spark.client_base import RetriableError as RetriableError
from klamm.spark.client_base import TopicIdError as TopicIdError
from klamm.spark.client_base import UnknownTopicError as UnknownTopicError
from klamm.spark.client_base import UnreachableError as UnreachableError
from klamm.spark.client_base import parse_addresses as parse_addresses
from klamm.spark.client_connection import BrokerSocket, Room
from klamm.spark.source.read_options import EARLIEST, LATEST

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
FETCH_BY_NAME, FETCH_BY_ID = 12, 13
_WRONG_ID: Final = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID)


class ClusterClient(BrokerClient):
    """Not for several threads. `client_options` are Kafka's client configurations without the `kafka.` prefix."""

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

        return self.retry("offsets", attempt) if specs else {}

    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], isolation: int = 0
    ) -> dict[TopicPartition, int | None]:
        """The first offset whose record is at least that new; None where there is none.

        With isolation READ_COMMITTED records from the last stable offset on are not there.
        """
        return self.list_offsets(timestamps, isolation)

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
        topic_id: UUID | None = None,
    ) -> PendingFetch:
        """Sends a Fetch of one partition without a session, to be finished with `finish_fetch`. Raises OSError.

        With `topic_id` no other topic of that name is read, where the broker has Fetch by id (Kafka 3.1 and later).
        """
        leader = self._leader(tp) if leader is None else leader
        wait_ms = self.fetch_max_wait_ms if max_wait_ms is None else max_wait_ms
        part = FetchPartition(partition=tp.partition, fetch_offset=offset, partition_max_bytes=max_bytes)
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=self.fetch_min_bytes,
            max_bytes=self.fetch_max_bytes or max_bytes,
            isolation_level=isolation,
            topics=[FetchTopic(topic=tp.topic, topic_id=topic_id or ZERO_UUID, partitions=[part])],
        )
        connection = self._broker(leader)
        version = connection.version(FetchRequest, FETCH_BY_NAME if topic_id is None else FETCH_BY_ID)
        connection.send(request, version)
        return PendingFetch(connection, tp, offset, leader, wait_ms, topic_id if version >= FETCH_BY_ID else None)

    def finish_fetch(self, pending: PendingFetch, room: Room | None = None) -> PartitionData:
        """The answer, read into `room` if it is given. Raises OSError, or what `fetch` raises."""
        answer = pending.connection.receive(extra_ms=pending.max_wait_ms, room=room)
        assert isinstance(answer, FetchResponse)
        if answer.error_code != ErrorCode.NONE:
            raise RetriableError(f"Fetch: {error_name(answer.error_code)}")
        for topic in answer.responses:
            for part in topic.partitions:
                if pending.is_of(topic) and part.partition_index == pending.tp.partition:
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

        return self.retry(f"records of {tp} at offset {offset}", attempt)

    def lost_leader(self, tp: TopicPartition) -> None:
        """The connection to a partition's leader is gone: ask anew who leads it."""
        if (leader := self._leaders.get(tp)) is not None:
            self._drop(leader)
        self._forget_leader(tp)

    def _checked(self, pending: PendingFetch, part: PartitionData) -> PartitionData:
        if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise OffsetOutOfRangeError(f"{pending.tp} has no offset {pending.offset}.")
        if part.error_code in _WRONG_ID:
            raise TopicIdError(self._check(pending.tp, part.error_code, f"records of {pending.tp}"))
        if part.error_code != ErrorCode.NONE:
            raise RetriableError(self._check(pending.tp, part.error_code, f"records of {pending.tp}"))
        return part

    def _check(self, tp: TopicPartition, code: int, what: str) -> str:
        """What to say before another try. Raises for errors that stay."""
        self._forget_leader(tp)
        known = error_code(code)
        if known is None or not known.is_retriable:
            raise ClientError(f"The broker refused {what}: {error_name(code)}.")
        return f"{tp}: {error_name(code)}"

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

        return self.retry(f"the log directories of {tp}", attempt)

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
                known = error_code(code)
                if known is None or not known.is_retriable:
                    raise ClientError(f"Offsets of group {group} cannot be committed: {error_name(code)}.")
                raise RetriableError(error_name(code))

        if offsets:
            self.retry(f"a commit of offsets for group {group}", attempt, timeout_ms)

    def _coordinator(self, group: str) -> tuple[str, int]:
        broker = self._any_broker()
        batched = broker.version(FindCoordinatorRequest) >= 4
        request = FindCoordinatorRequest(key="" if batched else group, coordinator_keys=[group] if batched else ())
        answer = broker.ask(request, FindCoordinatorResponse)
        found = answer.coordinators[0] if batched else answer
        if found.error_code != ErrorCode.NONE:
            raise RetriableError(f"the coordinator of group {group}: {error_name(found.error_code)}")
        return found.host, found.port


@dataclass(frozen=True, slots=True)
class PendingFetch:
    """A Fetch that was sent and not answered yet."""

    connection: BrokerSocket
    tp: TopicPartition
    offset: int
    leader: int
    max_wait_ms: int
    topic_id: UUID | None = None
    """None when the topic was named."""

    def is_of(self, topic: FetchableTopicResponse) -> bool:
        return topic.topic == self.tp.topic if self.topic_id is None else topic.topic_id == self.topic_id


def _without_none(found: Mapping[TopicPartition, int | None]) -> dict[TopicPartition, int]:
    missing = [tp for tp, offset in found.items() if offset is None]
    if missing:
        raise ClientError(f"The broker gave no offset for {missing[0]}.")
    return {tp: offset for tp, offset in found.items() if offset is not None}
