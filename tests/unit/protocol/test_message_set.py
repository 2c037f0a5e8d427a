"""Message formats 0 and 1 against kafka-python's reader and writer of them."""

from __future__ import annotations

import contextlib
import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords

from klamm.errors import ProtocolError
from klamm.protocol.compression import CompressionType, UnpackedTooLargeError
from klamm.protocol.message_set import CorruptMessageError, from_batches, is_message_set, to_batch
from klamm.protocol.record_batch import LOG_OVERHEAD, Record, RecordBatch, TimestampType, build_batch, records

NOW = 1_700_000_000_000
LIMIT = 1 << 26
ROWS = [(b"k1", b"v1"), (None, b"v2"), (b"", None), (b"k4", b""), (b"k" * 200, b"v" * 5000)]


def message_set(magic: int, codec: int = 0, rows: list[tuple[bytes | None, bytes | None]] = ROWS) -> bytes:
    """The message set of an old producer."""
    builder = LegacyRecordBatchBuilder(magic, codec, 1 << 24)
    for i, (key, value) in enumerate(rows):
        builder.append(i, timestamp=NOW + i if magic else None, key=key, value=value)
    return bytes(builder.build())


def read(data: bytes) -> list[tuple[int, int | None, bytes | None, bytes | None]]:
    """The records that an old consumer reads from it."""
    found = []
    parts = MemoryRecords(data)
    while (batch := parts.next_batch()) is not None:
        found += [(r.offset, r.timestamp, r.key, r.value) for r in batch]
    return found


@pytest.mark.parametrize(
    ("magic", "codec"),
    [(m, c) for m in (0, 1) for c in list(CompressionType)[:3]] + [(1, CompressionType.LZ4)],
)
def test_produced_messages_become_one_batch(magic: int, codec: CompressionType) -> None:
    sent = message_set(magic, codec)
    assert is_message_set(sent)
    batch = RecordBatch(memoryview(to_batch(memoryview(sent), LIMIT).data))
    assert (batch.is_valid(), batch.compression, batch.record_count, batch.producer_id) == (True, codec, 5, -1)
    timestamps = [NOW + i for i in range(5)] if magic else [-1] * 5
    assert [(r.timestamp, r.key, r.value) for r in records(batch)] == [
        (timestamp, *row) for timestamp, row in zip(timestamps, ROWS, strict=True)
    ]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", list(CompressionType))
def test_batches_become_messages(magic: int, codec: CompressionType) -> None:
    rows = [Record(timestamp=NOW + i, key=k, value=v, headers=(("h", b"x"),)) for i, (k, v) in enumerate(ROWS)]
    data = build_batch(rows, base_offset=100, compression=codec) + build_batch(rows[:2], base_offset=110)
    got = read(from_batches(memoryview(data), magic, 102, 1 << 20).data)
    expected = [(102 + i, NOW + 2 + i, *ROWS[2 + i]) for i in range(3)]
    expected += [(110 + i, NOW + i, *ROWS[i]) for i in range(2)]
    assert got == [(offset, timestamp if magic else None, key, value) for offset, timestamp, key, value in expected]


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.ZSTD])
def test_gaps_of_compaction_stay(codec: CompressionType) -> None:
    rows = [Record(offset, NOW, b"k", b"v") for offset in (103, 107, 120)]
    data = build_batch(rows, base_offset=100, compression=codec, last_offset_delta=25)
    assert [row[0] for row in read(from_batches(memoryview(data), 1, 0, 1).data)] == [103, 107, 120]


def test_append_times_are_kept() -> None:
    data = build_batch(
        [Record(timestamp=1, value=b"v")], timestamp_type=TimestampType.LOG_APPEND_TIME, max_timestamp=NOW
    )
    assert read(from_batches(memoryview(data), 1, 0, 1).data) == [(0, NOW, None, b"v")]
    batch = RecordBatch(memoryview(to_batch(memoryview(from_batches(memoryview(data), 1, 0, 1).data), LIMIT).data))
    assert batch.timestamp_type is TimestampType.LOG_APPEND_TIME, "the validator decides"


def test_an_answer_ends_after_the_batch_that_fills_it() -> None:
    data = b"".join(build_batch([Record(value=b"v" * 100)] * 10, base_offset=10 * i) for i in range(10))
    assert len(read(from_batches(memoryview(data), 0, 0, 1).data)) == 10
    assert len(read(from_batches(memoryview(data), 0, 0, 1500).data)) == 20


def test_broken_sets_are_refused() -> None:
    good = message_set(1)
    wrong_crc = bytearray(good)
    wrong_crc[-1] ^= 1
    with pytest.raises(CorruptMessageError):
        to_batch(memoryview(bytes(wrong_crc)), LIMIT)
    for broken in (b"", good[:-1], good[:20], good + b"\0", message_set(1, 1) * 2, message_set(0) + message_set(1)):
        with pytest.raises(ProtocolError):
            to_batch(memoryview(broken), LIMIT)
    for magic, codec in ((0, CompressionType.LZ4), (1, CompressionType.ZSTD)):
        body = bytearray(message_set(magic, CompressionType.GZIP)[LOG_OVERHEAD + 4 :])
        body[1] = codec
        other = struct.pack(">qiI", 0, 4 + len(body), zlib.crc32(body)) + body
        with pytest.raises(ProtocolError, match=f"not available in message format {magic}"):
            to_batch(memoryview(other), LIMIT)
    with pytest.raises(UnpackedTooLargeError):
        to_batch(memoryview(message_set(1, CompressionType.GZIP, [(None, bytes(1 << 20))])), 1 << 16)


@settings(max_examples=200, deadline=None)
@given(
    magic=st.integers(0, 1),
    codec=st.sampled_from((0, 1, 2)),
    position=st.integers(0, 10_000),
    byte=st.integers(0, 255),
)
def test_damage_is_never_anything_but_a_protocol_error(magic: int, codec: int, position: int, byte: int) -> None:
    data = bytearray(message_set(magic, codec, ROWS[:3]))
    data[position % len(data)] = byte
    with contextlib.suppress(ProtocolError):
        to_batch(memoryview(bytes(data)), LIMIT)
