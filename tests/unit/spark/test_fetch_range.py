"""Reading a range by Fetch when things go wrong: scripted answers, time that only moves when somebody waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, cast
from uuid import UUID

import pyarrow as pa
import pytest

from klamm.client.blocking_connection import ReceiveBuffer
from klamm.client.client_errors import (
    ClientError,
    OffsetOutOfRangeError,
    RetriableError,
    TopicIdError,
    UnknownTopicError,
    UnreachableError,
)
from klamm.client.cluster_client import ClusterClient
from klamm.client.connection_pool import ClientConfig
from klamm.client.patience import Patience
from klamm.errors import ErrorCode
from klamm.local.ports import ReservedPort
from klamm.model import TopicPartition
from klamm.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from klamm.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from klamm.protocol.record_batch import RECORD_BATCH_OVERHEAD, Record, build_batch
from klamm.protocol.wire import decode, encode_bytes
from klamm.spark.decode.batch_scan import CorruptBatchError
from klamm.spark.decode.record_columns import RecordDecoder
from klamm.spark.source.client_options import driver_client, task_client
from klamm.spark.source.data_loss import DataLossError
from klamm.spark.source.range_fetch import fetch_batches
from klamm.spark.source.read_options import parse_read_options
from klamm.spark.source.source_offsets import OffsetRange

TP = TopicPartition("orders", 0)
SCHEMA = pa.schema([pa.field("offset", pa.int64())])
LONG = {"kafkaConsumer.pollTimeoutMs": "120000"}


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


class Pending(NamedTuple):
    offset: int
    topic_id: UUID | None


class ScriptedClient:
    """Answers each Fetch by `answer(offset, how many came before)`."""

    config = ClientConfig(bootstrap=())
    has_fetch_by_id = True

    def __init__(self, time: Time, answer: Callable[[int, int], Answer], first: int = 0, last: int = 100) -> None:
        self._time, self._answer, self._first, self._last = time, answer, first, last
        self.topic_ids = {"orders": UUID(int=1)}
        self.asked: list[int] = []
        self.lost = self.abandoned = 0

    def start_fetch(self, tp: TopicPartition, offset: int, *, topic_id: UUID | None, **_: Any) -> Pending:
        return Pending(offset, topic_id if self.has_fetch_by_id else None)

    def finish_fetch(self, pending: Pending, buffer: ReceiveBuffer) -> PartitionData:
        self.asked.append(pending.offset)
        if pending.topic_id not in (None, self.topic_ids["orders"]):
            raise TopicIdError("?")
        answer = self._answer(pending.offset, len(self.asked) - 1)
        if isinstance(answer, Exception):
            raise answer
        if not answer:
            self._time.now += 0.5
        return PartitionData(partition_index=0, error_code=0, high_watermark=100, records=answer)

    def within(self, _: Patience) -> AbstractContextManager[None]:
        return nullcontext()

    def abandon_fetch(self, pending: Pending) -> None:
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


def test_a_temporary_error_is_retried() -> None:
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


def test_records_that_do_not_match_their_header_are_fetched_again() -> None:
    """With check.crcs=false damage shows only when the records are decoded."""
    time = Time()
    damaged = bytearray(ten(0))
    damaged[RECORD_BATCH_OVERHEAD] ^= 2

    def answer(offset: int, turn: int) -> Answer:
        return bytes(damaged) if turn < 2 else ten(offset)

    client = ScriptedClient(time, answer)
    client.config = ClientConfig(bootstrap=(), check_crcs=False)
    assert list(offsets(client, time, 0, 30)) == list(range(30))
    assert client.asked == [0, 0, 0, 10, 20]
    client = ScriptedClient(time, lambda *_: bytes(damaged))
    client.config = ClientConfig(bootstrap=(), check_crcs=False)
    with pytest.raises(CorruptBatchError, match="orders-0 at offset 0 holds records"):
        list(offsets(client, time, 0, 10))
    assert len(client.asked) == 3


def test_silence_ends_with_the_offset_and_the_option() -> None:
    time = Time()
    client = ScriptedClient(time, lambda offset, _: ten(offset) if offset < 10 else b"")
    with pytest.raises(ClientError, match=r"orders-0.*offset 10 .*pollTimeoutMs"):
        list(offsets(client, time, 0, 20))
    assert 20 <= time.now < 21


def test_retention_is_reported_with_its_range() -> None:
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


def test_a_topic_created_again_or_deleted() -> None:
    time = Time()
    recreated = ScriptedClient(time, lambda *_: OffsetOutOfRangeError("?"))
    recreated.topic_ids = {"orders": UUID(int=2)}
    with pytest.raises(DataLossError, match="created again"):
        list(offsets(recreated, time, 0, 10))
    deleted = ScriptedClient(time, lambda *_: UnknownTopicError("?"))
    with pytest.raises(DataLossError, match="deleted"):
        list(offsets(deleted, time, 0, 10))
    assert list(offsets(deleted, time, 0, 10, failOnDataLoss="false")) == []


@pytest.mark.parametrize("has_fetch_by_id", [True, False])
def test_no_record_comes_of_a_longer_topic_with_the_same_name(has_fetch_by_id: bool) -> None:
    time = Time()
    recreated = ScriptedClient(time, ten)
    recreated.topic_ids = {"orders": UUID(int=2)}
    recreated.has_fetch_by_id = has_fetch_by_id
    with pytest.raises(DataLossError, match="0 to 29 are gone: topic orders was deleted and created again"):
        list(offsets(recreated, time, 0, 30))
    assert list(offsets(recreated, time, 0, 30, failOnDataLoss="false")) == []


@pytest.mark.parametrize("has_fetch_by_id", [True, False])
def test_a_broker_that_still_reports_the_id_of_an_older_topic_is_asked_again(has_fetch_by_id: bool) -> None:
    time = Time()
    client = ScriptedClient(time, ten)
    client.topic_ids = {"orders": UUID(int=9)}
    client.has_fetch_by_id = has_fetch_by_id
    asked = 0

    def metadata(topics: list[str]) -> None:
        nonlocal asked
        asked += 1
        if asked == 5:
            client.topic_ids = {"orders": UUID(int=1)}

    client.metadata = metadata  # type: ignore[method-assign]
    assert list(offsets(client, time, 0, 30)) == list(range(30))


def test_a_log_that_was_cut_inside_the_range() -> None:
    """A Fetch at the very end of a log is answered with nothing, not with an error."""
    time = Time()

    def cut() -> ScriptedClient:
        return ScriptedClient(time, lambda o, _: ten(o) if o < 50 else b"", last=50)

    assert list(offsets(cut(), time, 0, 100, failOnDataLoss="false")) == list(range(50))
    assert 5 <= time.now < 7
    with pytest.raises(DataLossError, match="50 to 99 are gone: the log ends at 50"):
        list(offsets(cut(), time, 0, 100))
    short = {"failOnDataLoss": "false", "kafkaConsumer.pollTimeoutMs": "700"}
    assert list(offsets(cut(), time, 0, 100, **short)) == list(range(50))


def test_a_new_leader_with_a_high_watermark_that_lags_loses_nothing() -> None:
    time = Time()
    lags = range(5, 13)
    client = ScriptedClient(time, lambda o, turn: b"" if turn in lags else ten(o), last=50)
    assert list(offsets(client, time, 0, 100)) == list(range(100))
    assert 4 <= time.now < 5


def test_offsets_behind_an_open_transaction_are_not_lost() -> None:
    time = Time()
    client = ScriptedClient(time, lambda o, _: ten(o) if o < 50 else b"")
    client.latest = lambda tps, isolation=0: {TP: 50 if isolation else 100}  # type: ignore[method-assign]
    given = {"kafka.isolation.level": "read_committed", "failOnDataLoss": "false"}
    with pytest.raises(ClientError, match=r"offset 50 .*pollTimeoutMs"):
        list(offsets(client, time, 0, 100, **given))


def test_a_limit_that_no_broker_reports_ends_with_the_patience_of_the_range() -> None:
    """The question after the end of the log may itself fail for a while."""
    time = Time()
    client = ScriptedClient(time, lambda o, turn: b"" if turn < 3 else ten(o))
    reported = client.latest

    def latest(tps: list[TopicPartition], isolation: int = 0) -> dict[TopicPartition, int]:
        if len(client.asked) < 3:
            raise ClientError("The cluster did not give offsets within 60000 ms.")
        return reported(tps)

    client.latest = latest  # type: ignore[method-assign]
    assert list(offsets(client, time, 0, 20)) == list(range(20))


@pytest.mark.parametrize("between", [b"", RetriableError("moved"), OSError("reset")])
def test_a_topic_that_was_unknown_twice_for_a_moment_is_not_deleted(between: Answer) -> None:
    time = Time()

    def answer(offset: int, turn: int) -> Answer:
        return UnknownTopicError("?") if turn in (1, 70) else between if turn < 70 else ten(offset)

    assert list(offsets(ScriptedClient(time, answer, last=200), time, 0, 20, **LONG)) == list(range(20))
    assert time.now > 6


def test_a_fetch_names_the_topic_by_id_where_the_broker_can() -> None:
    topic_id = UUID(int=5)
    for has, sent in (17, 13), (12, 12):
        connection = FakeSocket(has)
        client = _client_of(connection)
        pending = client.start_fetch(TP, 7, max_bytes=1000, topic_id=topic_id)
        assert connection.sent == [sent] and pending.topic_id == (topic_id if sent == 13 else None)
        assert client.finish_fetch(pending).high_watermark == 3
        client.start_fetch(TP, 7, max_bytes=1000)
        assert connection.sent == [sent, 12]
    for code in ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID:
        client = _client_of(FakeSocket(17, code))
        with pytest.raises(TopicIdError, match=code.name):
            client.finish_fetch(client.start_fetch(TP, 7, max_bytes=1000, topic_id=topic_id))


def _client_of(connection: Any) -> ClusterClient:
    return ClusterClient(ClientConfig(bootstrap=(("h", 1),)), connect=lambda *_: cast(Any, connection))


class FakeSocket:
    """A broker that answers a Fetch as its version wants it."""

    is_closed = False
    in_flight = 0
    timeout_ms = 0.0

    def __init__(self, highest: int, error_code: int = 0) -> None:
        self._highest = highest
        self._error_code = error_code
        self.sent: list[int] = []
        self._asked = FetchRequest(max_wait_ms=0, min_bytes=0, topics=())

    def ask(self, request: MetadataRequest, response: type[MetadataResponse]) -> MetadataResponse:
        partition = MetadataResponsePartition(
            error_code=0, partition_index=0, leader_id=1, replica_nodes=[1], isr_nodes=[1]
        )
        topics = [MetadataResponseTopic(error_code=0, name="orders", partitions=[partition])]
        return MetadataResponse(brokers=[MetadataResponseBroker(node_id=1, host="h", port=1)], topics=topics)

    def version(self, request: type[FetchRequest], limit: int) -> int:
        return min(self._highest, limit)

    def send(self, request: FetchRequest, version: int) -> None:
        self._asked = decode(FetchRequest, version, encode_bytes(request, version))[0]
        self.sent.append(version)

    def receive(self, *, extra_ms: int, buffer: ReceiveBuffer | None) -> FetchResponse:
        part = PartitionData(partition_index=0, error_code=self._error_code, high_watermark=3, records=b"")
        asked = self._asked.topics[0]
        assert asked.topic == ("orders" if self.sent[-1] < 13 else "")
        found = FetchableTopicResponse(topic=asked.topic, topic_id=asked.topic_id, partitions=[part])
        return FetchResponse(responses=[found])


def test_a_reader_that_is_left_early_gives_up_its_request() -> None:
    time = Time()
    client = ScriptedClient(time, ten)
    reading = offsets(client, time, 0, 50)
    assert next(reading) == 0
    reading.close()  # type: ignore[attr-defined]
    assert client.abandoned == 1


def test_no_broker_at_the_address() -> None:
    with ReservedPort() as nobody:
        address = f"127.0.0.1:{nobody.number}"
        client = task_client(address, {"default.api.timeout.ms": "200"})
        with pytest.raises(ClientError, match=f"metadata within 200 ms.*{address}"):
            client.topics(["orders"])
        time = Time()
        driver = driver_client(address, clock=time, sleep=time.sleep)
        with pytest.raises(UnreachableError, match=rf"cannot be reached: .*{address}.*kafka\.bootstrap\.servers"):
            driver.topics(["orders"])
    assert time.monotonic() == pytest.approx(5.0, abs=0.2)
