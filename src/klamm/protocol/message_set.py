"""Message formats 0 and 1, of clients from before Kafka 0.11: read into record batches and written from them.

A message set is a sequence of messages, each with its offset, size and CRC-32. The value of a compressed message is
another message set; offsets inside are absolute in format 0 and relative to the first one in format 1. Format 0 has no
timestamps, neither format has headers, producer ids or sequences.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from klamm.errors import ProtocolError
from klamm.protocol.compression import CompressionType, compress, decompress
from klamm.protocol.record_batch import (
    COMPRESSION_MASK,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    MAGIC_V2,
    NO_TIMESTAMP,
    OFFSET_AND_LENGTH,
    TIMESTAMP_TYPE_BIT,
    Record,
    RecordBatch,
    TimestampType,
    batches,
    build_batch,
    records,
)

_HEADER: Final = struct.Struct(">Ibb")
_TIMESTAMP: Final = struct.Struct(">q")
_SIZE: Final = struct.Struct(">i")
_CRC: Final = struct.Struct(">I")
_CRC_BYTES: Final = 4


class CorruptMessageError(ProtocolError):
    """The checksum of a message is wrong."""


class Message(NamedTuple):
    magic: int
    attributes: int
    timestamp: int
    key: memoryview | None
    value: memoryview | None


def messages(data: memoryview) -> Iterator[Message]:
    """Yield the messages of a set.

    Raises ProtocolError for other bytes and CorruptMessageError for a wrong checksum.
    """
    position = 0
    while position < len(data):
        if len(data) - position < LOG_OVERHEAD:
            raise ProtocolError("a message set ends in the middle of a message")
        size = OFFSET_AND_LENGTH.unpack_from(data, position)[1]
        start, end = position + LOG_OVERHEAD, position + LOG_OVERHEAD + size
        if size < _HEADER.size or end > len(data):
            raise ProtocolError(f"a message of {size} bytes does not fit into the {len(data) - start} that remain")
        yield _message(data[start:end])
        position = end


def _message(data: memoryview) -> Message:
    crc, magic, attributes = _HEADER.unpack_from(data)
    if zlib.crc32(data[_CRC_BYTES:]) != crc:
        raise CorruptMessageError(f"the checksum {crc:#010x} is not that of the message")
    position, timestamp = _HEADER.size, NO_TIMESTAMP
    try:
        if magic == 1:
            timestamp = _TIMESTAMP.unpack_from(data, position)[0]
            position += _TIMESTAMP.size
        elif magic != 0:
            raise ProtocolError(f"a message set has a message of format {magic}")
        key, position = _read_bytes(data, position)
        value, position = _read_bytes(data, position)
    except struct.error as e:
        raise ProtocolError("a message ends in the middle of a field") from e
    if position != len(data):
        raise ProtocolError("the length of a message is not the length of its fields")
    return Message(magic, attributes, timestamp, key, value)


def _read_bytes(data: memoryview, position: int) -> tuple[memoryview | None, int]:
    size = _SIZE.unpack_from(data, position)[0]
    position += _SIZE.size
    if size < 0:
        return None, position
    if position + size > len(data):
        raise ProtocolError(f"a field of {size} bytes reaches beyond its message")
    return data[position : position + size], position + size


class Conversion(NamedTuple):
    """Converted records, and the memory that the conversion needed besides its input."""

    data: bytes
    record_count: int
    memory_bytes: int


def to_batch(data: memoryview, max_unpacked: int) -> Conversion:
    """Convert a produced message set into one record batch with the same compression."""
    outer = list(messages(data))
    if not outer:
        raise ProtocolError("there is no message")
    first = outer[0]
    codec = first.attributes & COMPRESSION_MASK
    inner = outer
    unpacked: bytes | memoryview = b""
    if codec:
        if len(outer) > 1:
            raise ProtocolError("exactly one compressed message is expected for a partition")
        if codec == CompressionType.ZSTD or (codec == CompressionType.LZ4 and first.magic == 0):
            raise ProtocolError(f"compression type {codec} is not available in message format {first.magic}")
        unpacked = decompress(codec, first.value or b"", max_unpacked)
        inner = list(messages(memoryview(unpacked)))
    if any(m.magic != first.magic or m.attributes & COMPRESSION_MASK for m in (inner if codec else inner[1:])):
        raise ProtocolError("the messages of a set differ in their format or are compressed twice")
    kind = TimestampType.LOG_APPEND_TIME if first.attributes & TIMESTAMP_TYPE_BIT and first.magic else None
    batch = build_batch(
        (Record(timestamp=m.timestamp, key=_bytes(m.key), value=_bytes(m.value)) for m in inner),
        compression=codec,
        timestamp_type=kind or TimestampType.CREATE_TIME,
    )
    return Conversion(batch, len(inner), len(unpacked) + len(batch))


def _bytes(field: memoryview | None) -> bytes | None:
    return None if field is None else bytes(field)


def from_batches(data: memoryview, magic: int, first_offset: int, max_bytes: int) -> Conversion:
    """Convert records from `first_offset` on into messages of that format: at least one batch, none after `max_bytes`.

    A compressed batch becomes one message compressed with gzip, which every client of these formats can read.
    """
    out = bytearray()
    count = unpacked_bytes = 0
    for batch in batches(data):
        if out and len(out) >= max_bytes:
            break
        if batch.is_control:
            continue
        rows = [record for record in records(batch) if record.offset >= first_offset]
        if not rows:
            continue
        count += len(rows)
        if not batch.compression:
            for record in rows:
                out += _encode(record.offset, magic, _attributes(batch, magic), record)
            continue
        base = rows[0].offset if magic else 0
        inside = b"".join(_encode(r.offset - base, magic, _attributes(batch, magic), r) for r in rows)
        unpacked_bytes += len(inside)
        newest = max(record.timestamp for record in rows)
        packed = Record(timestamp=newest, value=compress(CompressionType.GZIP, inside))
        out += _encode(rows[-1].offset, magic, _attributes(batch, magic) | CompressionType.GZIP, packed)
    return Conversion(bytes(out), count, unpacked_bytes + len(out))


def _attributes(batch: RecordBatch, magic: int) -> int:
    return batch.attributes & TIMESTAMP_TYPE_BIT if magic else 0


def _encode(offset: int, magic: int, attributes: int, record: Record) -> bytes:
    body = bytes((magic, attributes))
    if magic:
        body += _TIMESTAMP.pack(record.timestamp)
    body += b"".join(_field(field) for field in (record.key, record.value))
    return OFFSET_AND_LENGTH.pack(offset, _CRC_BYTES + len(body)) + _CRC.pack(zlib.crc32(body)) + body


def _field(field: bytes | None) -> bytes:
    return _SIZE.pack(-1) if field is None else _SIZE.pack(len(field)) + field


def is_message_set(data: memoryview | bytes | bytearray) -> bool:
    """Whether produced bytes begin with a message of format 0 or 1."""
    return len(data) > MAGIC_POSITION and data[MAGIC_POSITION] < MAGIC_V2
