"""Batches that cost more than their size suggests, or whose headers are false. Work is counted, not timed."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import crc32c
import pytest

from klamm.errors import ErrorCode, ProtocolError
from klamm.log import LogConfig, append_as_follower, append_as_leader
from klamm.log import validator as validator_module
from klamm.protocol import record_batch, record_scan
from klamm.protocol.compression import CompressionType, compress, decompress
from klamm.protocol.record_batch import HEADER, Record, TimestampType, build_batch, records
from tests.support.record_batches import assign_offsets
from tests.unit.log.harness import NOW, Bench, append, batch, read_batches

COMPACTED = LogConfig(cleanup_policy=frozenset({"compact"}))
BOUNDED = LogConfig(message_timestamp_before_max_ms=1000)
RECOMPRESSED = LogConfig(compression_type="lz4")


def raw_batch(
    body: bytes, count: int, *, codec: int = 0, base_timestamp: int = NOW, max_timestamp: int = NOW, attributes: int = 0
) -> bytes:
    """A batch with a right checksum around any bytes."""
    attributes |= codec
    fields = (0, 49 + len(body), -1, 2, 0, attributes, count - 1, base_timestamp, max_timestamp, -1, -1, -1, count)
    out = bytearray(HEADER.pack(*fields) + body)
    struct.pack_into(">I", out, 17, crc32c.crc32c(bytes(out[21:])))
    return bytes(out)


def small_records(count: int) -> bytes:
    return b"".join(record_batch.encode_record(Record(value=None, key=b""), i, 0) for i in range(count))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often batches were unpacked and records made."""
    counted = {"unpacked": 0, "records": 0}

    def unpack(*args: Any) -> Any:
        counted["unpacked"] += 1
        return decompress(*args)

    def record(*args: Any, **fields: Any) -> Record:
        counted["records"] += 1
        return Record(*args, **fields)

    monkeypatch.setattr(record_scan, "decompress", unpack)
    monkeypatch.setattr(record_batch, "decompress", unpack)
    monkeypatch.setattr(record_batch, "Record", record)
    return counted


@pytest.mark.parametrize("config", [COMPACTED, BOUNDED, RECOMPRESSED, LogConfig()])
def test_more_records_than_fit_uncompressed_are_refused_by_the_header(config: LogConfig, calls: dict[str, int]) -> None:
    log = Bench(config).open()
    data = raw_batch(compress(CompressionType.GZIP, bytes(1_400_000)), 200_000, codec=1)
    assert len(data) < 16_000
    result = append_as_leader(log, data, 0)
    assert result.error == ErrorCode.MESSAGE_TOO_LARGE
    assert "200000 records" in (result.error_message or "")
    assert calls == {"unpacked": 0, "records": 0}
    assert log.log_end_offset == 0


@pytest.mark.parametrize("config", [LogConfig(), COMPACTED, BOUNDED, RECOMPRESSED])
def test_records_are_checked_without_making_them(config: LogConfig, calls: dict[str, int]) -> None:
    log = Bench(config).open()
    append(log, raw_batch(compress(CompressionType.GZIP, small_records(500)), 500, codec=1))
    assert calls == {"unpacked": 1, "records": 0}
    assert log.log_end_offset == 500


@pytest.mark.parametrize("config", [LogConfig(), COMPACTED, BOUNDED, RECOMPRESSED])
def test_a_batch_that_unpacks_to_too_much_is_refused(config: LogConfig) -> None:
    log = Bench(config).open()
    data = raw_batch(compress(CompressionType.GZIP, bytes(40 << 20)), 1000, codec=1)
    result = append_as_leader(log, data, 0)
    assert result.error == ErrorCode.MESSAGE_TOO_LARGE
    assert "unpacks to more than the" in (result.error_message or "")


def test_record_errors_are_bounded() -> None:
    log = Bench(LogConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME)).open()
    result = append_as_leader(log, raw_batch(small_records(5000), 5000, attributes=record_batch.TIMESTAMP_TYPE_BIT), 0)
    assert result.error == ErrorCode.INVALID_TIMESTAMP
    assert len(result.record_errors) == 1000
    compacted = Bench(COMPACTED).open()
    keyless = b"".join(record_batch.encode_record(Record(value=b""), i, 0) for i in range(5000))
    result = append_as_leader(compacted, raw_batch(keyless, 5000), 0)
    assert result.error == ErrorCode.INVALID_RECORD
    assert len(result.record_errors) == 1000


@pytest.mark.parametrize(
    "body",
    [
        b"\x00" * 40,
        b"garbage that is no record at all, but long enough",
        small_records(3)[:-1],
        small_records(3) + b"\x00",
        small_records(3)[1:] + b"\x0c",
        b"\xff" * 40,
        b"".join(record_batch.encode_record(Record(value=b"x"), 7, 0) for _ in range(3)),
    ],
)
@pytest.mark.parametrize("kind", ["plain", "append time", "compressed and compacted"])
def test_bodies_that_are_no_records_are_refused(body: bytes, kind: str) -> None:
    config = {
        "plain": LogConfig(),
        "append time": LogConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME),
        "compressed and compacted": COMPACTED,
    }[kind]
    codec = 1 if config is COMPACTED else 0
    data = raw_batch(compress(CompressionType(codec), body), 3, codec=codec)
    log = Bench(config).open()
    assert append_as_leader(log, data, 0).error == ErrorCode.INVALID_RECORD
    assert log.log_end_offset == 0


def test_records_of_all_shapes_pass() -> None:
    rows = [
        Record(timestamp=NOW + i, key=key, value=value, headers=headers)
        for i, (key, value, headers) in enumerate(
            [
                (None, None, ()),
                (b"", b"", (("", None), ("h", b""), ("h" * 300, b"v" * 9000))),
                (b"k" * 70, b"v" * 20_000, ()),
                (b"k", b"v" * 3_000_000, (("a", b"b"),)),
            ]
        )
    ]
    for order in (rows, rows[::-1]):
        log = Bench(LogConfig(max_message_bytes=1 << 23)).open()
        append(log, build_batch([r._replace(offset=-1) for r in order]))
        [stored] = read_batches(log)
        assert [r.value for r in records(stored)] == [r.value for r in order]


@pytest.mark.parametrize("codec", [0, 1])
@pytest.mark.parametrize("said", [1 << 62, NOW - 5])
def test_times_that_cannot_be_true_are_taken_from_the_records(codec: int, said: int) -> None:
    body = b"".join(record_batch.encode_record(Record(value=b"x"), i, d) for i, d in enumerate((0, 30, 20)))
    log = Bench().open()
    append(log, raw_batch(compress(CompressionType(codec), body), 3, codec=codec, max_timestamp=said))
    [stored] = read_batches(log)
    assert stored.is_valid()
    assert stored.max_timestamp == NOW + 30
    found = log.max_timestamp_offset()
    assert not isinstance(found, ErrorCode) and found is not None
    assert (found.timestamp, found.offset) == (NOW + 30, 1)


@pytest.mark.parametrize("codec", [0, 1])
@pytest.mark.parametrize(
    ("timestamp", "stored_max"),
    [(-5, -1), (-2, -1), (-(1 << 63), -1), (-1, -1), (0, 0), ((1 << 63) - 1, (1 << 63) - 1)],
)
def test_times_at_the_edges_are_stored_as_by_kafka(codec: int, timestamp: int, stored_max: int) -> None:
    """Apache Kafka 3.9.2 accepts all of them; a search for the newest timestamp finds no record before 1970."""
    log = Bench().open()
    append(log, build_batch([Record(timestamp=timestamp, value=b"x")], compression=codec))
    [stored] = read_batches(log)
    assert (stored.base_timestamp, stored.max_timestamp) == (timestamp, stored_max)
    assert stored.is_valid()
    found = log.max_timestamp_offset()
    if timestamp < -1:
        assert found is None
    else:
        assert not isinstance(found, ErrorCode) and found is not None
        assert (found.timestamp, found.offset) == (stored_max, 0)


@pytest.mark.parametrize("bit", [6, *range(7, 16)])
def test_reserved_attributes_are_stored_as_by_kafka(bit: int) -> None:
    """Apache Kafka 3.9.2 accepts and keeps them; consumers ignore them."""
    attributes = (1 << bit) - (1 << 16 if bit == 15 else 0)
    log = Bench().open()
    append(log, raw_batch(small_records(3), 3, attributes=attributes))
    [stored] = read_batches(log)
    assert (stored.attributes, stored.is_valid()) == (attributes, True)


@pytest.mark.parametrize(
    ("config", "attributes"),
    [
        (LogConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME), record_batch.TIMESTAMP_TYPE_BIT),
        (LogConfig(compression_type="zstd"), CompressionType.ZSTD),
    ],
)
def test_a_header_that_is_written_again_loses_reserved_attributes(config: LogConfig, attributes: int) -> None:
    """As in Apache Kafka 3.9.2."""
    log = Bench(config).open()
    append(log, raw_batch(small_records(3), 3, attributes=-1 << 7))
    [stored] = read_batches(log)
    assert (stored.attributes, stored.is_valid()) == (attributes, True)


@pytest.mark.parametrize("codec", [0, 1])
@pytest.mark.parametrize(("base", "newest"), [(-5, -1), (-1, -1)])
def test_a_first_time_before_1970_is_not_believed(codec: int, base: int, newest: int) -> None:
    """The header reports the present as the newest time, the records do not. Apache Kafka 3.9.2 stores the same."""
    body = compress(CompressionType(codec), record_batch.encode_record(Record(value=b"x"), 0, 0))
    log = Bench().open()
    append(log, raw_batch(body, 1, codec=codec, base_timestamp=base, max_timestamp=NOW))
    [stored] = read_batches(log)
    assert (stored.base_timestamp, stored.max_timestamp, stored.is_valid()) == (base, newest, True)


def test_records_of_the_future_keep_their_times() -> None:
    log = Bench().open()
    later = NOW + 10 * 86_400_000
    append(log, batch(b"x", b"y", timestamp=later))
    [stored] = read_batches(log)
    assert stored.max_timestamp == later + 1


def test_a_search_by_time_asks_the_records_of_few_batches(calls: dict[str, int]) -> None:
    log = Bench().open()
    body = compress(CompressionType.GZIP, small_records(3))
    for _ in range(50):
        append(log, raw_batch(body, 3, codec=1, max_timestamp=NOW + 1000))
    calls["unpacked"] = 0
    found = log.offset_for_timestamp(NOW + 500)
    assert not isinstance(found, ErrorCode) and found is not None
    assert (found.timestamp, found.offset) == (NOW + 1000, 0), "what the header says, since no record is that new"
    log.update_high_watermark(log.log_end_offset)
    log.increment_log_start_offset(4)
    found = log.offset_for_timestamp(NOW + 500)
    assert not isinstance(found, ErrorCode) and found is not None
    assert found.offset == 6
    log.max_timestamp_offset()
    assert calls["unpacked"] <= 4
    assert calls["records"] == 0


def test_a_search_by_time_survives_a_batch_that_cannot_be_unpacked() -> None:
    """No leader accepts such a batch today, but logs that other brokers wrote may have one."""
    log = Bench().open()
    append(log, batch(b"old", timestamp=NOW - 1000))
    replicated = bytearray(raw_batch(b"no gzip", 3, codec=1))
    assign_offsets(replicated, 1, 0)
    assert append_as_follower(log, bytes(replicated)).error == ErrorCode.NONE
    found = log.offset_for_timestamp(NOW)
    assert not isinstance(found, ErrorCode) and found is not None
    assert found.offset == 1
    newest = log.max_timestamp_offset()
    assert not isinstance(newest, ErrorCode) and newest is not None
    assert newest.offset == 3


def test_another_codec_keeps_the_records() -> None:
    for target in ("gzip", "snappy", "lz4", "zstd", "uncompressed"):
        log = Bench(LogConfig(compression_type=target)).open()
        rows = [Record(timestamp=NOW + t, key=b"k", value=b"v" * 50) for t in (5, 9, 7)]
        append(
            log, build_batch(rows, compression=CompressionType.GZIP, producer_id=3, producer_epoch=1, base_sequence=0)
        )
        [stored] = read_batches(log)
        expected = CompressionType.NONE if target == "uncompressed" else CompressionType[target.upper()]
        assert (stored.compression, stored.max_timestamp, stored.producer_id) == (expected, NOW + 9, 3)
        assert stored.is_valid()
        assert [(r.offset, r.timestamp, r.value) for r in records(stored)] == [
            (i, NOW + t, b"v" * 50) for i, t in enumerate((5, 9, 7))
        ]


def test_gzip_of_many_members_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = 0
    new_unpacker = zlib.decompressobj

    def count(*args: Any, **options: Any) -> Any:
        nonlocal opened
        opened += 1
        return new_unpacker(*args, **options)

    monkeypatch.setattr(zlib, "decompressobj", count)
    member = compress(CompressionType.GZIP, b"x")
    assert bytes(decompress(CompressionType.GZIP, member * 3)) == b"x" * 3
    opened = 0
    with pytest.raises(ProtocolError, match="members"):
        decompress(CompressionType.GZIP, member * 20_000)
    assert opened <= 64


def test_the_limit_follows_max_message_bytes() -> None:
    assert validator_module.max_unpacked_bytes(LogConfig(max_message_bytes=100)) == 32 << 20
    assert validator_module.max_unpacked_bytes(LogConfig(max_message_bytes=1 << 30)) == 100 << 20
