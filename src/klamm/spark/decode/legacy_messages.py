"""Message sets of the formats 0 and 1, from before Kafka 0.11, as batches of format 2.

Brokers before Kafka 4 return them unchanged from old segments. They are rare, so plain Python rewrites them, and they
are then decoded like all other batches. A message of format 0 has no time: its timestamp is -1.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from klamm.errors import ProtocolError
from klamm.protocol.compression import CompressionType, decompress
from klamm.protocol.record_batch import NO_TIMESTAMP, Record, TimestampType, build_batch

_ENTRY = struct.Struct(">qi")
_MESSAGE = struct.Struct(">Ibb")
_INT64 = struct.Struct(">q")
_INT32 = struct.Struct(">i")
_CODEC_MASK: Final = 0x07
_APPEND_TIME_BIT: Final = 0x08
_MIN_MESSAGE_BYTES: Final = 14


def to_batches(data: memoryview) -> tuple[bytes, int]:
    """Return (batches, bytes of `data` consumed), up to the first batch of format 2 or an incomplete one.

    Raises ProtocolError for invalid messages.
    """
    out = bytearray()
    at = 0
    try:
        while len(data) - at >= _ENTRY.size + _MIN_MESSAGE_BYTES:
            offset, size = _ENTRY.unpack_from(data, at)
            end = at + _ENTRY.size + size
            if size < _MIN_MESSAGE_BYTES or offset < 0:
                raise ProtocolError(f"a message of {size} bytes stands at offset {offset}")
            if end > len(data) or data[at + 16] > 1:
                break
            out += _batch(offset, data[at + _ENTRY.size : end])
            at = end
    except (struct.error, IndexError) as e:
        raise ProtocolError(f"a message set ends in the middle of a message: {e}") from e
    return bytes(out), at


def _batch(offset: int, message: memoryview) -> bytes:
    crc, magic, attributes = _MESSAGE.unpack_from(message)
    if zlib.crc32(message[4:]) != crc:
        raise ProtocolError(f"the checksum of the message at offset {offset} is wrong")
    timestamp, key, value = _fields(message, magic)
    is_append = bool(attributes & _APPEND_TIME_BIT) and magic == 1
    codec = attributes & _CODEC_MASK
    records = [Record(offset, timestamp, key, value)] if codec == CompressionType.NONE else []
    if codec != CompressionType.NONE:
        records = _inner(offset, magic, decompress(codec, value or b""))
    if not records:
        raise ProtocolError(f"the message set at offset {offset} is empty")
    return build_batch(
        records,
        base_offset=records[0].offset,
        timestamp_type=TimestampType.LOG_APPEND_TIME if is_append else TimestampType.CREATE_TIME,
        max_timestamp=timestamp if is_append else None,
    )


def _inner(last_offset: int, magic: int, data: bytes | memoryview) -> list[Record]:
    """Return the messages in a wrapper: format 1 numbers them from 0, and the wrapper has the offset of the last."""
    view = memoryview(data)
    found: list[Record] = []
    at = 0
    while at < len(view):
        offset, size = _ENTRY.unpack_from(view, at)
        message = view[at + _ENTRY.size : at + _ENTRY.size + size]
        if size < _MIN_MESSAGE_BYTES or len(message) < size:
            raise ProtocolError("a message reaches beyond its set")
        _, inner_magic, attributes = _MESSAGE.unpack_from(message)
        if attributes & _CODEC_MASK or inner_magic > 1:
            raise ProtocolError("a message set stands inside of another's message")
        found.append(Record(offset, *_fields(message, inner_magic)))
        at += _ENTRY.size + size
    shift = last_offset - found[-1].offset if found and magic == 1 else 0
    return [record._replace(offset=record.offset + shift) for record in found]


def _fields(message: memoryview, magic: int) -> tuple[int, bytes | None, bytes | None]:
    at = _MESSAGE.size
    timestamp = NO_TIMESTAMP
    if magic == 1:
        timestamp = _INT64.unpack_from(message, at)[0]
        at += _INT64.size
    key, at = _bytes(message, at)
    value, at = _bytes(message, at)
    if at != len(message):
        raise ProtocolError("the length of a message is not the length of its fields")
    return timestamp, key, value


def _bytes(message: memoryview, at: int) -> tuple[bytes | None, int]:
    (size,) = _INT32.unpack_from(message, at)
    at += _INT32.size
    if size < 0:
        return None, at
    if at + size > len(message):
        raise ProtocolError("a field reaches beyond its message")
    return bytes(message[at : at + size]), at + size
