"""Reading segment files: with transactions, compaction, retention and damage, on files written by hand."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from uuid import UUID

import crc32c
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructType

from klamm.client.connection_pool import ClientConfig
from klamm.log.files import OsFiles
from klamm.log.indexes import OffsetIndex
from klamm.log.transaction_index import AbortedTxn, TransactionIndex
from klamm.model import TopicPartition, encode_topic_id
from klamm.protocol.compression import CompressionType
from klamm.protocol.record_batch import (
    ATTRIBUTES_POSITION,
    CRC_POSITION,
    RECORD_BATCH_OVERHEAD,
    Record,
    build_batch,
)
from klamm.spark.decode.batch_scan import (
    AbortedByMarkers,
    AbortedIntervals,
    Chunk,
    CorruptBatchError,
    NothingAborted,
    scan,
)
from klamm.spark.decode.record_columns import RecordDecoder
from klamm.spark.source import direct_files
from klamm.spark.source.data_loss import DataLossError
from klamm.spark.source.direct_files import DirectReadError, is_this_machine, list_segments
from klamm.spark.source.direct_read import DirectReader
from klamm.spark.source.read_options import ReadOptions, parse_read_options
from klamm.spark.source.reader import RangePartition, read_range
from klamm.spark.source.source_offsets import OffsetRange

TP = TopicPartition("orders", 0)
TOPIC_ID = UUID(int=77)
SCHEMA = pa.schema([pa.field("offset", pa.int64()), pa.field("value", pa.binary())])


class FakeClient:
    """The answers of a leader on this machine about one log."""

    config = ClientConfig(bootstrap=())
    cluster_id = "cluster"

    def __init__(self, log_dir: Path, first: int, last: int, stable: int | None = None) -> None:
        self.topic_ids = {"orders": TOPIC_ID}
        self._log_dir, self.first, self._last = log_dir, first, last
        self._stable = last if stable is None else stable
        self.host = "127.0.0.1"
        self.leader = 1

    def metadata(self, topics: Sequence[str]) -> None:
        pass

    def leader_address(self, tp: TopicPartition) -> tuple[int, str, int]:
        return self.leader, self.host, 9092

    def log_dirs(self, tp: TopicPartition) -> list[str]:
        return [str(self._log_dir)]

    def earliest(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return {TP: self.first}

    def latest(self, tps: Sequence[TopicPartition], isolation: int = 0) -> dict[TopicPartition, int]:
        return {TP: self._stable if isolation else self._last}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "orders-0"
    made.mkdir()
    (tmp_path / "meta.properties").write_text("version=0\nbroker.id=1\ncluster.id=cluster\n")
    (made / "partition.metadata").write_text(f"version: 0\ntopic_id: {encode_topic_id(TOPIC_ID)}\n")
    return made


def batch(first: int, count: int, **options: Any) -> bytes:
    return build_batch(
        [Record(timestamp=1, value=b"v%d" % (first + i)) for i in range(count)], base_offset=first, **options
    )


def marker(offset: int, producer_id: int, *, commit: bool) -> bytes:
    key = struct.pack(">hh", 0, 1 if commit else 0)
    record = Record(timestamp=1, key=key, value=struct.pack(">hi", 0, 0))
    return build_batch([record], base_offset=offset, producer_id=producer_id, is_control=True, is_transactional=True)


def segment(folder: Path, base: int, *batches: bytes) -> Path:
    path = folder / f"{base:020d}.log"
    path.write_bytes(b"".join(batches))
    return path


def options(**given: str) -> ReadOptions:
    base = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "orders", "readMode": "direct"}
    return parse_read_options(base | given, streaming=False)


def reader(client: Any, start: int, end: int, *, topic_id: UUID | None = TOPIC_ID, **given: str) -> DirectReader:
    chosen = options(**{"batchBytes": "1024", **given})
    decoder = RecordDecoder(TP, SCHEMA, batch_bytes=1024)
    return DirectReader(client, OffsetRange(TP, start, end), decoder, chosen, topic_id=topic_id)


def offsets(client: Any, start: int, end: int, **given: str) -> list[int]:
    found = reader(client, start, end, topic_id=TOPIC_ID, **given).batches()
    return [offset for part in found for offset in part.column(0).to_pylist()]


def test_segments_are_read_in_order_up_to_the_high_watermark(folder: Path) -> None:
    segment(folder, 0, batch(0, 50), batch(50, 50))
    segment(folder, 100, batch(100, 20), batch(120, 30))
    client = FakeClient(folder.parent, 0, 130)
    assert offsets(client, 0, 130) == list(range(130))
    assert offsets(client, 37, 121) == list(range(37, 121))
    with pytest.raises(DirectReadError, match="up to offset 130"):
        offsets(client, 100, 150)


def test_a_batch_larger_than_the_buffer(folder: Path) -> None:
    segment(folder, 0, batch(0, 500), batch(500, 3))
    assert offsets(FakeClient(folder.parent, 0, 503), 0, 503) == list(range(503))


def test_an_index_shortens_the_way_and_a_wrong_one_does_no_harm(folder: Path) -> None:
    parts = [batch(i * 10, 10) for i in range(20)]
    segment(folder, 0, *parts)
    index = OffsetIndex(OsFiles(), str(folder / f"{0:020d}.index"), 0, 1 << 20)
    index.create()
    index.append(119, sum(map(len, parts[:11])))
    index.write_out()
    client = FakeClient(folder.parent, 0, 200)
    assert offsets(client, 125, 200) == list(range(125, 200))
    for wrong in (7, sum(map(len, parts[:15]))):
        index.create()
        index.append(119, wrong)
        index.write_out()
        assert offsets(client, 125, 200) == list(range(125, 200))


def test_compaction_gaps_are_no_loss(folder: Path) -> None:
    kept = [Record(3, 1, b"a", b"x"), Record(8, 1, b"b", b"y")]
    segment(folder, 0, build_batch(kept, base_offset=0, last_offset_delta=80))
    segment(folder, 100, batch(100, 5))
    assert offsets(FakeClient(folder.parent, 0, 105), 0, 105) == [3, 8, *range(100, 105)]


def test_a_segment_replaced_by_compaction_is_read_again(folder: Path) -> None:
    """The old file is read to its end while the cleaner merges it with its successor, which is then gone."""
    segment(folder, 0, batch(0, 50))
    second = segment(folder, 50, batch(50, 50))
    segment(folder, 100, batch(100, 10))
    reading = reader(FakeClient(folder.parent, 0, 110), 0, 110).batches()
    found = next(reading).column(0).to_pylist()
    merged = build_batch([Record(0, 1, None, b"a"), Record(60, 1, None, b"b")], base_offset=0, last_offset_delta=99)
    swap = folder / f"{0:020d}.log.swap"
    swap.write_bytes(merged)
    second.rename(second.with_suffix(".log.deleted"))
    swap.rename(folder / f"{0:020d}.log")
    found += [offset for part in reading for offset in part.column(0).to_pylist()]
    assert [o for o in found if o >= 50] == [60, *range(100, 110)]
    assert [o for o in found if o < 50] == list(range(50))


def test_nothing_is_listed_while_files_change_places(folder: Path) -> None:
    segment(folder, 100, batch(100, 1))
    swap = folder / f"{0:020d}.log.swap"
    swap.write_bytes(batch(0, 1))
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            swap.rename(folder / f"{0:020d}.log")

    assert [s.base_offset for s in list_segments(folder, sleep=wait)] == [0, 100]
    assert len(waits) >= 3


def test_retention_during_the_read_is_reported_with_its_range(folder: Path) -> None:
    first = segment(folder, 0, batch(0, 100))
    second = segment(folder, 100, batch(100, 100))
    segment(folder, 200, batch(200, 10))
    client = FakeClient(folder.parent, 0, 210)
    reading = reader(client, 0, 210).batches()
    next(reading)
    first.unlink()
    second.unlink()
    client.first = 200
    with pytest.raises(DataLossError, match=r"orders-0: the offsets 100 to 199 are gone: retention"):
        list(reading)


def test_retention_without_failing(folder: Path) -> None:
    segment(folder, 200, batch(200, 10))
    client = FakeClient(folder.parent, 200, 210)
    assert offsets(client, 0, 210, failOnDataLoss="false") == list(range(200, 210))


def test_files_that_are_missing_without_a_word_of_the_leader_are_not_passed_over(folder: Path) -> None:
    segment(folder, 100, batch(100, 10))
    with pytest.raises(DirectReadError, match="begin at 100, after 0"):
        offsets(FakeClient(folder.parent, 0, 110), 0, 110)


def test_a_leader_that_moves_before_it_reports_its_watermark(folder: Path) -> None:
    """The old leader's files may end with records that the new one does not have, below the new one's watermark."""
    segment(folder, 0, batch(0, 10))
    client = FakeClient(folder.parent, 0, 10)
    said = client.latest

    def moved(tps: Sequence[TopicPartition], isolation: int = 0) -> dict[TopicPartition, int]:
        client.leader = 2
        return said(tps, isolation)

    client.latest = moved  # type: ignore[method-assign]
    with pytest.raises(DirectReadError, match="Broker 1 no longer leads orders-0"):
        offsets(client, 0, 10)


def test_read_committed_skips_aborted_transactions_and_markers(folder: Path) -> None:
    log = [
        batch(0, 2, producer_id=1, is_transactional=True),
        batch(2, 2, producer_id=2, is_transactional=True),
        batch(4, 1),
        marker(5, 1, commit=False),
        marker(6, 2, commit=True),
        batch(7, 1, producer_id=1, is_transactional=True),
        marker(8, 1, commit=True),
        batch(9, 1, producer_id=3, is_transactional=True),
    ]
    segment(folder, 0, *log)
    index = TransactionIndex(OsFiles(), str(folder / f"{0:020d}.txnindex"), 0, exists=False)
    index.append(AbortedTxn(1, 0, 5, 0))
    client = FakeClient(folder.parent, 0, 10, stable=9)
    committed = {"kafka.isolation.level": "read_committed"}
    assert offsets(client, 0, 9, **committed) == [2, 3, 4, 7]
    assert offsets(client, 0, 10) == [0, 1, 2, 3, 4, 7, 9]
    with pytest.raises(DirectReadError, match="up to offset 9"):
        offsets(client, 0, 10, **committed)
    chunk = scan(memoryview(b"".join(log)), TP)
    assert _offsets(chunk, AbortedByMarkers([(1, 0)], TP)) == [2, 3, 4, 7, 9]
    assert _offsets(chunk, AbortedByMarkers([(2, 2), (1, 0)], TP)) == [4, 7, 9]
    assert _offsets(chunk, AbortedIntervals([(1, 0, 5)])) == [2, 3, 4, 7, 9]
    assert _offsets(chunk, NothingAborted()) == [0, 1, 2, 3, 4, 7, 9]


def _offsets(chunk: Chunk, aborted: Any) -> list[int]:
    decoder = RecordDecoder(TP, SCHEMA, batch_bytes=1 << 20)
    return [o for part in decoder.decode(chunk, 0, 100, aborted) for o in part.column(0).to_pylist()]


def test_damage_is_reported_and_leaves_the_rest_to_fetch(folder: Path) -> None:
    path = segment(folder, 0, batch(0, 100), batch(100, 100))
    damaged = bytearray(path.read_bytes())
    damaged[-10] ^= 1
    path.write_bytes(damaged)
    reading = reader(FakeClient(folder.parent, 0, 200), 0, 200)
    with pytest.raises(DirectReadError, match="checksum"):
        list(reading.batches())
    assert reading.offset <= 100


def test_batches_that_were_written_broken_leave_the_rest_to_fetch_from_where_they_begin(folder: Path) -> None:
    """Their checksums are right: it shows when they are decoded."""
    segment(folder, 0, batch(0, 100), _promising_too_much(100), batch(200, 10))
    reading = reader(FakeClient(folder.parent, 0, 210), 0, 210)
    found: list[int] = []
    with pytest.raises(DirectReadError, match="orders-0 at offset 100"):
        for part in reading.batches():
            found += part.column(0).to_pylist()
    assert found == list(range(100)) and reading.offset == 100


def test_no_reader_continues_in_the_middle_of_a_returned_batch(folder: Path) -> None:
    """The rows before the broken batch are with Spark: neither are they given twice, nor is one left out."""
    segment(folder, 0, batch(0, 100), _promising_too_much(100))
    reading = reader(FakeClient(folder.parent, 0, 200), 0, 200, batchBytes=str(1 << 20))
    found: list[int] = []
    with pytest.raises(CorruptBatchError, match="orders-0 at offset 100"):
        for part in reading.batches():
            found += part.column(0).to_pylist()
    assert found == list(range(100))


def _promising_too_much(offset: int) -> bytes:
    """A batch with a right checksum whose header promises a record more than there is."""
    made = bytearray(batch(offset, 100))
    struct.pack_into(">i", made, RECORD_BATCH_OVERHEAD - 4, 101)
    struct.pack_into(">I", made, CRC_POSITION, crc32c.crc32c(made[ATTRIBUTES_POSITION:]))
    return bytes(made)


def test_a_broken_marker_is_reported_with_its_partition() -> None:
    made = bytearray(marker(2, 1, commit=False))
    made[RECORD_BATCH_OVERHEAD] = 0x7E
    struct.pack_into(">I", made, CRC_POSITION, crc32c.crc32c(made[ATTRIBUTES_POSITION:]))
    log = batch(0, 2, producer_id=1, is_transactional=True) + made
    with pytest.raises(CorruptBatchError, match="marker of orders-0 at offset 2 is broken"):
        _offsets(scan(memoryview(log), TP), AbortedByMarkers([(1, 0)], TP))


def test_the_files_of_a_topic_that_was_created_again_since_the_plan(folder: Path) -> None:
    segment(folder, 0, batch(0, 10))
    client = FakeClient(folder.parent, 0, 10)
    with pytest.raises(DirectReadError, match="another topic of this name"):
        list(reader(client, 0, 10, topic_id=UUID(int=76)).batches())
    assert offsets(client, 0, 10) == list(range(10))


def test_a_batch_that_unpacks_to_more_than_is_allowed_names_the_option() -> None:
    chunk = scan(memoryview(batch(0, 500, compression=CompressionType.GZIP)), TP)
    for allowed in 1024, 1 << 20:
        decoder = RecordDecoder(TP, SCHEMA, batch_bytes=1 << 20, max_unpacked_bytes=allowed)
        decoded = decoder.decode(chunk, 0, 500, NothingAborted())
        if allowed == 1024:
            with pytest.raises(
                CorruptBatchError, match=r"orders-0 at offset 0 unpacks to more than 1024 .*maxUnpacked"
            ):
                list(decoded)
        else:
            assert sum(part.num_rows for part in decoded) == 500


@pytest.mark.parametrize(("topic_id", "why"), [(76, "another topic of this name"), (77, "maxUnpackedBytes")])
def test_a_task_knows_its_topic_and_its_limits(
    folder: Path, monkeypatch: pytest.MonkeyPatch, topic_id: int, why: str
) -> None:
    segment(folder, 0, batch(0, 500, compression=CompressionType.GZIP))
    client = FakeClient(folder.parent, 0, 500)
    monkeypatch.setattr("klamm.spark.source.worker.borrowed_client", lambda options: nullcontext(client))
    task = RangePartition("orders", 0, 0, 500, UUID(int=topic_id))
    with pytest.raises(DirectReadError, match=why):
        list(read_range(options(maxUnpackedBytes="1024"), StructType().add("offset", LongType()), None, task))


@pytest.mark.parametrize("topic_id", [TOPIC_ID, None])
def test_a_topic_that_is_created_again_during_the_read(folder: Path, topic_id: UUID | None) -> None:
    segment(folder, 0, batch(0, 50))
    segment(folder, 50, batch(50, 50))
    reading = reader(FakeClient(folder.parent, 0, 100), 0, 100, topic_id=topic_id)
    batches = reading.batches()
    next(batches)
    folder.rename(folder.with_name("orders-0.deleted"))
    folder.mkdir()
    (folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {encode_topic_id(UUID(int=78))}\n")
    segment(folder, 50, batch(50, 50))
    with pytest.raises(DirectReadError, match="another topic of this name"):
        list(batches)
    assert reading.offset == 50


def test_a_file_that_ends_too_early(folder: Path) -> None:
    segment(folder, 0, batch(0, 100)[:-5])
    with pytest.raises(DirectReadError, match="end at offset 0"):
        offsets(FakeClient(folder.parent, 0, 100), 0, 100)


def _elsewhere(client: FakeClient, folder: Path) -> None:
    client.host = "192.0.2.77"


def _other_topic(client: FakeClient, folder: Path) -> None:
    client.topic_ids = {"orders": UUID(int=78)}


def _other_broker(client: FakeClient, folder: Path) -> None:
    (folder.parent / "meta.properties").write_text("broker.id=2\ncluster.id=cluster\n")


def _other_cluster(client: FakeClient, folder: Path) -> None:
    (folder.parent / "meta.properties").write_text("broker.id=1\ncluster.id=another\n")


def _missing(client: FakeClient, folder: Path) -> None:
    folder.rename(folder.with_name("orders-1"))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_elsewhere, "not on this machine"),
        (_other_topic, "older topic"),
        (_other_broker, "belongs to broker 2"),
        (_other_cluster, "belongs to cluster another"),
        (_missing, "does not exist"),
    ],
)
def test_files_that_are_not_the_leaders_are_refused(
    folder: Path, change: Callable[[FakeClient, Path], None], why: str
) -> None:
    segment(folder, 0, batch(0, 1))
    client = FakeClient(folder.parent, 0, 1)
    change(client, folder)
    with pytest.raises(DirectReadError, match=why):
        offsets(client, 0, 1)


def test_a_mounted_directory_of_the_leader(folder: Path) -> None:
    segment(folder, 0, batch(0, 1))
    client = FakeClient(folder.parent, 0, 1)
    client.host = "192.0.2.77"
    assert offsets(client, 0, 1, logDirs=str(folder.parent)) == [0]


def test_addresses_of_this_machine() -> None:
    assert is_this_machine("127.0.0.1") and is_this_machine("localhost")
    assert not is_this_machine("192.0.2.77") and not is_this_machine("no.such.host.invalid")
    assert direct_files.is_this_machine("::1") in (True, False)
