from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest
from kafka.record.memory_records import MemoryRecords

from klamm.apis import fetch, produce
from klamm.clock import elapsed_ms
from klamm.errors import ErrorCode
from klamm.log import append_as_leader
from klamm.log.log_config import LogConfig
from klamm.metrics import Meter
from klamm.model import ZERO_UUID, TopicPartition
from klamm.network.request_context import RequestContext
from klamm.protocol.compression import CompressionType
from klamm.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from klamm.protocol.record_batch import batches, records
from tests.support.one_broker import OneBroker, batch
from tests.unit.apis.test_produce import conversion_histograms
from tests.unit.apis.test_produce import request as produce_request

ID = UUID(int=77)
TP = TopicPartition("t", 0)


def request(
    offsets: dict[int, int] | None = None, *, topic: str = "t", topic_id: UUID = ID, **fields: Any
) -> FetchRequest:
    partition_fields = {name: fields.pop(name) for name in list(fields) if name in FetchPartition.__annotations__}
    values: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, **fields}
    asked = {0: 0} if offsets is None else offsets
    return FetchRequest(
        topics=[
            FetchTopic(
                topic=topic,
                topic_id=topic_id,
                partitions=[
                    FetchPartition(
                        **{
                            "partition": index,
                            "fetch_offset": offset,
                            "partition_max_bytes": 1 << 20,
                            **partition_fields,
                        }
                    )
                    for index, offset in asked.items()
                ],
            )
        ]
        if asked
        else [],
        **values,
    )


def append(one: OneBroker, *values: bytes, index: int = 0, **options: Any) -> None:
    response = one.ask(produce.API, produce_request(batch(*values, **options), index=index), 9)
    assert response.responses[0].partition_responses[0].error_code == 0


def only(response: FetchResponse) -> PartitionData:
    assert len(response.responses) == 1 and len(response.responses[0].partitions) == 1
    return response.responses[0].partitions[0]


def values(data: PartitionData) -> list[bytes | None]:
    assert isinstance(data.records, bytes | bytearray | memoryview)
    return [record.value for each in batches(data.records) for record in records(each)]


@pytest.mark.parametrize("version", range(4, 18))
def test_records_come_back_in_every_version(one: OneBroker, version: int) -> None:
    one.lead("t", topic_id=ID)
    append(one, b"a", b"b")
    append(one, b"c")
    data = only(one.ask(fetch.API, request(), version))
    assert data.error_code == 0 and data.high_watermark == 3
    assert values(data) == [b"a", b"b", b"c"]


def test_an_offset_inside_a_batch_gives_the_whole_batch(one: OneBroker) -> None:
    one.lead("t", topic_id=ID)
    append(one, b"a", b"b")
    append(one, b"c")
    assert values(only(one.ask(fetch.API, request({0: 1}), 11))) == [b"a", b"b", b"c"]
    assert values(only(one.ask(fetch.API, request({0: 2}), 11))) == [b"c"]


def test_one_response_reads_at_most_fetch_max_bytes(one: OneBroker) -> None:
    """Reading is one step of the loop: 50 MiB would hold it for 26 ms (decision 0016)."""
    one.lead("t", topic_id=ID)
    mib = 1 << 20
    for number in range(20):
        append(one, bytes([number]) * (900 << 10))
    wanted: dict[str, Any] = {"partition_max_bytes": 50 * mib, "max_bytes": 50 * mib, "min_bytes": 50 * mib}
    found: list[bytes | None] = []
    while len(found) < 20:
        data = only(one.ask(fetch.API, request({0: len(found)}, **wanted), 11))
        assert data.records is not None
        assert 3 * mib < len(data.records) <= 4 * mib, "as much as fits, and no more"
        found += values(data)
    assert found == [bytes([number]) * (900 << 10) for number in range(20)]


def test_offsets_out_of_range(one: OneBroker) -> None:
    one.lead("t", topic_id=ID)
    append(one, b"a")
    assert only(one.ask(fetch.API, request({0: 1}), 11)).error_code == 0
    for offset in (2, -1):
        assert only(one.ask(fetch.API, request({0: offset}), 11)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_the_first_batch_comes_whole_and_the_limits_hold_for_the_rest(one: OneBroker) -> None:
    one.lead("t", 2, topic_id=ID)
    for index in (0, 1):
        for _ in range(3):
            append(one, b"x" * 1000, index=index)
    response = one.ask(fetch.API, request({0: 0, 1: 0}, max_bytes=10), 11)
    sizes = [len(data.records or b"") for data in response.responses[0].partitions]
    assert 1000 < sizes[0] < 2000 and sizes[1] == 0
    response = one.ask(fetch.API, request({0: 0, 1: 0}, partition_max_bytes=2200, max_bytes=2500), 11)
    assert [len(values(data)) for data in response.responses[0].partitions] == [2, 0]


@pytest.mark.parametrize("has_worker", [False, True])
@pytest.mark.parametrize("version", range(0, 4))
def test_records_are_converted_for_clients_that_know_no_batches(one: OneBroker, version: int, has_worker: bool) -> None:
    if has_worker:
        one.broker.replicas.record_checks.start(ThreadPoolExecutor(1))
    one.lead("t", 2, topic_id=ID)
    append(one, b"a" * 1000, b"b")
    append(one, b"c", b"d", compression=CompressionType.ZSTD)
    response = one.ask(fetch.API, request({0: 1, 1: 0}), version)
    data, empty = response.responses[0].partitions
    assert isinstance(data.records, bytes | memoryview)
    found = []
    sets = MemoryRecords(bytes(data.records))
    while (batch := sets.next_batch()) is not None:
        found += [(r.offset, r.value, r.timestamp is None) for r in batch]
    assert found == [(offset, value, version < 2) for offset, value in ((1, b"b"), (2, b"c"), (3, b"d"))]
    assert (data.error_code, empty.error_code, empty.high_watermark) == (0, 0, 0)
    assert not empty.records
    for stats in (one.broker.replicas.topic_stats.topic("t"), one.broker.replicas.topic_stats.all_topics):
        assert (stats.fetch_message_conversions.count, stats.produce_message_conversions.count) == (3, 0)
    assert conversion_histograms(one, "Fetch") == [1, 1]


def test_batches_of_zstd_are_served_to_old_clients(one: OneBroker) -> None:
    """The client may know zstd although its Fetch does not say so (rskafka)."""
    one.lead("t", topic_id=ID)
    append(one, b"a")
    append(one, b"b", compression=CompressionType.ZSTD)
    for version in (4, 9, 10):
        data = only(one.ask(fetch.API, request(), version))
        assert data.error_code == 0 and values(data) == [b"a", b"b"]


def test_a_topic_of_zstd_needs_a_version_that_knows_it(one: OneBroker) -> None:
    one.topic_configs["t"] = LogConfig(compression_type="zstd")
    one.lead("t", topic_id=ID)
    for version in (4, 9):
        data = only(one.ask(fetch.API, request(), version))
        assert data.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE and not data.records
    append(one, b"a")
    assert only(one.ask(fetch.API, request(), 9)).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert values(only(one.ask(fetch.API, request(), 10))) == [b"a"]


def test_a_failed_disk_is_reported_to_old_clients_as_a_lost_leader(one: OneBroker) -> None:
    one.lead("t", topic_id=ID)
    one.fail_log_dir(str(one.tmp_path / "logs"))
    for version, code in ((5, ErrorCode.NOT_LEADER_OR_FOLLOWER), (6, ErrorCode.KAFKA_STORAGE_ERROR)):
        assert only(one.ask(fetch.API, request(), version)).error_code == code


def test_errors_of_a_partition(one: OneBroker) -> None:
    one.lead("t", topic_id=ID, leader_epoch=3)
    assert only(one.ask(fetch.API, request(topic="u"), 12)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    fenced = only(one.ask(fetch.API, request(current_leader_epoch=2), 12))
    assert fenced.error_code == ErrorCode.FENCED_LEADER_EPOCH
    unknown = only(one.ask(fetch.API, request(current_leader_epoch=4), 12))
    assert unknown.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert only(one.ask(fetch.API, request(current_leader_epoch=3), 12)).error_code == 0


def test_topic_ids_that_are_unknown_or_of_another_topic(one: OneBroker) -> None:
    one.lead("t", topic_id=ID)
    assert only(one.ask(fetch.API, request(topic_id=UUID(int=9)), 13)).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert only(one.ask(fetch.API, request(topic_id=ZERO_UUID), 13)).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    one.update_metadata({"t": [0]}, topic_id=UUID(int=9))
    response = one.ask(fetch.API, request(topic_id=UUID(int=9)), 13)
    assert only(response).error_code == ErrorCode.INCONSISTENT_TOPIC_ID
    assert response.responses[0].topic_id == UUID(int=9)


def test_the_leader_is_named_to_a_client_that_asks_the_wrong_broker(one: OneBroker) -> None:
    one.leader_and_isr({"t": [0]}, leader=2, replicas=(1, 2), isr=(1, 2), topic_id=ID)
    one.update_metadata({"t": [0]}, leader=2, replicas=(1, 2), brokers=(1, 2), topic_id=ID)
    response = one.ask(fetch.API, request(replica_state=ReplicaState(replica_id=2, replica_epoch=1)), 16)
    data = only(response)
    assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert data.current_leader is not None and data.current_leader.leader_id == 2
    assert [node.node_id for node in response.node_endpoints] == [2]


class Budget:
    """So much may be held for clients that do not read; nothing is ever sent."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.reserved: list[int] = []

    def response_room(self) -> int:
        return max(0, self.room - sum(self.reserved))

    def reserve_response(self, size_bytes: int) -> None:
        self.reserved.append(size_bytes)


class TestUnreadResponses:
    """Each batch has a little more than 1000 bytes."""

    @pytest.fixture
    def budget(self, one: OneBroker, monkeypatch: pytest.MonkeyPatch) -> Budget:
        one.lead("t", topic_id=ID)
        budget = Budget(2500)
        for name in ("response_room", "reserve_response"):
            monkeypatch.setattr(RequestContext, name, lambda ctx, *args, name=name: getattr(budget, name)(*args))
        return budget

    def test_fetches_get_less_the_more_is_unread_and_one_batch_at_least(self, one: OneBroker, budget: Budget) -> None:
        for _ in range(4):
            append(one, b"x" * 1000)
        asked = request(max_wait_ms=30_000, min_bytes=4000)
        counts = [len(values(only(one.ask(fetch.API, asked, 11)))) for _ in range(3)]
        assert counts == [2, 1, 1]
        assert [size // 1000 for size in budget.reserved] == counts

    def test_one_append_that_completes_many_fetches(self, one: OneBroker, budget: Budget) -> None:
        waiting = [one.dispatch(fetch.API, request(max_wait_ms=30_000, min_bytes=2200), 11) for _ in range(3)]
        append(one, b"x" * 1000)
        append(one, b"x" * 1000)
        append(one, b"x" * 1000)
        assert [len(values(only(one.as_read(one.run(each), 11)))) for each in waiting] == [2, 1, 1]


class TestLongPoll:
    def test_it_waits_for_a_record(self, one: OneBroker) -> None:
        one.lead("t", topic_id=ID)
        waiting = one.dispatch(fetch.API, request(max_wait_ms=30_000), 11)
        assert isinstance(waiting, asyncio.Future)
        one.spin()
        assert not waiting.done()
        append(one, b"a")
        assert values(only(one.as_read(one.run(waiting), 11))) == [b"a"]
        assert one.broker.replicas.fetch_purgatory.size == 0

    def test_it_waits_for_enough_bytes(self, one: OneBroker) -> None:
        one.lead("t", topic_id=ID)
        append(one, b"x" * 100)
        waiting = one.dispatch(fetch.API, request(max_wait_ms=30_000, min_bytes=400), 11)
        append(one, b"x" * 100)
        one.spin()
        assert not waiting.done()
        append(one, b"x" * 100)
        assert len(values(only(one.as_read(one.run(waiting), 11)))) == 3

    def test_no_fetch_waits_for_more_than_fits(self, one: OneBroker) -> None:
        one.lead("t", topic_id=ID)
        append(one, b"x" * 100)
        result = one.dispatch(fetch.API, request(max_wait_ms=30_000, min_bytes=1 << 20, max_bytes=100), 11)
        assert not isinstance(result, asyncio.Future) and len(values(only(one.as_read(result, 11)))) == 1

    def test_its_time_runs_out(self, one: OneBroker) -> None:
        one.lead("t", topic_id=ID)
        data = only(one.ask(fetch.API, request(max_wait_ms=1), 11))
        assert data.error_code == 0 and values(data) == []

    def test_an_error_is_reported_at_once(self, one: OneBroker) -> None:
        one.lead("t", topic_id=ID)
        assert not isinstance(one.dispatch(fetch.API, request({0: 9}, max_wait_ms=30_000), 11), asyncio.Future)

    def test_leadership_that_is_lost_ends_the_wait(self, one: OneBroker) -> None:
        one.lead("t", topic_id=ID, replicas=(1, 2))
        old = one.dispatch(fetch.API, request(max_wait_ms=30_000), 10)
        with_epoch = one.dispatch(fetch.API, request(max_wait_ms=30_000, current_leader_epoch=0), 11)
        one.leader_and_isr({"t": [0]}, leader=2, leader_epoch=1, replicas=(1, 2), isr=(1, 2), topic_id=ID)
        assert only(one.run(old)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert only(one.run(with_epoch)).error_code == ErrorCode.FENCED_LEADER_EPOCH

    def test_a_deleted_topic_ends_the_wait(self, one: OneBroker) -> None:
        one.lead("t", topic_id=ID)
        waiting = one.dispatch(fetch.API, request(max_wait_ms=30_000), 11)
        one.update_metadata({"t": [0]}, leader=-2, topic_id=ID)
        one.stop_replica("t")
        assert only(one.run(waiting)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class TestFollowers:
    def lead(self, one: OneBroker) -> None:
        one.lead("t", topic_id=ID, replicas=(1, 2), isr=(1, 2))

    def test_a_followers_fetch_moves_the_high_watermark(self, one: OneBroker) -> None:
        self.lead(one)
        one.ask(produce.API, produce_request(batch(b"a", b"b"), acks=1), 9)
        assert values(only(one.ask(fetch.API, request(), 11))) == []
        data = only(one.ask(fetch.API, request(replica_id=2), 11))
        assert values(data) == [b"a", b"b"] and data.high_watermark == 0
        one.ask(fetch.API, request({0: 2}, replica_id=2), 11)
        assert only(one.ask(fetch.API, request(), 11)).high_watermark == 2
        assert values(only(one.ask(fetch.API, request(), 11))) == [b"a", b"b"]

    def test_from_v15_the_follower_sends_its_epoch(self, one: OneBroker) -> None:
        self.lead(one)
        state = ReplicaState(replica_id=2, replica_epoch=44)
        one.ask(fetch.API, request(replica_state=state, max_wait_ms=0), 15)
        assert one.broker.replicas.partitions[TP].remotes[2].broker_epoch == 44

    def test_a_broker_outside_the_assignment_is_refused(self, one: OneBroker) -> None:
        self.lead(one)
        assert only(one.ask(fetch.API, request(replica_id=9), 8)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        answer = only(one.ask(fetch.API, request(replica_id=9, current_leader_epoch=0), 11))
        assert answer.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH

    def test_a_log_that_diverged_learns_the_diverging_epoch(self, one: OneBroker) -> None:
        self.lead(one)
        one.ask(produce.API, produce_request(batch(b"a", b"b"), acks=1), 9)
        one.leader_and_isr({"t": [0]}, leader_epoch=2, replicas=(1, 2), isr=(1, 2), topic_id=ID)
        one.ask(produce.API, produce_request(batch(b"c"), acks=1), 9)
        asked = request({0: 4}, replica_id=2, last_fetched_epoch=1, current_leader_epoch=2, max_wait_ms=30_000)
        data = only(one.ask(fetch.API, asked, 12))
        assert data.diverging_epoch is not None and values(data) == []
        assert (data.diverging_epoch.epoch, data.diverging_epoch.end_offset) == (0, 2)
        same = only(one.ask(fetch.API, request({0: 2}, replica_id=2, last_fetched_epoch=0), 12))
        assert same.diverging_epoch is None and values(same) == [b"c"]

    def test_a_fetch_waits_until_followers_have_the_records(self, one: OneBroker) -> None:
        self.lead(one)
        waiting = one.dispatch(fetch.API, request(max_wait_ms=30_000), 11)
        one.ask(produce.API, produce_request(batch(b"a"), acks=1), 9)
        one.spin()
        assert not waiting.done()
        one.ask(fetch.API, request({0: 1}, replica_id=2), 11)
        assert values(only(one.as_read(one.run(waiting), 11))) == [b"a"]

    def test_the_answer_to_a_fetch_that_waited_does_not_confirm_the_leader(self, one: OneBroker) -> None:
        """Its sender has sent nothing since: it may have left this leader meanwhile (decision 0042)."""
        self.lead(one)
        remote = one.broker.replicas.partitions[TP].remotes[2]
        one.ask(fetch.API, request({0: 0}, replica_id=2), 11)
        one.clock.elapsed_ms += 5_000
        waiting = one.dispatch(fetch.API, request({0: 0}, replica_id=2, max_wait_ms=30_000), 11)
        confirmed_ms, arrived_ms = remote.confirmed_ms, elapsed_ms(one.clock)
        one.clock.elapsed_ms += 1_000
        one.ask(produce.API, produce_request(batch(b"a"), acks=1), 9)
        assert values(only(one.as_read(one.run(waiting), 11))) == [b"a"]
        assert remote.confirmed_ms == confirmed_ms < arrived_ms == remote.last_fetch_time_ms
        one.ask(fetch.API, request({0: 1}, replica_id=2), 11)
        assert remote.confirmed_ms == arrived_ms

    def test_a_follower_that_has_caught_up_is_proposed_for_the_isr(self, one: OneBroker) -> None:
        one.lead("t", topic_id=ID, replicas=(1, 2), isr=(1,))
        append(one, b"a")
        wanted: list[tuple[int, ...]] = []
        one.broker.replicas.isr_change_listener = lambda partition, isr: wanted.append(isr)
        one.ask(fetch.API, request({0: 0}, replica_id=2), 11)
        one.ask(fetch.API, request({0: 1}, replica_id=2), 11)
        assert wanted == [], "the metadata does not know that broker"
        one.update_metadata({}, brokers=(1, 2))
        one.ask(fetch.API, request({0: 0}, replica_id=2), 11)
        assert wanted == []
        one.ask(fetch.API, request({0: 1}, replica_id=2), 11)
        assert wanted == [(1, 2)]


def test_read_committed_stops_at_the_last_stable_offset_and_lists_what_was_aborted(one: OneBroker) -> None:
    one.lead("t", topic_id=ID)
    log = one.broker.replicas.leader_log(TP)
    assert not isinstance(log, ErrorCode)
    append(one, b"a")
    txn = batch(b"t", producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True)
    assert append_as_leader(log, txn, 0).error == 0
    log.update_high_watermark(log.log_end_offset)
    append(one, b"b")
    committed = only(one.ask(fetch.API, request(isolation_level=1), 11))
    assert committed.last_stable_offset == 1 and committed.high_watermark == 3
    assert values(committed) == [b"a"] and list(committed.aborted_transactions or ()) == []
    uncommitted = only(one.ask(fetch.API, request(), 11))
    assert values(uncommitted) == [b"a", b"t", b"b"] and uncommitted.aborted_transactions is None


class TestSessions:
    def full(self, one: OneBroker, version: int = 12, partitions: int = 2) -> int:
        one.lead("t", partitions, topic_id=ID)
        response = one.ask(fetch.API, request(dict.fromkeys(range(partitions), 0), session_epoch=0), version)
        assert response.session_id > 0
        assert len(response.responses[0].partitions) == partitions
        return response.session_id

    def go_on(
        self, one: OneBroker, session_id: int, epoch: int, offsets: dict[int, int] | None = None, version: int = 12
    ) -> FetchResponse:
        return one.ask(fetch.API, request(offsets or {}, session_id=session_id, session_epoch=epoch), version)

    @pytest.mark.parametrize("version", [7, 12, 13, 17])
    def test_later_fetches_name_and_receive_only_changes(self, one: OneBroker, version: int) -> None:
        session_id = self.full(one, version)
        quiet = self.go_on(one, session_id, 1, version=version)
        assert quiet.error_code == 0 and quiet.session_id == session_id and list(quiet.responses) == []
        append(one, b"a", index=1)
        response = self.go_on(one, session_id, 2, version=version)
        assert only(response).partition_index == 1 and values(only(response)) == [b"a"]
        moved = self.go_on(one, session_id, 3, {1: 1}, version=version)
        assert list(moved.responses) == []

    def test_a_reader_that_did_not_use_the_last_answer_receives_it_again(self, one: OneBroker) -> None:
        """It names the partition again without having moved on: it has restarted, and knows no high watermark."""
        session_id = self.full(one)
        append(one, b"a", index=1)
        assert values(only(self.go_on(one, session_id, 1))) == [b"a"]
        assert list(self.go_on(one, session_id, 2, {1: 1}).responses) == []
        again = only(self.go_on(one, session_id, 3, {1: 1}))
        assert (again.partition_index, again.high_watermark) == (1, 1)

    def test_epochs_that_do_not_follow_and_sessions_that_are_not_there(self, one: OneBroker) -> None:
        session_id = self.full(one)
        assert self.go_on(one, session_id, 2).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        assert self.go_on(one, session_id + 1, 1).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert self.go_on(one, session_id, 1).error_code == 0
        assert self.go_on(one, session_id, 2, version=13).error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR

    def test_forgotten_partitions_are_no_longer_read(self, one: OneBroker) -> None:
        session_id = self.full(one)
        asked = request({}, session_id=session_id, session_epoch=1)
        asked.forgotten_topics_data = [ForgottenTopic(topic="t", topic_id=ID, partitions=[1])]
        assert one.ask(fetch.API, asked, 12).error_code == 0
        append(one, b"a", index=1)
        assert list(self.go_on(one, session_id, 2).responses) == []

    def test_a_session_without_partitions_is_closed(self, one: OneBroker) -> None:
        session_id = self.full(one)
        asked = request({}, session_id=session_id, session_epoch=1)
        asked.forgotten_topics_data = [ForgottenTopic(topic="t", topic_id=ID, partitions=[0, 1])]
        response = one.ask(fetch.API, asked, 12)
        assert (response.error_code, response.session_id, list(response.responses)) == (0, 0, [])
        assert len(one.broker.fetch_sessions) == 0
        assert self.go_on(one, session_id, 2).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    def test_the_final_epoch_closes_the_session(self, one: OneBroker) -> None:
        session_id = self.full(one)
        response = one.ask(fetch.API, request({0: 0}, session_id=session_id, session_epoch=-1), 12)
        assert response.session_id == 0 and len(one.broker.fetch_sessions) == 0

    def test_an_error_is_reported_again_until_it_is_gone(self, one: OneBroker) -> None:
        session_id = self.full(one, 10)
        one.leader_and_isr({"t": [0]}, leader=2, leader_epoch=1, replicas=(1, 2), isr=(1, 2), topic_id=ID)
        for epoch in (1, 2):
            assert only(self.go_on(one, session_id, epoch, version=10)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        one.leader_and_isr({"t": [0]}, leader=1, leader_epoch=2, replicas=(1, 2), isr=(1,), topic_id=ID)
        assert only(self.go_on(one, session_id, 3, version=10)).error_code == 0
        assert list(self.go_on(one, session_id, 4, version=10).responses) == []

    def test_a_topic_id_that_becomes_known_is_found(self, one: OneBroker) -> None:
        one.lead("t", topic_id=ID)
        asked = request({0: 0}, topic_id=UUID(int=9), session_epoch=0)
        response = one.ask(fetch.API, asked, 13)
        assert only(response).error_code == ErrorCode.UNKNOWN_TOPIC_ID
        one.lead("u", topic_id=UUID(int=9))
        found = self.go_on(one, response.session_id, 1, version=13)
        assert only(found).error_code == 0 and found.responses[0].topic_id == UUID(int=9)

    def test_a_partition_that_was_served_goes_to_the_end(self, one: OneBroker) -> None:
        session_id = self.full(one)
        for index in (0, 1):
            append(one, b"x" * 500, index=index)
        served = []
        for epoch in (1, 2):
            response = one.ask(fetch.API, request({}, session_id=session_id, session_epoch=epoch, max_bytes=10), 12)
            served += [p.partition_index for topic in response.responses for p in topic.partitions if values(p)]
        assert served == [0, 1]

    def test_a_full_cache_gives_no_session_until_one_is_old(self, one: OneBroker) -> None:
        assert len({self.full(one), self.full(one)}) == 2
        assert one.ask(fetch.API, request({0: 0}, session_epoch=0), 12).session_id == 0
        one.clock.elapsed_ms += 120_001
        assert one.ask(fetch.API, request({0: 0}, session_epoch=0), 12).session_id > 0
        assert len(one.broker.fetch_sessions) == 2

    def test_a_follower_takes_the_place_of_a_consumer(self, one: OneBroker) -> None:
        self.full(one), self.full(one)
        one.lead("t", 2, topic_id=ID, leader_epoch=1, replicas=(1, 2), isr=(1, 2))
        asked = request({0: 0}, session_epoch=0, replica_id=2)
        assert one.ask(fetch.API, asked, 12).session_id > 0
        assert sorted(session.is_privileged for session in one.broker.fetch_sessions) == [False, True]

    def test_the_rights_of_a_follower_are_decided_once_per_session(
        self, one: OneBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        decided: list[bool] = []
        decide = fetch._is_follower

        def counted(*args: Any) -> bool:
            decided.append(decide(*args))
            return decided[-1]

        monkeypatch.setattr(fetch, "_is_follower", counted)
        one.lead("t", 2, topic_id=ID, replicas=(1, 2), isr=(1, 2))
        session_id = one.ask(fetch.API, request({0: 0}, session_epoch=0, replica_id=2), 12).session_id
        assert session_id > 0 and decided == [True]
        for epoch in (1, 2):
            again = request({}, session_id=session_id, session_epoch=epoch, replica_id=2)
            assert one.ask(fetch.API, again, 12).error_code == 0
        assert decided == [True]

    def test_a_consumer_that_sends_the_field_of_followers_is_a_consumer(self, one: OneBroker) -> None:
        one.lead("t", topic_id=ID)
        asked = request({0: 0}, session_epoch=0)
        asked.replica_state = ReplicaState(replica_id=-1, replica_epoch=0)
        assert one.ask(fetch.API, asked, 15).session_id > 0
        assert [session.is_privileged for session in one.broker.fetch_sessions] == [False]


def test_outgoing_records_are_metered_for_consumers_and_for_followers(one: OneBroker) -> None:
    one.lead("t", topic_id=ID, replicas=(1, 2), isr=(1, 2))
    records_sent = batch(b"a")
    one.ask(produce.API, produce_request(records_sent, acks=1), 9)
    one.ask(fetch.API, request(replica_id=2), 11)
    stats = one.broker.replicas.topic_stats
    assert stats.replication_bytes_out.count == len(records_sent) and stats.all_topics.bytes_out.count == 0
    one.ask(fetch.API, request({0: 1}, replica_id=2), 11)
    one.ask(fetch.API, request(), 11)
    assert stats.topic("t").bytes_out.count == stats.all_topics.bytes_out.count == len(records_sent)
    assert stats.topic("t").total_fetch_requests.count == 3


class WatchedMeter(Meter):
    """Knows how often it was written."""

    __slots__ = ("additions",)
    additions: int

    def __setattr__(self, name: str, value: object) -> None:
        if name == "count":
            self.additions = getattr(self, "additions", -1) + 1
        super().__setattr__(name, value)


@pytest.mark.parametrize("replica_id", [2, -1], ids=["follower", "consumer"])
def test_the_meters_of_a_topic_are_written_once_per_request(one: OneBroker, replica_id: int) -> None:
    names, count = ("t", "u"), 5
    requested: list[FetchTopic] = []
    for number, name in enumerate(names):
        one.lead(name, count, topic_id=UUID(int=50 + number), replicas=(1, 2), isr=(1, 2))
        requested += request(dict.fromkeys(range(count), 0), topic=name, replica_id=replica_id).topics
    sent = batch(b"a")
    for index in range(count):
        one.ask(produce.API, produce_request(sent, index=index, acks=1), 9)
    one.ask(fetch.API, request(dict.fromkeys(range(count), 1), replica_id=2), 11)  # now they are committed
    stats = one.broker.replicas.topic_stats
    meters = {name: (WatchedMeter(one.clock), WatchedMeter(one.clock)) for name in names}
    for name, (requests, size) in meters.items():
        stats.topic(name).total_fetch_requests, stats.topic(name).bytes_out = requests, size
    asked = request({}, replica_id=replica_id)
    asked.topics = requested
    response = one.ask(fetch.API, asked, 11)
    assert [len(topic.partitions) for topic in response.responses] == [count] * len(names)
    assert {name: (requests.count, requests.additions) for name, (requests, _) in meters.items()} == dict.fromkeys(
        names, (count, 1)
    )
    expected = (count * len(sent), 1) if replica_id < 0 else (0, 0)
    sizes = {name: (size.count, size.additions) for name, (_, size) in meters.items()}
    assert sizes == {"t": expected, "u": (0, 0)}


def test_made_up_topic_names_leave_no_trace(one: OneBroker) -> None:
    before = one.broker.metrics.size
    for i in range(10):
        one.ask(fetch.API, request(topic=f"made-up-{i}"), 11)
    assert one.broker.metrics.size == before
    assert one.broker.replicas.topic_stats.all_topics.total_fetch_requests.count == 10


def test_a_session_cannot_grow_without_end(one: OneBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.apis.fetch_context.MAX_SESSION_PARTITIONS", 3)
    one.lead("t", 2, topic_id=ID)
    session_id = one.ask(fetch.API, request({0: 0, 1: 0}, session_epoch=0), 11).session_id
    grown = request({2: 0, 3: 0}, session_id=session_id, session_epoch=1)
    assert one.ask(fetch.API, grown, 11).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(one.broker.fetch_sessions) == 0
    assert one.ask(fetch.API, request(dict.fromkeys(range(4), 0), session_epoch=0), 11).session_id == 0


def test_followers_and_consumers_are_measured_apart() -> None:
    assert fetch.metric_name(request()) == "FetchConsumer"
    assert fetch.metric_name(request(replica_id=3)) == "FetchFollower"
    assert fetch.metric_name(request(replica_state=ReplicaState(replica_id=3))) == "FetchFollower"
