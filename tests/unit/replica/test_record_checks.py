"""Batches that are validated outside of the loop: order, idempotence, other partitions, limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from klamm.apis import produce
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.compression import CompressionType, compress
from klamm.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from klamm.protocol.record_batch import RECORD_BATCH_OVERHEAD, Record, batches, build_batch, encode_record, records
from klamm.replica import record_checks
from tests.support.one_broker import START_MS, OneBroker, batch
from tests.unit.log.test_hostile_records import raw_batch


class ManualWorker(Executor):
    """Runs a job when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.jobs.append((future, lambda: fn(*args, **kwargs)))
        return future

    def work(self, index: int = 0) -> None:
        future, job = self.jobs.pop(index)
        future.set_result(job())


@pytest.fixture
def one(tmp_path: Path) -> Iterator[OneBroker]:
    broker = OneBroker(tmp_path)
    broker.lead("t", 2)
    yield broker
    broker.close()


@pytest.fixture
def worker(one: OneBroker) -> ManualWorker:
    worker = ManualWorker()
    one.broker.replicas.record_checks.start(worker)
    return worker


def large(
    value: bytes, *, codec: CompressionType = CompressionType.ZSTD, sequence: int = -1, count: int = 2000
) -> bytes:
    """More records than are parsed on the loop."""
    rows = [Record(timestamp=START_MS, value=value)] * count
    producer = (7, 0) if sequence >= 0 else (-1, -1)
    return build_batch(
        rows, compression=codec, producer_id=producer[0], producer_epoch=producer[1], base_sequence=sequence
    )


def send(one: OneBroker, *sent: tuple[int, bytes], acks: int = 1) -> Any:
    data = [PartitionProduceData(index=index, records=records) for index, records in sent]
    request = ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=data)])
    return one.dispatch(produce.API, request, 9)


def answers(response: ProduceResponse) -> list[PartitionProduceResponse]:
    return list(response.responses[0].partition_responses)


def firsts(one: OneBroker, index: int = 0) -> list[bytes | None]:
    """The value of the first record of each batch in the log."""
    log = one.broker.replicas.leader_log(TopicPartition("t", index))
    assert not isinstance(log, ErrorCode)
    read = log.read(0, 1 << 26, max_offset=log.log_end_offset)
    assert not isinstance(read, ErrorCode)
    return [next(iter(records(found))).value for found in batches(memoryview(read.records))]


def test_a_large_batch_waits_and_others_do_not(one: OneBroker, worker: ManualWorker) -> None:
    waiting = send(one, (0, large(b"slow")))
    assert isinstance(waiting, asyncio.Future)
    assert [a.error_code for a in answers(send(one, (1, batch(b"quick"))))] == [0]
    worker.work()
    assert [(a.error_code, a.base_offset) for a in answers(one.run(waiting))] == [(0, 0)]
    assert firsts(one) == [b"slow"]


def test_a_false_header_does_not_move_checks_to_the_loop(one: OneBroker, worker: ManualWorker) -> None:
    """A negative number of records in one batch; batches that claim one record each."""
    lying = bytearray(large(b"x", count=1))
    lying[RECORD_BATCH_OVERHEAD - 4 : RECORD_BATCH_OVERHEAD] = (-(1 << 31)).to_bytes(4, "big", signed=True)
    waiting = send(one, (0, bytes(lying)), (1, large(b"slow")))
    assert isinstance(waiting, asyncio.Future)
    worker.work()
    assert [a.error_code == 0 for a in answers(one.run(waiting))] == [False, True]


def test_every_compressed_batch_costs_something(
    one: OneBroker, worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = large(b"x", count=1)
    assert [a.error_code for a in answers(send(one, (0, small), (1, small)))] == [0, 0]
    monkeypatch.setattr(record_checks, "INLINE_RECORDS", record_checks.LEAST_COST)
    waiting = send(one, (0, small), (1, small))
    assert isinstance(waiting, asyncio.Future)
    worker.work()
    assert [a.error_code for a in answers(one.run(waiting))] == [0, 0]


def test_later_batches_of_the_partition_keep_their_place(one: OneBroker, worker: ManualWorker) -> None:
    sent = [
        send(one, (0, large(b"1", sequence=0))),
        send(one, (0, batch(b"2", producer_id=7, producer_epoch=0, base_sequence=2000)), (1, batch(b"x"))),
        send(one, (1, batch(b"y"))),
        send(one, (0, large(b"3", sequence=2001))),
    ]
    assert all(isinstance(answer, asyncio.Future) for answer in sent)
    worker.work(3)
    worker.work(2)
    worker.work(1)
    one.spin()
    assert not any(answer.done() for answer in sent), "the oldest is not checked yet"
    worker.work()
    assert [[a.error_code for a in answers(one.run(answer))] for answer in sent] == [[0], [0, 0], [0], [0]]
    assert firsts(one) == [b"1", b"2", b"3"]
    assert firsts(one, 1) == [b"x", b"y"]
    assert [a.error_code for a in answers(send(one, (0, batch(b"4"))))] == [0], "nothing waits any longer"


def test_a_batch_that_is_refused_lets_the_next_one_pass(one: OneBroker, worker: ManualWorker) -> None:
    broken = raw_batch(compress(CompressionType.GZIP, encode_record(Record(value=b"x"), 0, 0) * 2000), 2000, codec=1)
    first, second = send(one, (0, broken), (1, batch(b"b"))), send(one, (0, batch(b"a")))
    worker.work()
    worker.work()
    assert [a.error_code for a in answers(one.run(first))] == [ErrorCode.INVALID_RECORD, 0]
    assert [a.error_code for a in answers(one.run(second))] == [0]
    assert (firsts(one), firsts(one, 1)) == ([b"a"], [b"b"])


def test_without_acks_a_refusal_closes_the_connection(one: OneBroker, worker: ManualWorker) -> None:
    waiting = send(one, (0, raw_batch(b"no gzip", 2000, codec=1)), acks=0)
    context = one.last_context
    worker.work()
    assert one.run(waiting) is None
    assert context.closes_connection


def test_leadership_that_is_lost_meanwhile(one: OneBroker, worker: ManualWorker) -> None:
    waiting = send(one, (0, large(b"late")))
    one.lead("t", 2, leader=2, leader_epoch=5)
    worker.work()
    assert [a.error_code for a in answers(one.run(waiting))] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


@pytest.mark.parametrize("codec", list(CompressionType)[1:])
def test_a_few_bytes_that_unpack_to_many_leave_the_loop(
    one: OneBroker, worker: ManualWorker, codec: CompressionType
) -> None:
    value = bytes(4 << 20)
    data = build_batch([Record(timestamp=START_MS, value=value)], compression=codec)
    assert len(data) < 1 << 20
    waiting = send(one, (0, data))
    assert isinstance(waiting, asyncio.Future)
    worker.work()
    assert [a.error_code for a in answers(one.run(waiting))] == [0]


def test_small_compressed_batches_are_checked_at_once(one: OneBroker, worker: ManualWorker) -> None:
    small = build_batch([Record(timestamp=START_MS, value=b"v" * 100)] * 100, compression=CompressionType.LZ4)
    assert [a.error_code for a in answers(send(one, (0, small), (1, small)))] == [0, 0]
    broken = raw_batch(compress(CompressionType.LZ4, b"no record"), 1, codec=3)
    assert [a.error_code for a in answers(send(one, (0, broken)))] == [ErrorCode.INVALID_RECORD]
    assert not worker.jobs


def test_many_small_batches_of_one_request_share_the_time_of_the_loop(one: OneBroker, worker: ManualWorker) -> None:
    small = build_batch([Record(timestamp=START_MS, value=b"v")] * 600, compression=CompressionType.LZ4)
    waiting = send(one, (0, small), (1, small))
    assert isinstance(waiting, asyncio.Future)
    worker.work()
    assert [a.error_code for a in answers(one.run(waiting))] == [0, 0]


def test_the_waiting_work_is_bounded(one: OneBroker, worker: ManualWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_checks, "MAX_WAITING_BYTES", 60_000)
    data = large(bytes(range(10)), codec=CompressionType.SNAPPY, count=9000)
    assert 30_000 < len(data) < 60_000
    waiting = send(one, (0, data))
    assert [a.error_code for a in answers(send(one, (0, data)))] == [ErrorCode.REQUEST_TIMED_OUT]
    worker.work()
    assert [a.error_code for a in answers(one.run(waiting))] == [0]
    later = send(one, (0, data))
    worker.work()
    assert [a.error_code for a in answers(one.run(later))] == [0]


def test_many_records_of_an_uncompressed_batch_leave_the_loop(one: OneBroker, worker: ManualWorker) -> None:
    waiting = send(one, (0, large(b"v", codec=CompressionType.NONE, count=40_000)))
    assert isinstance(waiting, asyncio.Future)
    worker.work()
    assert [a.error_code for a in answers(one.run(waiting))] == [0]


def checked_at_once(one: OneBroker, worker: ManualWorker) -> tuple[list[Any], int]:
    """Requests that are all checked before the loop turns, in the order of a producer's sequence; and their size."""
    count = 40_000
    values = [bytes((number,)) for number in range(6)]
    sent = [large(value, codec=CompressionType.NONE, sequence=n * count, count=count) for n, value in enumerate(values)]
    waiting = [send(one, (0, data)) for data in sent]
    while worker.jobs:
        worker.work()
    assert not any(answer.done() for answer in waiting)
    return waiting, len(sent[0])


def turn(one: OneBroker) -> None:
    one.loop.call_soon(one.loop.stop)
    one.loop.run_forever()


def test_few_bytes_are_appended_in_one_turn(one: OneBroker, worker: ManualWorker) -> None:
    waiting, size = checked_at_once(one, worker)
    log = one.broker.replicas.leader_log(TopicPartition("t", 0))
    assert not isinstance(log, ErrorCode) and size < record_checks.MOST_BYTES < len(waiting) * size
    turn(one)
    after_one = log.size_bytes
    assert 0 < after_one <= record_checks.MOST_BYTES
    late = send(one, (0, batch(b"late")))
    assert isinstance(late, asyncio.Future), "it does not overtake those that wait for the next turn"
    worker.work()
    turns = 1
    while not late.done():
        before = log.size_bytes
        turn(one)
        turns += 1
        assert log.size_bytes - before <= record_checks.MOST_BYTES
    assert turns >= len(waiting) * size // record_checks.MOST_BYTES
    assert [[a.error_code for a in answers(one.run(answer))] for answer in [*waiting, late]] == [[0]] * 7
    assert firsts(one) == [*(bytes((number,)) for number in range(6)), b"late"]


def test_a_stopping_broker_appends_all_checked_records(one: OneBroker, worker: ManualWorker) -> None:
    waiting, _ = checked_at_once(one, worker)
    turn(one)
    one.broker.replicas.shutdown()
    assert len(firsts(one)) == len(waiting)
    assert [[a.error_code for a in answers(one.run(answer))] for answer in waiting] == [[0]] * len(waiting)


def test_a_stopping_broker_appends_records_in_progress(one: OneBroker) -> None:
    one.broker.replicas.record_checks.start(ThreadPoolExecutor(1))
    waiting = send(one, (0, large(b"last")))
    one.broker.replicas.shutdown()
    assert [a.error_code for a in answers(one.run(waiting))] == [0]
