"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords, InitProducerId, DescribeProducers, DescribeLogDirs."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from klamm.apis import (
    delete_records,
    describe_log_dirs,
    describe_producers,
    fetch,
    init_producer_id,
    list_offsets,
    offset_for_leader_epoch,
    produce,
)
from klamm.controller import events
from klamm.controller.replies import ProducerIdsBlock
from klamm.errors import ErrorCode
from klamm.log import append_as_leader
from klamm.log.log_config import LogConfig
from klamm.model import TopicPartition
from klamm.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from klamm.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from klamm.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest
from klamm.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from klamm.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.support.one_broker import START_MS, OneBroker, batch
from tests.unit.apis.test_fetch import append
from tests.unit.apis.test_fetch import request as fetch_request
from tests.unit.apis.test_produce import request as produce_request

TP = TopicPartition("t", 0)
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5


class TestListOffsets:
    def ask(
        self,
        one: OneBroker,
        timestamp: int,
        version: int = 9,
        *,
        replica_id: int = -1,
        isolation: int = 0,
        **fields: int,
    ) -> ListOffsetsPartitionResponse:
        partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp, **fields)
        request = ListOffsetsRequest(
            replica_id=replica_id,
            isolation_level=isolation,
            topics=[ListOffsetsTopic(name="t", partitions=[partition])],
        )
        return one.ask(list_offsets.API, request, version).topics[0].partitions[0]

    def fill(self, one: OneBroker) -> None:
        one.lead("t", leader_epoch=2)
        for i in range(3):
            append(one, b"a", b"b", timestamp=START_MS + 1000 * i)

    @pytest.mark.parametrize("version", range(1, 10))
    def test_the_ends_and_by_time(self, one: OneBroker, version: int) -> None:
        self.fill(one)
        epoch = 2 if version >= 4 else -1
        latest = self.ask(one, LATEST, version)
        assert (latest.error_code, latest.offset, latest.timestamp, latest.leader_epoch) == (0, 6, -1, epoch)
        earliest = self.ask(one, EARLIEST, version)
        assert (earliest.offset, earliest.timestamp, earliest.leader_epoch) == (0, -1, epoch)
        found = self.ask(one, START_MS + 1, version)
        assert (found.offset, found.timestamp, found.leader_epoch) == (1, START_MS + 1, epoch)
        between = self.ask(one, START_MS + 2, version)
        assert (between.offset, between.timestamp) == (2, START_MS + 1000)
        beyond = self.ask(one, START_MS + 9999, version)
        assert (beyond.error_code, beyond.offset, beyond.timestamp) == (0, -1, -1)

    def test_the_newest_timestamp(self, one: OneBroker) -> None:
        one.lead("t")
        empty = self.ask(one, MAX_TIMESTAMP)
        assert (empty.offset, empty.timestamp) == (-1, -1)
        for timestamp in (START_MS, START_MS + 5000, START_MS + 10):
            append(one, b"a", timestamp=timestamp)
        found = self.ask(one, MAX_TIMESTAMP)
        assert (found.offset, found.timestamp) == (1, START_MS + 5000)

    def test_without_remote_storage(self, one: OneBroker) -> None:
        self.fill(one)
        local = self.ask(one, EARLIEST_LOCAL)
        assert (local.error_code, local.offset) == (0, 0)
        tiered = self.ask(one, LATEST_TIERED)
        assert (tiered.error_code, tiered.offset, tiered.leader_epoch) == (0, -1, -1)

    @pytest.mark.parametrize(
        ("timestamp", "version"),
        [(MAX_TIMESTAMP, 0), (-6, 0), (MAX_TIMESTAMP, 6), (EARLIEST_LOCAL, 7), (LATEST_TIERED, 8), (-6, 9)],
    )
    def test_timestamps_that_the_version_does_not_have(self, one: OneBroker, timestamp: int, version: int) -> None:
        self.fill(one)
        assert self.ask(one, timestamp, version).error_code == ErrorCode.UNSUPPORTED_VERSION

    def test_v0_lists_offsets(self, one: OneBroker) -> None:
        one.topic_configs["t"] = LogConfig(segment_bytes=100)
        self.fill(one)
        assert self.ask(one, LATEST, 0, max_num_offsets=1).old_style_offsets == [6]
        assert self.ask(one, LATEST, 0, max_num_offsets=9).old_style_offsets == [6, 4, 2, 0]
        assert self.ask(one, EARLIEST, 0, max_num_offsets=9).old_style_offsets == [0]
        assert self.ask(one, START_MS + 1001, 0, max_num_offsets=9).old_style_offsets == [2, 0]

    def test_errors(self, one: OneBroker) -> None:
        assert self.ask(one, LATEST).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        self.fill(one)
        assert self.ask(one, LATEST, current_leader_epoch=1).error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert self.ask(one, LATEST, current_leader_epoch=3).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        partition = ListOffsetsPartition(partition_index=0, timestamp=LATEST)
        topics = [ListOffsetsTopic(name="t", partitions=[partition, partition])]
        response = one.ask(list_offsets.API, ListOffsetsRequest(replica_id=-1, topics=topics), 9)
        assert [p.error_code for p in response.topics[0].partitions] == [ErrorCode.INVALID_REQUEST] * 2

    def test_followers_see_the_end_and_consumers_what_is_committed(self, one: OneBroker) -> None:
        one.lead("t", replicas=(1, 2), isr=(1, 2))
        one.ask(produce.API, produce_request(batch(b"a", b"b"), acks=1), 9)
        assert self.ask(one, LATEST).offset == 0 and self.ask(one, LATEST, replica_id=2).offset == 2
        assert self.ask(one, START_MS).offset == -1
        one.ask(fetch.API, fetch_request({0: 2}, replica_id=2), 11)
        assert self.ask(one, LATEST).offset == 2
        log = one.broker.replicas.leader_log(TP)
        assert not isinstance(log, ErrorCode)
        txn = batch(b"t", producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True)
        append_as_leader(log, txn, 0)
        one.ask(fetch.API, fetch_request({0: 3}, replica_id=2), 11)
        assert self.ask(one, LATEST).offset == 3 and self.ask(one, LATEST, isolation=1).offset == 2

    def test_right_after_an_election_the_end_is_not_yet_known(self, one: OneBroker) -> None:
        one.lead("t", replicas=(1, 2), isr=(1, 2))
        one.ask(produce.API, produce_request(batch(b"a", b"b"), acks=1), 9)
        one.leader_and_isr({"t": [0]}, leader_epoch=1, replicas=(1, 2), isr=(1, 2))
        assert self.ask(one, LATEST, 5).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        assert self.ask(one, LATEST, 4).error_code == ErrorCode.LEADER_NOT_AVAILABLE
        assert self.ask(one, START_MS, 5).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        assert self.ask(one, EARLIEST, 5).error_code == 0
        assert self.ask(one, LATEST, 5, replica_id=2).offset == 2
        one.ask(fetch.API, fetch_request({0: 2}, replica_id=2), 11)
        assert self.ask(one, LATEST, 5).offset == 2


class TestOffsetForLeaderEpoch:
    def ask(
        self,
        one: OneBroker,
        epoch: int,
        version: int = 4,
        *,
        topic: str = "t",
        current: int = -1,
        replica_id: int = 2,
    ) -> EpochEndOffset:
        partition = OffsetForLeaderPartition(partition=0, leader_epoch=epoch, current_leader_epoch=current)
        request = OffsetForLeaderEpochRequest(
            replica_id=replica_id, topics=[OffsetForLeaderTopic(topic=topic, partitions=[partition])]
        )
        return one.ask(offset_for_leader_epoch.API, request, version).topics[0].partitions[0]

    @pytest.mark.parametrize("version", range(0, 5))
    def test_where_epochs_end(self, one: OneBroker, version: int) -> None:
        one.lead("t", leader_epoch=1)
        append(one, b"a", b"b")
        one.lead("t", leader_epoch=4)
        append(one, b"c")
        expected = {1: (1, 2), 2: (1, 2), 4: (4, 3), 5: (-1, -1)}
        for epoch, (found, end) in expected.items():
            answer = self.ask(one, epoch, version)
            assert (answer.error_code, answer.end_offset) == (0, end)
            assert answer.leader_epoch == (found if version >= 1 else -1)

    def test_errors(self, one: OneBroker) -> None:
        one.lead("t", leader_epoch=1)
        assert self.ask(one, 1, topic="u").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert self.ask(one, 1, current=0).error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert self.ask(one, 1, current=2).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        one.leader_and_isr({"t": [0]}, leader=2, leader_epoch=2, replicas=(1, 2))
        assert self.ask(one, 1).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    def test_the_end_of_the_log_for_an_election(self, one: OneBroker) -> None:
        """The epoch is that of the last record. A broker that may still append in an older epoch does not answer."""

        def log_end(current: int) -> tuple[int, int, int]:
            found = self.ask(one, 2**31 - 1, current=current, replica_id=-2)
            return found.error_code, found.leader_epoch, found.end_offset

        assert log_end(0) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)
        one.lead("t", leader_epoch=1)
        assert log_end(1) == (0, 1, 0)
        append(one, b"a", b"b")
        one.lead("t", leader_epoch=4)
        assert log_end(4) == (0, 1, 2)
        assert log_end(5) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)
        one.leader_and_isr({"t": [0]}, leader=-1, leader_epoch=5, replicas=(1, 2))
        assert log_end(5) == (0, 1, 2)


class TestDeleteRecords:
    def request(self, offset: int, *, topic: str = "t", timeout_ms: int = 1000) -> DeleteRecordsRequest:
        partition = DeleteRecordsPartition(partition_index=0, offset=offset)
        return DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=topic, partitions=[partition])], timeout_ms=timeout_ms
        )

    @pytest.mark.parametrize("version", range(0, 3))
    def test_the_log_starts_later(self, one: OneBroker, version: int) -> None:
        one.lead("t")
        append(one, b"a", b"b", b"c")
        for offset, low in ((2, 2), (-1, 3), (1, 3)):
            result = one.ask(delete_records.API, self.request(offset), version).topics[0].partitions[0]
            assert (result.error_code, result.low_watermark) == (0, low)
        data = one.ask(fetch.API, fetch_request(), 11).responses[0].partitions[0]
        assert data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    def test_errors(self, one: OneBroker) -> None:
        one.lead("t")
        append(one, b"a")
        one.topic_configs["c"] = LogConfig(cleanup_policy=frozenset({"compact"}))
        one.lead("c")
        one.lead("__consumer_offsets")
        for topic, offset, error in (
            ("t", 2, ErrorCode.OFFSET_OUT_OF_RANGE),
            ("t", -2, ErrorCode.OFFSET_OUT_OF_RANGE),
            ("u", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("c", 0, ErrorCode.POLICY_VIOLATION),
            ("__consumer_offsets", 0, ErrorCode.INVALID_TOPIC_EXCEPTION),
            ("__transaction_state", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ):
            result = one.ask(delete_records.API, self.request(offset, topic=topic), 2).topics[0].partitions[0]
            assert (result.error_code, result.low_watermark) == (error, -1)

    def test_it_waits_for_the_followers(self, one: OneBroker) -> None:
        one.lead("t", replicas=(1, 2), isr=(1, 2))
        one.update_metadata({}, brokers=(1, 2))
        one.ask(produce.API, produce_request(batch(b"a", b"b"), acks=1), 9)
        one.ask(fetch.API, fetch_request({0: 2}, replica_id=2, log_start_offset=0), 11)
        waiting = one.dispatch(delete_records.API, self.request(1, timeout_ms=30_000), 2)
        assert isinstance(waiting, asyncio.Future)
        one.ask(fetch.API, fetch_request({0: 2}, replica_id=2, log_start_offset=1), 11)
        assert one.run(waiting).topics[0].partitions[0].low_watermark == 1
        late = one.ask(delete_records.API, self.request(2, timeout_ms=1), 2)
        assert late.topics[0].partitions[0].error_code == ErrorCode.REQUEST_TIMED_OUT

    def test_it_does_not_wait_for_brokers_that_are_not_alive(self, one: OneBroker) -> None:
        one.lead("t", replicas=(1, 2), isr=(1,))
        one.update_metadata({}, brokers=(1, 2))
        append(one, b"a", b"b")
        waiting = one.dispatch(delete_records.API, self.request(1, timeout_ms=30_000), 2)
        assert isinstance(waiting, asyncio.Future)
        one.update_metadata({}, brokers=(1,))
        assert one.run(waiting).topics[0].partitions[0].low_watermark == 1
        at_once = one.ask(delete_records.API, self.request(2), 2).topics[0].partitions[0]
        assert (at_once.error_code, at_once.low_watermark) == (0, 2)


class TestInitProducerId:
    def ask(self, one: OneBroker, version: int = 5, transactional_id: str | None = None) -> tuple[int, int, int]:
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=1000)
        response = one.ask(init_producer_id.API, request, version)
        return response.error_code, response.producer_id, response.producer_epoch

    @pytest.mark.parametrize("version", range(0, 6))
    def test_ids_are_never_given_twice(self, one: OneBroker, version: int) -> None:
        one.controller.script = one.create_as_asked
        answers = [self.ask(one, version) for _ in range(5)]
        assert [error for error, _, _ in answers] == [0] * 5 and {epoch for _, _, epoch in answers} == {0}
        assert [producer_id for _, producer_id, _ in answers] == [3, 4, 5, 6, 7]
        assert sum(isinstance(event, events.AllocateProducerIds) for event in one.controller.submitted) == 2

    def test_many_at_once_share_the_blocks(self, one: OneBroker) -> None:
        one.controller.script = one.create_as_asked
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        waiting = [one.dispatch(init_producer_id.API, request, 5) for _ in range(7)]
        answers = [one.run(each) for each in waiting]
        assert len({answer.producer_id for answer in answers}) == 7
        assert len(one.controller.submitted) == 3

    def test_without_a_controller_the_client_comes_again(self, one: OneBroker) -> None:
        assert self.ask(one)[0] == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        one.controller.script = one.create_as_asked
        assert self.ask(one)[0] == 0

    def test_a_controller_that_does_not_answer(self, one: OneBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        """The client comes again; the controller is asked once, and its late block is used."""
        manager = one.broker.producer_ids
        asked: list[asyncio.Future[ProducerIdsBlock]] = []

        def allocate() -> asyncio.Future[ProducerIdsBlock]:
            asked.append(one.loop.create_future())
            return asked[-1]

        monkeypatch.setattr(manager, "_allocate", allocate)
        monkeypatch.setattr(manager, "MAX_WAIT_S", 0.001)
        for _ in range(3):
            assert self.ask(one) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1, -1)
        assert len(asked) == 1
        asked[0].set_result(ProducerIdsBlock(ErrorCode.NONE, 50, 3))
        one.spin()
        assert [self.ask(one)[1] for _ in range(3)] == [50, 51, 52]
        assert len(asked) == 1

    @pytest.mark.parametrize("version", range(3, 6))
    @pytest.mark.parametrize("transactional_id", [None, "tx", ""])
    @pytest.mark.parametrize(("producer_id", "epoch"), [(5, -1), (-1, 5)])
    def test_half_an_identity_is_refused(
        self, one: OneBroker, version: int, transactional_id: str | None, producer_id: int, epoch: int
    ) -> None:
        one.controller.script = one.create_as_asked
        request = InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=1, producer_id=producer_id, producer_epoch=epoch
        )
        response = one.ask(init_producer_id.API, request, version)
        assert (response.error_code, response.producer_id) == (ErrorCode.INVALID_REQUEST, -1)

    def test_an_empty_transactional_id_is_refused(self, one: OneBroker) -> None:
        assert self.ask(one, transactional_id="")[0] == ErrorCode.INVALID_REQUEST


def test_describe_producers(one: OneBroker) -> None:
    one.lead("t")
    append(one, b"a", b"b", producer_id=7, producer_epoch=1, base_sequence=0)
    request = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0, 9])])
    known, unknown = one.ask(describe_producers.API, request, 0).topics[0].partitions
    producer = known.active_producers[0]
    assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (7, 1, 1)
    assert producer.last_timestamp == START_MS + 1 and producer.current_txn_start_offset == -1
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_followers_describe_producers(one: OneBroker) -> None:
    one.lead("t")
    append(one, b"a", producer_id=7, producer_epoch=1, base_sequence=0)
    one.lead("t", leader=2, leader_epoch=5, isr=[1, 2], replicas=[1, 2])
    request = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0])])
    (answer,) = one.ask(describe_producers.API, request, 0).topics[0].partitions
    assert (answer.error_code, [p.producer_id for p in answer.active_producers]) == (0, [7])


@pytest.mark.parametrize("name", ["", "..", "no such/topic", "x" * 250])
def test_producers_of_invalid_topics(one: OneBroker, name: str) -> None:
    request = DescribeProducersRequest(topics=[TopicRequest(name=name, partition_indexes=[0, 1])])
    answers = one.ask(describe_producers.API, request, 0).topics[0].partitions
    assert [a.error_code for a in answers] == [ErrorCode.INVALID_TOPIC_EXCEPTION] * 2


@pytest.mark.parametrize("version", range(0, 5))
def test_describe_log_dirs(one: OneBroker, version: int) -> None:
    one.lead("t", 2, topic_id=UUID(int=4))
    sent = batch(b"a" * 100)
    one.ask(produce.API, produce_request(sent), 9)
    result = one.ask(describe_log_dirs.API, DescribeLogDirsRequest(topics=None), version).results[0]
    assert result.log_dir == str(one.tmp_path / "logs") and result.error_code == 0
    sizes = {p.partition_index: p.partition_size for p in result.topics[0].partitions}
    assert sizes == {0: len(sent), 1: 0}
    assert (result.total_bytes > 0) is (version >= 4)
    asked = DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic="t", partitions=[1, 7])])
    some = one.ask(describe_log_dirs.API, asked, version).results[0]
    assert [p.partition_index for p in some.topics[0].partitions] == [1]
    one.broker.logs.failed(result.log_dir, OSError(5, "Input/output error"), "a test")
    failed = one.ask(describe_log_dirs.API, DescribeLogDirsRequest(topics=None), version).results[0]
    assert failed.error_code == ErrorCode.KAFKA_STORAGE_ERROR
