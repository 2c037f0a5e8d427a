"""Record batches of format version 2, as views over a buffer.

A `RecordBatch` unpacks the 61 bytes of the header at once and leaves the records where they are; `records` decodes them
one by one. The checksum does not cover offsets and leader epochs, so they are assigned in place.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

import crc32c

from klamm.errors import ProtocolError
from klamm.protocol.compression import DEFAULT_MAX_DECOMPRESSED_BYTES, CompressionType, compress, decompress
from klamm.protocol.record_varint import read_varint, write_varint

MAGIC_V2: Final = 2
LOG_OVERHEAD: Final = 12
"""Base offset and batch length: the bytes before those that `batch_length` counts."""
RECORD_BATCH_OVERHEAD: Final = 61
MAGIC_POSITION: Final = 16
CRC_POSITION: Final = 17
ATTRIBUTES_POSITION: Final = 21
MAX_TIMESTAMP_POSITION: Final = 35
HEADER: Final = struct.Struct(">qiibIhiqqqhii")
OFFSET_AND_LENGTH: Final = struct.Struct(">qi")
PREFIX: Final = struct.Struct(">qii")
"""Base offset, batch length, leader epoch: the 16 bytes a broker may change without touching the checksum."""

NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_PARTITION_LEADER_EPOCH: Final = -1

COMPRESSION_MASK: Final = 0x07
TIMESTAMP_TYPE_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40
"""The base timestamp is the time after which tombstones and markers of this batch may be deleted (set by the cleaner).
"""
_KEPT_BITS: Final = COMPRESSION_MASK | TRANSACTIONAL_BIT | CONTROL_BIT | DELETE_HORIZON_BIT
"""As in Kafka, a rewritten header loses the reserved bits; an unchanged header keeps them."""

_INT32_MAX: Final = 0x7FFFFFFF
_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1
_MIN_RECORD_BYTES: Final = 7
_UINT32 = struct.Struct(">I")
_CRC_AND_ATTRIBUTES = struct.Struct(">Ih")
_INT64 = struct.Struct(">q")


class TimestampType(IntEnum):
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class Header(NamedTuple):
    key: str
    value: bytes | None


class Record(NamedTuple):
    """One record. `offset` is absolute; when a batch is built, -1 means the next offset."""

    offset: int = -1
    timestamp: int = NO_TIMESTAMP
    key: bytes | None = None
    value: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()


class RecordBatch:
    """The header of one batch, and the position of the batch in `buffer`."""

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "batch_length",
        "buffer",
        "crc",
        "last_offset_delta",
        "magic",
        "max_timestamp",
        "partition_leader_epoch",
        "position",
        "producer_epoch",
        "producer_id",
        "record_count",
    )
    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    def __init__(self, buffer: memoryview, position: int = 0) -> None:
        """The caller has checked that there are `RECORD_BATCH_OVERHEAD` bytes and that the magic is 2."""
        self.buffer = buffer
        self.position = position
        (
            self.base_offset,
            self.batch_length,
            self.partition_leader_epoch,
            self.magic,
            self.crc,
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.record_count,
        ) = HEADER.unpack_from(buffer, position)

    @property
    def size_bytes(self) -> int:
        return LOG_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> int:
        return self.attributes & COMPRESSION_MASK

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType.LOG_APPEND_TIME if self.attributes & TIMESTAMP_TYPE_BIT else TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def delete_horizon_ms(self) -> int | None:
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None

    @property
    def last_sequence(self) -> int:
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return increment_sequence(self.base_sequence, self.last_offset_delta)

    @property
    def view(self) -> memoryview:
        """The bytes of the batch."""
        return self.buffer[self.position : self.position + LOG_OVERHEAD + self.batch_length]

    def is_valid(self) -> bool:
        """Whether the checksum is correct."""
        start, end = self.position + ATTRIBUTES_POSITION, self.position + LOG_OVERHEAD + self.batch_length
        return bool(crc32c.crc32c(self.buffer[start:end]) == self.crc)

    def __repr__(self) -> str:
        return (
            f"RecordBatch(offsets={self.base_offset}..{self.last_offset}, count={self.record_count}, "
            f"epoch={self.partition_leader_epoch}, producer={self.producer_id}/{self.producer_epoch}/"
            f"{self.base_sequence}, attributes={self.attributes:#x}, bytes={self.size_bytes})"
        )


def increment_sequence(sequence: int, increment: int) -> int:
    """Sequence numbers wrap around from 2^31-1 to 0."""
    if sequence > _INT32_MAX - increment:
        return increment - (_INT32_MAX - sequence) - 1
    return sequence + increment


def next_batch(buffer: memoryview, position: int = 0) -> RecordBatch | None:
    """Return the batch at `position`; None if the buffer ends before the batch.

    Raises ProtocolError for other bytes.
    """
    remaining = len(buffer) - position
    if remaining < CRC_POSITION:
        return None
    (length,) = _UINT32.unpack_from(buffer, position + 8)
    magic = buffer[position + MAGIC_POSITION]
    if magic != MAGIC_V2:
        raise ProtocolError(f"a record batch has magic {magic}: only format version 2 is supported")
    if length < RECORD_BATCH_OVERHEAD - LOG_OVERHEAD or length > _INT32_MAX:
        raise ProtocolError(f"a record batch says it has {length} bytes, fewer than its header")
    if remaining < LOG_OVERHEAD + length:
        return None
    return RecordBatch(buffer, position)


def batches(buffer: bytes | bytearray | memoryview) -> Iterator[RecordBatch]:
    """Yield the complete batches of `buffer`; an incomplete one at the end is left out."""
    view = buffer if isinstance(buffer, memoryview) else memoryview(buffer)
    position = 0
    while (batch := next_batch(view, position)) is not None:
        yield batch
        position += LOG_OVERHEAD + batch.batch_length


def records(batch: RecordBatch, max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES) -> Iterator[Record]:
    """Decode the records of a batch one at a time. Raises ProtocolError if they do not match the header."""
    body = batch.view[RECORD_BATCH_OVERHEAD:]
    data = decompress(batch.compression, body, max_decompressed_bytes)
    view = memoryview(data)
    if batch.record_count < 0 or batch.record_count * _MIN_RECORD_BYTES > len(view):
        raise ProtocolError(f"{len(view)} bytes cannot hold {batch.record_count} records")
    position = 0
    for _ in range(batch.record_count):
        record, position = _decode_record(batch, view, position)
        yield record
    if position != len(view):
        raise ProtocolError(f"{len(view) - position} bytes follow the last of {batch.record_count} records")


def _decode_record(batch: RecordBatch, view: memoryview, position: int) -> tuple[Record, int]:
    try:
        length, position = read_varint(view, position)
        end = position + length
        if length < 0 or end > len(view):
            raise ProtocolError(f"a record of {length} bytes does not fit into the {len(view) - position} that remain")
        timestamp_delta, position = read_varint(view, position + 1)
        offset_delta, position = read_varint(view, position)
        key, position = _read_bytes(view, position, end)
        value, position = _read_bytes(view, position, end)
        headers, position = _read_headers(view, position, end)
    except IndexError as e:
        raise ProtocolError("a record ends in the middle of a field") from e
    if position != end:
        raise ProtocolError("the length of a record is not the length of its fields")
    is_append_time = batch.attributes & TIMESTAMP_TYPE_BIT
    timestamp = batch.max_timestamp if is_append_time else batch.base_timestamp + timestamp_delta
    if not (_INT64_MIN <= timestamp <= _INT64_MAX and 0 <= offset_delta <= _INT32_MAX):
        raise ProtocolError(f"a record has timestamp {timestamp} and offset delta {offset_delta}")
    return Record(batch.base_offset + offset_delta, timestamp, key, value, headers), position


def _read_bytes(view: memoryview, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = read_varint(view, position)
    if length < 0:
        if length != -1:
            raise ProtocolError(f"a field of a record has {length} bytes")
        return None, position
    stop = position + length
    if stop > end:
        raise ProtocolError(f"a field of {length} bytes reaches beyond its record")
    return bytes(view[position:stop]), stop


def _read_headers(view: memoryview, position: int, end: int) -> tuple[Sequence[tuple[str, bytes | None]], int]:
    count, position = read_varint(view, position)
    if count == 0:
        return (), position
    if count < 0 or count * 2 > end - position:
        raise ProtocolError(f"{end - position} bytes cannot hold {count} record headers")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        key, position = _read_bytes(view, position, end)
        value, position = _read_bytes(view, position, end)
        if key is None:
            raise ProtocolError("a record header has no key")
        try:
            headers.append(Header(key.decode(), value))
        except UnicodeDecodeError as e:
            raise ProtocolError("the key of a record header is not UTF-8") from e
    return tuple(headers), position


def encode_record(record: Record, offset_delta: int, timestamp_delta: int) -> bytes:
    """Return the bytes of one record. The value, which may be large, is copied once."""
    head = bytearray(1)
    write_varint(head, timestamp_delta)
    write_varint(head, offset_delta)
    _write_bytes(head, record.key)
    value = record.value
    if value is None:
        head.append(1)
        value = b""
    else:
        write_varint(head, len(value))
    tail = bytearray()
    write_varint(tail, len(record.headers))
    for name, content in record.headers:
        _write_bytes(tail, name.encode())
        _write_bytes(tail, content)
    size = bytearray()
    write_varint(size, len(head) + len(value) + len(tail))
    return b"".join((bytes(size + head), value, bytes(tail)))


def _write_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(1)
    else:
        write_varint(out, len(value))
        out += value


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    compression: int = CompressionType.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_control: bool = False,
    is_transactional: bool = False,
    partition_leader_epoch: int = NO_PARTITION_LEADER_EPOCH,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    max_timestamp: int | None = None,
    base_timestamp: int | None = None,
    last_offset_delta: int | None = None,
    delete_horizon_ms: int | None = None,
) -> bytes:
    """Return the bytes of one batch. The last four arguments are derived from the records unless they are given."""
    rows = [r if r.offset >= 0 else r._replace(offset=base_offset + i) for i, r in enumerate(records)]
    if base_timestamp is None:
        base_timestamp = rows[0].timestamp if rows else NO_TIMESTAMP
    attributes = compression | (TIMESTAMP_TYPE_BIT if timestamp_type else 0)
    attributes |= (TRANSACTIONAL_BIT if is_transactional else 0) | (CONTROL_BIT if is_control else 0)
    if delete_horizon_ms is not None:
        base_timestamp = delete_horizon_ms
        attributes |= DELETE_HORIZON_BIT
    body = b"".join(encode_record(r, r.offset - base_offset, r.timestamp - base_timestamp) for r in rows)
    if max_timestamp is None:
        max_timestamp = max((r.timestamp for r in rows), default=NO_TIMESTAMP)
    if last_offset_delta is None:
        last_offset_delta = rows[-1].offset - base_offset if rows else 0
    packed = compress(CompressionType(compression), body) if body else b""
    header = HEADER.pack(
        base_offset,
        RECORD_BATCH_OVERHEAD - LOG_OVERHEAD + len(packed),
        partition_leader_epoch,
        MAGIC_V2,
        0,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(rows),
    )
    return _with_checksum(header, packed)


def build_batch_in_steps(records: Sequence[Record], records_per_step: int) -> Generator[None, None, bytes]:
    """`build_batch` of uncompressed records, with a pause after every `records_per_step` of them.

    The records are numbered from 0; there is at least one.
    """
    base_timestamp = records[0].timestamp
    parts: list[bytes] = []
    for start in range(0, len(records), records_per_step):
        if start:
            yield
        some = enumerate(records[start : start + records_per_step], start)
        parts.append(b"".join([encode_record(r, offset, r.timestamp - base_timestamp) for offset, r in some]))
    body = b"".join(parts)
    header = HEADER.pack(
        0,
        RECORD_BATCH_OVERHEAD - LOG_OVERHEAD + len(body),
        NO_PARTITION_LEADER_EPOCH,
        MAGIC_V2,
        0,
        0,
        len(records) - 1,
        base_timestamp,
        max(r.timestamp for r in records),
        NO_PRODUCER_ID,
        NO_PRODUCER_EPOCH,
        NO_SEQUENCE,
        len(records),
    )
    return _with_checksum(header, body)


def _with_checksum(header: bytes, packed: bytes) -> bytes:
    # Joined once: this avoids copies of a large batch, and join releases the interpreter's lock.
    checked = header[ATTRIBUTES_POSITION:]
    crc = _UINT32.pack(crc32c.crc32c(packed, crc32c.crc32c(checked)))
    return b"".join((header[:CRC_POSITION], crc, checked, packed))


def with_max_timestamp(batch: RecordBatch, timestamp_type: TimestampType, max_timestamp: int) -> bytearray:
    """Return a copy of the batch with this timestamp type and maximum timestamp, and the matching checksum."""
    out = bytearray(batch.view)
    attributes = batch.attributes & _KEPT_BITS
    if timestamp_type is TimestampType.LOG_APPEND_TIME:
        attributes |= TIMESTAMP_TYPE_BIT
    _CRC_AND_ATTRIBUTES.pack_into(out, CRC_POSITION, 0, attributes)
    _INT64.pack_into(out, MAX_TIMESTAMP_POSITION, max_timestamp)
    with memoryview(out) as view:
        _UINT32.pack_into(out, CRC_POSITION, crc32c.crc32c(view[ATTRIBUTES_POSITION:]))
    return out


def with_body(
    batch: RecordBatch,
    body: memoryview,
    codec: CompressionType,
    level: int | None,
    timestamp_type: TimestampType,
    max_timestamp: int,
) -> bytearray:
    """Return a copy of the batch with the decompressed `body` compressed by another codec; the records stay."""
    out = bytearray(batch.view[:RECORD_BATCH_OVERHEAD])
    out += compress(codec, body, level)
    attributes = batch.attributes & _KEPT_BITS & ~COMPRESSION_MASK | codec
    if timestamp_type is TimestampType.LOG_APPEND_TIME:
        attributes |= TIMESTAMP_TYPE_BIT
    _CRC_AND_ATTRIBUTES.pack_into(out, CRC_POSITION, 0, attributes)
    _INT64.pack_into(out, MAX_TIMESTAMP_POSITION, max_timestamp)
    OFFSET_AND_LENGTH.pack_into(out, 0, batch.base_offset, len(out) - LOG_OVERHEAD)
    with memoryview(out) as view:
        _UINT32.pack_into(out, CRC_POSITION, crc32c.crc32c(view[ATTRIBUTES_POSITION:]))
    return out
