"""Record batches against two independent codecs (kafka-python, aiokafka), and what broken ones give."""

from __future__ import annotations

import struct
import warnings
import zlib
from collections.abc import Callable
from typing import Any

import crc32c
import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder

from klamm.errors import ProtocolError
from klamm.protocol import record_batch
from klamm.protocol.compression import CompressionType, compress, decompress
from klamm.protocol.record_batch import (
    RECORD_BATCH_OVERHEAD,
    Record,
    RecordBatch,
    TimestampType,
    batches,
    build_batch,
    build_batch_in_steps,
    encode_record,
    increment_sequence,
    next_batch,
    records,
    with_max_timestamp,
)
from tests.support.record_batches import assign_offsets

with warnings.catch_warnings():
    # kafka-python reads its own schemas through a deprecated function when it is imported
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

CODECS = list(CompressionType)
ROWS = [
    Record(timestamp=1_700_000_000_000, key=b"k", value=b"v" * 200, headers=(("h", b"1"), ("h", None), ("", b""))),
    Record(timestamp=1_700_000_000_005, key=None, value=None),
    Record(timestamp=1_699_999_999_990, key=b"", value=b""),
    Record(timestamp=1_700_000_000_001, key=b"big", value=bytes(range(256)) * 1000),
]


def first(data: bytes | bytearray) -> RecordBatch:
    batch = next_batch(memoryview(data))
    assert batch is not None
    return batch


def content(rows: list[Record]) -> list[tuple[Any, ...]]:
    return [(r.timestamp, r.key, r.value, [tuple(h) for h in r.headers]) for r in rows]


def theirs(batch: Any) -> list[tuple[Any, ...]]:
    return [(r.timestamp, r.key, r.value, [tuple(h) for h in r.headers]) for r in batch]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("parser", [KafkaPythonBatch, AioBatch])
def test_our_batches_are_readable_by_others(codec: CompressionType, parser: Callable[[bytearray], Any]) -> None:
    data = build_batch(ROWS, base_offset=7, compression=codec, producer_id=9, producer_epoch=2, base_sequence=5)
    other = parser(bytearray(data))
    assert other.validate_crc()
    assert other.base_offset == 7
    assert theirs(other) == content(ROWS)


@pytest.mark.parametrize("codec", CODECS)
def test_batches_of_kafka_python_are_readable(codec: CompressionType) -> None:
    builder = KafkaPythonBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=True,
        producer_id=4,
        producer_epoch=3,
        base_sequence=8,
        batch_size=1 << 20,
    )
    check_built(builder)


@pytest.mark.parametrize("codec", CODECS)
def test_batches_of_aiokafka_are_readable(codec: CompressionType) -> None:
    builder = AioBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=1,
        producer_id=4,
        producer_epoch=3,
        base_sequence=8,
        batch_size=1 << 20,
    )
    check_built(builder)


def check_built(builder: Any) -> None:
    for i, row in enumerate(ROWS):
        headers = [(k, v) for k, v in row.headers if v is not None]
        builder.append(i, timestamp=row.timestamp, key=row.key, value=row.value, headers=headers)
    batch = first(bytes(builder.build()))
    assert batch.is_valid()
    assert (batch.record_count, batch.last_offset, batch.last_sequence) == (4, 3, 11)
    assert (batch.producer_id, batch.producer_epoch, batch.is_transactional) == (4, 3, True)
    assert batch.max_timestamp == 1_700_000_000_005
    expected = [(r.timestamp, r.key, r.value, [h for h in r.headers if h[1] is not None]) for r in ROWS]
    assert content(list(records(batch))) == expected


def test_an_uncompressed_batch_is_the_same_bytes_as_kafka_pythons() -> None:
    builder = KafkaPythonBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    for i, row in enumerate(ROWS):
        builder.append(i, timestamp=row.timestamp, key=row.key, value=row.value, headers=list(row.headers))
    other = bytes(builder.build())
    epoch = struct.unpack_from(">i", other, 12)[0]
    assert build_batch(ROWS, partition_leader_epoch=epoch) == other


@pytest.mark.parametrize("count", [1, 9, 10, 11, 35])
def test_a_batch_that_is_built_in_steps_has_the_same_bytes(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [Record(timestamp=7 + n % 4, key=b"k%d" % n, value=b"v" * n, headers=(("h", b"x"),)) for n in range(count)]
    encoded = 0

    def noted(record: Record, offset_delta: int, timestamp_delta: int) -> bytes:
        nonlocal encoded
        encoded += 1
        return encode_record(record, offset_delta, timestamp_delta)

    monkeypatch.setattr(record_batch, "encode_record", noted)
    steps = build_batch_in_steps(rows, 10)
    seen = []
    while True:
        try:
            next(steps)
        except StopIteration as done:
            seen.append(encoded)
            built = done.value
            break
        seen.append(encoded)
    assert seen == [*range(10, count, 10), count]
    assert built == build_batch(rows)


def test_offsets_and_epoch_are_outside_the_checksum() -> None:
    data = bytearray(build_batch(ROWS))
    assign_offsets(data, 1 << 40, 17)
    batch = first(data)
    assert batch.is_valid()
    assert (batch.base_offset, batch.partition_leader_epoch) == (1 << 40, 17)
    assert [r.offset - (1 << 40) for r in records(batch)] == [0, 1, 2, 3]


def test_log_append_time_replaces_every_timestamp() -> None:
    batch = first(with_max_timestamp(first(build_batch(ROWS)), TimestampType.LOG_APPEND_TIME, 123))
    assert batch.is_valid()
    assert batch.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert {r.timestamp for r in records(batch)} == {123}


def test_batches_leave_out_an_unfinished_one() -> None:
    one, two = build_batch(ROWS), build_batch(ROWS[:1], base_offset=4)
    assert [b.base_offset for b in batches(one + two)] == [0, 4]
    for cut in range(1, len(two)):
        assert [b.base_offset for b in batches((one + two)[:-cut])] == [0]


def test_an_empty_batch_keeps_its_offsets() -> None:
    batch = first(
        build_batch([], base_offset=10, last_offset_delta=4, producer_id=1, producer_epoch=0, base_sequence=0)
    )
    assert batch.is_valid()
    assert (batch.last_offset, batch.record_count, list(records(batch))) == (14, 0, [])


def test_the_delete_horizon_is_the_base_timestamp() -> None:
    rows = [r._replace(timestamp=t) for r, t in zip(ROWS, (5, 6, 7, 8), strict=True)]
    batch = first(build_batch(rows, delete_horizon_ms=1000))
    assert batch.delete_horizon_ms == 1000
    assert [r.timestamp for r in records(batch)] == [5, 6, 7, 8]


def test_sequences_wrap_around() -> None:
    assert increment_sequence(5, 3) == 8
    assert increment_sequence(0x7FFFFFFF, 1) == 0
    assert increment_sequence(0x7FFFFFFE, 3) == 1


@pytest.mark.parametrize("codec", CODECS[1:])
@pytest.mark.parametrize("size", [0, 1, 1000, 65_536, 200_000, 1_000_001])
def test_codecs_round_trip(codec: CompressionType, size: int) -> None:
    data = (b"abcdefgh%d" % size) * (size // 8 + 1)
    data = data[:size]
    assert bytes(decompress(codec, compress(codec, data))) == data


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_is_stopped_at_the_cap(codec: CompressionType) -> None:
    data = compress(codec, bytes(5_000_000))
    assert len(decompress(codec, data, 5_000_000)) == 5_000_000
    with pytest.raises(ProtocolError, match="more than the 4999999 bytes"):
        decompress(codec, data, 4_999_999)


def test_snappy_without_framing_is_read() -> None:
    import cramjam

    raw = bytes(cramjam.snappy.compress_raw(b"hello" * 100))
    assert bytes(decompress(CompressionType.SNAPPY, raw)) == b"hello" * 100


def test_gzip_of_several_members_is_read() -> None:
    packers = [zlib.compressobj(wbits=31) for _ in range(2)]
    data = b"".join(p.compress(b"x" * 10) + p.flush() for p in packers)
    assert bytes(decompress(CompressionType.GZIP, data)) == b"x" * 20


@pytest.mark.parametrize("codec", CODECS[1:])
def test_broken_data_gives_protocol_error_only(codec: CompressionType) -> None:
    data = compress(codec, bytes(range(256)) * 50)
    for cut in range(0, len(data) - 1, 7):
        damaged = bytearray(data)
        damaged[cut] ^= 0xFF
        for sample in (bytes(damaged), data[:cut]):
            try:
                decompress(codec, sample, 100_000)
            except ProtocolError:
                continue
    with pytest.raises(ProtocolError):
        decompress(7, data)


def test_a_damaged_batch_gives_protocol_error_only() -> None:
    data = build_batch(ROWS[:3])
    for i in range(RECORD_BATCH_OVERHEAD, len(data)):
        for value in (0x00, 0x7F, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[i] = value
            try:
                list(records(first(damaged)))
            except ProtocolError:
                continue


def test_a_record_count_beyond_the_bytes_is_refused_before_any_work() -> None:
    data = bytearray(build_batch(ROWS))
    struct.pack_into(">i", data, 57, 0x7FFFFFFF)
    with pytest.raises(ProtocolError, match="cannot hold"):
        next(records(first(data)))


@pytest.mark.parametrize(("position", "value"), [(16, 1), (16, 0), (16, 9), (8, 0)])
def test_bytes_that_are_not_a_batch_are_refused(position: int, value: int) -> None:
    data = bytearray(build_batch(ROWS[:1]))
    if position == 8:
        struct.pack_into(">i", data, 8, value)
    else:
        data[position] = value
    with pytest.raises(ProtocolError):
        next_batch(memoryview(data))


def test_the_checksum_is_crc32c_from_the_attributes_on() -> None:
    data = build_batch(ROWS)
    assert first(data).crc == crc32c.crc32c(data[21:])
    damaged = bytearray(data)
    damaged[-1] ^= 1
    assert not first(damaged).is_valid()
