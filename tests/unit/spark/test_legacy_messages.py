"""Message sets of formats 0 and 1, written by hand from their description."""

from __future__ import annotations

import struct
import zlib

import pyarrow as pa
import pytest

from klamm.model import TopicPartition
from klamm.protocol.compression import CompressionType, compress
from klamm.protocol.record_batch import Record, build_batch
from klamm.spark.decode.batch_scan import CorruptBatchError, NothingAborted, scan
from klamm.spark.decode.record_columns import RecordDecoder
from klamm.spark.source.topic_schema import ARROW_TYPES

TP = TopicPartition("old", 0)
COLUMNS = ("offset", "key", "value", "timestampType")
SCHEMA = pa.schema([pa.field(name, ARROW_TYPES[name]) for name in COLUMNS])


def message(
    offset: int, key: bytes | None, value: bytes | None, *, magic: int = 1, attributes: int = 0, timestamp: int = 5
) -> bytes:
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", timestamp) if magic else b"")
    for part in (key, value):
        body += struct.pack(">i", -1) if part is None else struct.pack(">i", len(part)) + part
    body = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", offset, len(body)) + body


def rows(data: bytes) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    while data:
        chunk = scan(memoryview(data), TP)
        if chunk.is_empty:
            break
        for part in RecordDecoder(TP, SCHEMA, batch_bytes=1 << 20).decode(chunk, 0, 1 << 40, NothingAborted()):
            found += [tuple(row.values()) for row in part.to_pylist()]
        data = data[chunk.consumed_bytes :]
    return found


def test_plain_messages_of_both_formats_and_a_batch_after_them() -> None:
    data = message(4, b"k", b"v", magic=0) + message(5, None, None) + message(6, b"", b"w", attributes=8)
    data += build_batch([Record(timestamp=1, value=b"new")], base_offset=7)
    expected = [(4, b"k", b"v", 0), (5, None, None, 0), (6, b"", b"w", 1), (7, None, b"new", 0)]
    assert rows(data) == expected
    assert rows(data[:-1]) == expected[:-1]


@pytest.mark.parametrize("codec", [CompressionType.GZIP, CompressionType.SNAPPY, CompressionType.LZ4])
def test_compressed_sets(codec: CompressionType) -> None:
    relative = b"".join(message(i, b"k", b"v%d" % i) for i in range(3))
    absolute = b"".join(message(20 + i, b"k", b"v%d" % i, magic=0) for i in range(3))
    data = message(12, None, compress(codec, relative), attributes=codec)
    data += message(22, None, compress(codec, absolute), magic=0, attributes=codec)
    assert [row[0] for row in rows(data)] == [10, 11, 12, 20, 21, 22]


@pytest.mark.parametrize("position", range(0, 34))
def test_damage_is_reported_or_ends_the_set(position: int) -> None:
    data = bytearray(message(4, b"k", b"value"))
    data[position] ^= 0x41
    try:
        found = rows(bytes(data))
    except CorruptBatchError:
        return
    assert found == [] or position < 8
