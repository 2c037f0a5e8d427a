"""Reading a range by Fetch when things go wrong: scripted answers, time that only moves when somebody waits."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from klamm.model import TopicPartition
from klamm.protocol.messages.fetch import PartitionData
from klamm.protocol.record_batch import Record, build_batch
from klamm.spark.client import (
    ClientError,
    ClusterClient,
    OffsetOutOfRangeError,
    RetriableError,
    UnknownTopicError,
    UnreachableError,
)
from klamm.spark.client_connection import Room
from klamm.spark.fetch import DataLossError, fetch_batches
from klamm.spark.offsets import OffsetRange
from klamm.spark.options import parse_read_options
from klamm.spark.record_columns import RecordDecoder
from klamm.spark.record_scan import CorruptBatchError

TP = TopicPartition("orders", 0)
SCHEMA = pa.schema([pa.field("offset", pa.int64())])


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return int(self.now * 1000)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


Answer = bytes | Exception


class ScriptedClient:
    """Answers each Fetch by `answer(offset, how many came before)`."""

    check_crcs = True
    partition_fetch_bytes = 0

    def __init__(self, time: Time, answer: Callable[[int, int], Answer], first: int = 0, last: int = 100) -> None:
        self._time, self._answer, self._first, self._last = time, answer, first, last
        self.topic_ids = {"orders": UUID(int=1)}
        self.asked: list[int] = []
        self.lost = self.abandoned = 0

    def start_fetch(self, tp: TopicPartition, offset: int, **_: Any) -> int:
        return offset

    def finish_fetch(self, offset: int, room: Room) -> PartitionData:
        self.asked.append(offset)
        answer = self._answer(offset, len(self.asked) - 1)
        if isinstance(answer, Exception):
            raise answer
        if not answer:
            self._time.now += 0.5
        return PartitionData(partition_index=0, error_code=0, high_watermark=100, records=answer)

    def abandon_fetch(self, pending: int) -> None:
        self.abandoned += 1

    def lost_leader(self, tp: TopicPartition) -> None:
        self.lost += 1

    def metadata(self, topics: list[str]) -> None:
        pass

    def earliest(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {TP: self._first}

    def latest(self, tps: list[TopicPartition], isolation: int = 0) -> dict[TopicPartition, int]:
        return {TP: self._last}


def ten(offset: int, _: int = 0) -> bytes:
    return build_batch([Record(timestamp=1, value=b"v") for _ in range(10)], base_offset=offset - offset % 10)


def offsets(client: Any, time: Time, start: int, end: int, **options: str) -> Iterator[int]:
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "orders", "kafkaConsumer.pollTimeoutMs": "20000"}
    chosen = parse_read_options(given | options, streaming=False)
    decoder = RecordDecoder(TP, SCHEMA, batch_bytes=1 << 20)
    wanted = OffsetRange(TP, start, end)
    found = fetch_batches(client, wanted, decoder, chosen, topic_id=UUID(int=1), clock=time, sleep=time.sleep)
    for batch in found:
        yield from batch.column(0).to_pylist()


def test_a_range_is_read_to_its_end_and_not_beyond() -> None:
    time = Time()
    client = ScriptedClient(time, ten)
    assert list(offsets(client, time, 3, 27)) == list(range(3, 27))
    assert client.asked == [3, 10, 20] and time.now == 0


def test_what_passes_is_tried_again() -> None:
    time = Time()
    problems: dict[int, Answer] = {1: OSError("reset"), 2: RetriableError("moved"), 4: b"", 5: UnknownTopicError("new")}
    client = ScriptedClient(time, lambda offset, turn: problems.get(turn, ten(offset)))
    assert list(offsets(client, time, 0, 40)) == list(range(40))
    assert client.lost == 2


def test_a_damaged_answer_is_asked_for_again_a_few_times() -> None:
    time = Time()
    damaged = bytearray(ten(0))
    damaged[-1] ^= 1
    client = ScriptedClient(time, lambda offset, turn: bytes(damaged) if turn < 2 else ten(offset))
    assert list(offsets(client, time, 0, 10)) == list(range(10))
    with pytest.raises(CorruptBatchError, match="checksum"):
        list(offsets(ScriptedClient(time, lambda *_: bytes(damaged)), time, 0, 10))


def test_silence_ends_with_the_offset_and_the_option() -> None:
    time = Time()
    client = ScriptedClient(time, lambda offset, _: ten(offset) if offset < 10 else b"")
    with pytest.raises(ClientError, match=r"orders-0.*offset 10 .*pollTimeoutMs"):
        list(offsets(client, time, 0, 20))
    assert 20 <= time.now < 21


def test_retention_is_told_with_its_range() -> None:
    time = Time()

    def answer(offset: int, _: int) -> Answer:
        return OffsetOutOfRangeError("gone") if offset < 50 else ten(offset)

    with pytest.raises(DataLossError, match="offsets 5 to 49 are gone: retention"):
        list(offsets(ScriptedClient(time, answer, first=50), time, 5, 70))
    relaxed = ScriptedClient(time, answer, first=50)
    assert list(offsets(relaxed, time, 5, 70, failOnDataLoss="false")) == list(range(50, 70))
    assert list(offsets(relaxed, time, 5, 40, failOnDataLoss="false")) == []
    assert time.now == 0


def test_an_offset_beyond_the_end_counts_as_lost_only_when_it_stays_so() -> None:
    time = Time()
    client = ScriptedClient(time, lambda o, turn: OffsetOutOfRangeError("?") if turn < 5 else ten(o), last=20)
    assert list(offsets(client, time, 30, 40)) == list(range(30, 40))
    lasting = ScriptedClient(time, lambda *_: OffsetOutOfRangeError("?"), last=20)
    with pytest.raises(DataLossError, match="30 to 39 are gone: the log ends at 20"):
        list(offsets(lasting, time, 30, 40))


def test_a_topic_created_anew_or_deleted() -> None:
    time = Time()
    recreated = ScriptedClient(time, lambda *_: OffsetOutOfRangeError("?"))
    recreated.topic_ids = {"orders": UUID(int=2)}
    with pytest.raises(DataLossError, match="created anew"):
        list(offsets(recreated, time, 0, 10))
    deleted = ScriptedClient(time, lambda *_: UnknownTopicError("?"))
    with pytest.raises(DataLossError, match="deleted"):
        list(offsets(deleted, time, 0, 10))
    assert list(offsets(deleted, time, 0, 10, failOnDataLoss="false")) == []


def test_a_reader_that_is_left_early_gives_up_its_request() -> None:
    time = Time()
    client = ScriptedClient(time, ten)
    reading = offsets(client, time, 0, 50)
    assert next(reading) == 0
    reading.close()  # type: ignore[attr-defined]
    assert client.abandoned == 1


def test_nobody_at_the_address() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    client = ClusterClient(address, {"default.api.timeout.ms": "200"})
    with pytest.raises(ClientError, match=f"metadata within 200 ms.*{address}"):
        client.topics(["orders"])
    time = Time()
    driver = ClusterClient(address, first_contact_ms=5000, clock=time, sleep=time.sleep)
    with pytest.raises(UnreachableError, match=rf"cannot be reached: .*{address}.*kafka\.bootstrap\.servers"):
        driver.topics(["orders"])
    assert time.monotonic() == pytest.approx(5.0, abs=0.2)
