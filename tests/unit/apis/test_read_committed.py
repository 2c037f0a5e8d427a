"""Readers of committed records: on leaders and followers, at once and after a wait, in sessions, and by offset."""

from __future__ import annotations

import asyncio
from types import GeneratorType
from typing import Any

import pytest

from klamm.apis import delete_records, describe_producers, fetch, list_offsets
from klamm.clock import elapsed_ms
from klamm.errors import ErrorCode
from klamm.log.end_markers import marker_record_fields
from klamm.log.log import Log
from klamm.log.producer_state import AppendOrigin
from klamm.model import TopicPartition
from klamm.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from klamm.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from klamm.protocol.messages.fetch import FetchRequest, PartitionData
from klamm.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from klamm.protocol.record_batch import Record, batches, build_batch, records
from klamm.replica.append_path import append_records
from klamm.replica.partition import Partition
from tests.support.one_broker import START_MS, OneBroker
from tests.unit.apis.test_fetch import ID, only, request

TP = TopicPartition("t", 0)
LATEST, MAX_TIMESTAMP = -1, -3


def data(producer_id: int, value: bytes, sequence: int = 0, timestamp: int = START_MS) -> bytes:
    rows = [Record(timestamp=timestamp, key=b"k", value=value)]
    if producer_id < 0:
        return build_batch(rows)
    return build_batch(rows, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, is_transactional=True)


def marker(producer_id: int, *, abort: bool, coordinator_epoch: int = 0) -> bytes:
    key, value = marker_record_fields(abort, coordinator_epoch)
    rows = [Record(timestamp=START_MS, key=key, value=value)]
    return build_batch(rows, producer_id=producer_id, producer_epoch=0, is_control=True, is_transactional=True)


def append(one: OneBroker, batch: bytes) -> None:
    results = append_records(one.broker.replicas, 1, True, AppendOrigin.COORDINATOR, {TP: batch})
    assert isinstance(results, dict) and results[TP].error == 0


def committed(offset: int = 0, **fields: Any) -> FetchRequest:
    return request({0: offset}, isolation_level=1, **fields)


def seen(read: PartitionData) -> list[bytes | None]:
    """The values as a consumer shows them that takes the aborted transactions as they come, in one pass."""
    aborted = list(read.aborted_transactions or ())
    hidden: set[int] = set()
    found: list[bytes | None] = []
    assert isinstance(read.records, bytes | bytearray | memoryview)
    for batch in batches(read.records):
        while aborted and aborted[0].first_offset <= batch.last_offset:
            hidden.add(aborted.pop(0).producer_id)
        if batch.is_control:
            hidden.discard(batch.producer_id)
        elif batch.producer_id not in hidden:
            found += [record.value for record in records(batch)]
    return found


def partition(one: OneBroker) -> Partition:
    return one.broker.replicas.partitions[TP]


def follow(one: OneBroker, offset: int) -> None:
    """Broker 2 fetches from there."""
    if partition(one).on_follower_fetch(2, offset, 0, elapsed_ms(one.clock), -1):
        one.broker.replicas.complete_after_high_watermark(TP)


def test_aborted_transactions_come_by_their_first_offset_and_only_for_readers_of_committed_records(
    one: OneBroker,
) -> None:
    one.lead("t", topic_id=ID)
    for producer_id in (1, 2, 3):
        append(one, data(producer_id, b"%d" % producer_id))
    append(one, data(-1, b"plain"))
    for producer_id, abort in ((3, True), (2, False), (1, True)):
        append(one, marker(producer_id, abort=abort))
    for version in range(4, 18):
        read = only(one.ask(fetch.API, committed(), version))
        assert [(t.producer_id, t.first_offset) for t in read.aborted_transactions or ()] == [(1, 0), (3, 2)]
        assert seen(read) == [b"2", b"plain"]
        assert only(one.ask(fetch.API, request(), version)).aborted_transactions is None


def test_a_waiting_fetch_is_answered_when_the_transaction_ends(one: OneBroker) -> None:
    one.lead("t", topic_id=ID)
    append(one, data(1, b"a"))
    waiting = one.dispatch(fetch.API, committed(max_wait_ms=60_000), 12)
    assert isinstance(waiting, asyncio.Future)
    append(one, data(1, b"b", 1))
    append(one, data(-1, b"plain"))
    one.spin()
    assert not waiting.done(), "new records, but none that may be read"
    append(one, marker(1, abort=True))
    read = only(one.run(waiting))
    assert (seen(read), read.last_stable_offset) == ([b"plain"], 4)


def test_a_waiting_fetch_needs_the_marker_on_all_in_sync_replicas(one: OneBroker) -> None:
    one.lead("t", topic_id=ID, replicas=(1, 2), isr=(1, 2))
    append(one, data(1, b"a"))
    follow(one, 1)
    waiting = one.dispatch(fetch.API, committed(max_wait_ms=60_000), 12)
    append(one, marker(1, abort=False))
    one.spin()
    assert isinstance(waiting, asyncio.Future) and not waiting.done()
    follow(one, 2)
    assert seen(only(one.run(waiting))) == [b"a"]


def test_a_session_names_the_partition_again_when_its_last_stable_offset_moved(one: OneBroker) -> None:
    one.lead("t", topic_id=ID, replicas=(1, 2), isr=(1, 2))
    append(one, data(1, b"a"))
    append(one, data(2, b"b"))
    follow(one, 2)
    first = one.ask(fetch.API, committed(session_epoch=0), 12)
    assert only(first).last_stable_offset == 0

    def again(epoch: int, **fields: Any) -> Any:
        asked = request({}, isolation_level=1, session_id=first.session_id, session_epoch=epoch, **fields)
        return one.ask(fetch.API, asked, 12)

    assert again(1).responses == [], "nothing moved"
    append(one, marker(1, abort=False))
    follow(one, 3)
    moved = only(again(2))
    assert (moved.last_stable_offset, moved.high_watermark, seen(moved)) == (1, 3, [b"a"])


@pytest.fixture
def follower(one: OneBroker) -> OneBroker:
    """Broker 1 follows broker 2: an aborted, an open and a plain record, the marker is not committed yet."""
    one.leader_and_isr({"t": [0]}, topic_id=ID, leader=2, replicas=(1, 2), isr=(1, 2))
    one.update_metadata({"t": [0]}, topic_id=ID, leader=2, replicas=(1, 2), isr=(1, 2), brokers=(1, 2))
    fetched = [data(1, b"aborted"), data(-1, b"plain"), marker(1, abort=True, coordinator_epoch=3), data(2, b"open")]
    replicate(one, fetched, high_watermark=2)
    return one


def replicate(one: OneBroker, fetched: list[bytes], high_watermark: int) -> None:
    base = partition(one).log
    assert base is not None
    offset, stored = base.log_end_offset, b""
    for sent in fetched:
        stored += offset.to_bytes(8, "big") + sent[8:12] + (0).to_bytes(4, "big") + sent[16:]
        offset += 1
    assert partition(one).append_records_to_follower(stored, high_watermark, 0).error == 0
    one.broker.replicas.complete_after_high_watermark(TP)


class TestFollower:
    def test_it_serves_committed_records(self, follower: OneBroker) -> None:
        before = only(follower.ask(fetch.API, committed(rack_id="r"), 12))
        assert (before.last_stable_offset, before.high_watermark, seen(before)) == (0, 2, [])
        replicate(follower, [], high_watermark=4)
        read = only(follower.ask(fetch.API, committed(rack_id="r"), 12))
        assert (read.last_stable_offset, read.high_watermark, seen(read)) == (3, 4, [b"plain"])
        assert [t.first_offset for t in read.aborted_transactions or ()] == [0]

    def test_a_waiting_fetch(self, follower: OneBroker) -> None:
        waiting = follower.dispatch(fetch.API, committed(rack_id="r", max_wait_ms=60_000), 12)
        assert isinstance(waiting, asyncio.Future)
        replicate(follower, [], high_watermark=3)
        assert seen(only(follower.run(waiting))) == [b"plain"]

    def test_its_producers(self, follower: OneBroker) -> None:
        response = follower.ask(
            describe_producers.API,
            DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0])]),
            0,
        )
        [described] = response.topics[0].partitions
        rows = {p.producer_id: (p.current_txn_start_offset, p.coordinator_epoch) for p in described.active_producers}
        assert described.error_code == 0 and rows == {1: (-1, 3), 2: (3, -1)}


def test_many_producers_are_described_in_slices(one: OneBroker) -> None:
    one.lead("t", topic_id=ID)
    for producer_id in range(1500):
        append(one, data(producer_id, b"v"))
    asked = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0])])
    assert isinstance(one.dispatch(describe_producers.API, asked, 0), GeneratorType)
    [described] = one.ask(describe_producers.API, asked, 0).topics[0].partitions
    assert len(described.active_producers) == 1500


class TestListOffsets:
    def ask(self, one: OneBroker, timestamp: int, isolation: int) -> tuple[int, int]:
        asked = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation,
            topics=[
                ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=timestamp)])
            ],
        )
        [answer] = one.ask(list_offsets.API, asked, 7).topics[0].partitions
        assert answer.error_code == 0
        return answer.offset, answer.timestamp

    def test_the_end_and_times_stop_at_the_last_stable_offset(self, one: OneBroker) -> None:
        one.lead("t", topic_id=ID)
        append(one, data(-1, b"a", timestamp=START_MS))
        append(one, data(1, b"b", timestamp=START_MS + 10))
        append(one, data(-1, b"c", timestamp=START_MS + 20))
        assert (self.ask(one, LATEST, 0)[0], self.ask(one, LATEST, 1)[0]) == (3, 1)
        assert self.ask(one, START_MS + 10, 0) == (1, START_MS + 10)
        assert self.ask(one, START_MS + 10, 1) == (-1, -1)
        assert self.ask(one, MAX_TIMESTAMP, 0)[0] == 2 and self.ask(one, MAX_TIMESTAMP, 1)[0] == -1
        append(one, marker(1, abort=False))
        assert self.ask(one, LATEST, 1)[0] == 4 and self.ask(one, START_MS + 10, 1)[0] == 1


def test_deleted_records_of_an_open_transaction(one: OneBroker) -> None:
    """The log starts in the middle of the transaction; nothing of it is shown before it ends."""
    one.lead("t", topic_id=ID)
    for sequence in range(4):
        append(one, data(1, b"%d" % sequence, sequence))
    asked = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=2)])],
        timeout_ms=1000,
    )
    answer = one.ask(delete_records.API, asked, 2).topics[0].partitions[0]
    assert (answer.error_code, answer.low_watermark) == (0, 2)
    log = one.broker.replicas.leader_log(TP)
    assert isinstance(log, Log) and (log.last_stable_offset, log.high_watermark) == (2, 4)
    early = only(one.ask(fetch.API, committed(0), 12))
    assert early.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert seen(only(one.ask(fetch.API, committed(2), 12))) == []
    append(one, marker(1, abort=True))
    read = only(one.ask(fetch.API, committed(2), 12))
    assert seen(read) == [] and len(read.aborted_transactions or ()) == 1
