"""The records of `__transaction_state`: transactional ids on disk.

Key and value start with an int16 version. The key of version 0 is the transactional id. The value of version 0 has
Kafka's classic encoding; version 1 is flexible and adds tagged fields: the previous producer id (0), the next producer
id (1) and the transaction version of the client (2). Kafka writes version 1 from `transaction.version` 1 on, and so
does klamm. Unlike Kafka, klamm writes the first two tags, because a coordinator that takes over in the middle of a
producer-id change needs them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from klamm.coordinator.transaction.transaction_metadata import (
    NO_PARTITIONS,
    TransactionState,
    TransactionValue,
)
from klamm.errors import ProtocolError
from klamm.lazy_dataclass import lazy_dataclass
from klamm.model import TopicPartition, TransactionVersion
from klamm.protocol.record_batch import NO_PRODUCER_ID

KEY_VERSION: Final = 0
FLEXIBLE_VERSION: Final = 1
_PREVIOUS_PRODUCER_ID: Final = 0
_NEXT_PRODUCER_ID: Final = 1
_CLIENT_VERSION: Final = 2


@lazy_dataclass(frozen=True, slots=True)
class UnknownTransactionKey:
    version: int


def encode_transaction_key(transactional_id: str) -> bytes:
    raw = transactional_id.encode()
    return struct.pack(">hh", KEY_VERSION, len(raw)) + raw


def decode_transaction_key(data: bytes) -> str | UnknownTransactionKey:
    reader = _Reader(data)
    version = reader.int16()
    return reader.string() if version == KEY_VERSION else UnknownTransactionKey(version)


def encode_transaction_value(value: TransactionValue, version: TransactionVersion) -> bytes:
    """Encode for a cluster at this level of `transaction.version`."""
    if version is TransactionVersion.TV_0:
        return _encode_classic(value)
    return _encode_flexible(value)


def decode_transaction_value(data: bytes) -> TransactionValue:
    """Raises ProtocolError if the version is unknown or the bytes are damaged."""
    reader = _Reader(data)
    version = reader.int16()
    if version not in (0, FLEXIBLE_VERSION):
        raise ProtocolError(f"version {version} of a transaction record is unknown")
    reader.is_flexible = version == FLEXIBLE_VERSION
    producer_id = reader.int64()
    producer_epoch = reader.int16()
    timeout_ms = reader.int32()
    state = _state(reader.int8())
    partitions = reader.partitions()
    last_update_timestamp_ms = reader.int64()
    start_timestamp_ms = reader.int64()
    tags = reader.tags()
    return TransactionValue(
        producer_id,
        producer_epoch,
        state,
        timeout_ms,
        partitions,
        start_timestamp_ms,
        last_update_timestamp_ms,
        previous_producer_id=_tagged_int(tags, _PREVIOUS_PRODUCER_ID, 8, NO_PRODUCER_ID),
        next_producer_id=_tagged_int(tags, _NEXT_PRODUCER_ID, 8, NO_PRODUCER_ID),
        client_version=_client_version(_tagged_int(tags, _CLIENT_VERSION, 2, 0)),
    )


def _state(number: int) -> TransactionState:
    try:
        return TransactionState(number)
    except ValueError:
        raise ProtocolError(f"transaction state {number} is unknown") from None


def _client_version(level: int) -> TransactionVersion:
    """A level of a newer broker is the highest one that this broker knows."""
    return TransactionVersion(max(0, min(level, TransactionVersion.TV_2)))


def _tagged_int(tags: Mapping[int, bytes], tag: int, size: int, default: int) -> int:
    raw = tags.get(tag)
    if raw is None:
        return default
    if len(raw) != size:
        raise ProtocolError(f"tag {tag} of a transaction record has {len(raw)} bytes, expected {size}")
    return int.from_bytes(raw, "big", signed=True)


def _by_topic(partitions: Mapping[TopicPartition, None]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics


def _encode_classic(value: TransactionValue) -> bytes:
    parts = [_head(0, value)]
    if value.state is TransactionState.EMPTY:
        parts.append(b"\xff\xff\xff\xff")
    else:
        topics = _by_topic(value.partitions)
        parts.append(struct.pack(">i", len(topics)))
        for topic, indexes in topics.items():
            raw = topic.encode()
            parts.append(struct.pack(f">h{len(raw)}si{len(indexes)}i", len(raw), raw, len(indexes), *indexes))
    parts.append(struct.pack(">qq", value.last_update_timestamp_ms, value.start_timestamp_ms))
    return b"".join(parts)


def _encode_flexible(value: TransactionValue) -> bytes:
    parts = [_head(FLEXIBLE_VERSION, value)]
    if value.state is TransactionState.EMPTY:
        parts.append(b"\x00")
    else:
        topics = _by_topic(value.partitions)
        parts.append(_varint(len(topics) + 1))
        for topic, indexes in topics.items():
            raw = topic.encode()
            parts += (_varint(len(raw) + 1), raw, _varint(len(indexes) + 1))
            parts += (struct.pack(f">{len(indexes)}i", *indexes), b"\x00")
    parts.append(struct.pack(">qq", value.last_update_timestamp_ms, value.start_timestamp_ms))
    parts.append(_encode_tags(value))
    return b"".join(parts)


def _head(version: int, value: TransactionValue) -> bytes:
    return struct.pack(">hqhib", version, value.producer_id, value.producer_epoch, value.timeout_ms, value.state)


def _encode_tags(value: TransactionValue) -> bytes:
    tags: list[tuple[int, bytes]] = []
    # Without a change of the producer id, the previous one adds nothing.
    if value.previous_producer_id not in (NO_PRODUCER_ID, value.producer_id):
        tags.append((_PREVIOUS_PRODUCER_ID, struct.pack(">q", value.previous_producer_id)))
    if value.next_producer_id != NO_PRODUCER_ID:
        tags.append((_NEXT_PRODUCER_ID, struct.pack(">q", value.next_producer_id)))
    if value.client_version:
        tags.append((_CLIENT_VERSION, struct.pack(">h", value.client_version)))
    return _varint(len(tags)) + b"".join(_varint(tag) + _varint(len(raw)) + raw for tag, raw in tags)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


class _Reader:
    """Reads fields in order; every length is checked against the bytes that remain."""

    __slots__ = ("_buf", "_pos", "is_flexible")

    def __init__(self, buf: bytes) -> None:
        self._buf = memoryview(buf)
        self._pos = 0
        self.is_flexible = False

    def take(self, size: int) -> memoryview:
        end = self._pos + size
        if size < 0 or end > len(self._buf):
            raise ProtocolError(f"a transaction record ends at byte {len(self._buf)}, {size} bytes more were expected")
        taken = self._buf[self._pos : end]
        self._pos = end
        return taken

    def int8(self) -> int:
        return int.from_bytes(self.take(1), "big", signed=True)

    def int16(self) -> int:
        return int.from_bytes(self.take(2), "big", signed=True)

    def int32(self) -> int:
        return int.from_bytes(self.take(4), "big", signed=True)

    def int64(self) -> int:
        return int.from_bytes(self.take(8), "big", signed=True)

    def varint(self) -> int:
        number = shift = 0
        while True:
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7
            if shift > 28:
                raise ProtocolError("a transaction record has a variable-length number of more than five bytes")

    def string(self) -> str:
        size = self.varint() - 1 if self.is_flexible else self.int16()
        try:
            return str(self.take(size), "utf-8")
        except UnicodeDecodeError as error:
            raise ProtocolError(f"a transaction record has a string that is not UTF-8: {error}") from error

    def count(self, smallest: int) -> int:
        """Return the length of an array whose elements take at least `smallest` bytes; -1 is null."""
        count = self.varint() - 1 if self.is_flexible else self.int32()
        if count < -1 or count * smallest > len(self._buf) - self._pos:
            raise ProtocolError(f"a transaction record announces {count} elements")
        return count

    def partitions(self) -> Mapping[TopicPartition, None]:
        topics = self.count(3)
        if topics < 1:
            return NO_PARTITIONS
        partitions: dict[TopicPartition, None] = {}
        for _ in range(topics):
            topic = self.string()
            size = max(self.count(4), 0)
            for index in struct.unpack(f">{size}i", self.take(4 * size)):
                partitions[TopicPartition(topic, index)] = None
            self.tags()
        return partitions

    def tags(self) -> dict[int, bytes]:
        if not self.is_flexible:
            return {}
        tags: dict[int, bytes] = {}
        for _ in range(self.varint()):
            tag = self.varint()
            tags[tag] = bytes(self.take(self.varint()))
        return tags
