"""The records of `__consumer_offsets`: groups and committed offsets on disk.

Every key and value starts with an int16 version. Key versions 0 and 1 are a committed offset, 2 is a group.
Strings are int16 length + UTF-8, bytes are int32 length, arrays int32 count: Kafka's classic encoding.

OffsetCommitValue: v0 offset, metadata, timestamp; v1 adds the expire timestamp; v2 drops it (KIP-211);
v3 adds the leader epoch after the offset (KIP-320).
GroupMetadataValue: v1 adds the rebalance timeout (KIP-62), v2 the state timestamp (KIP-211), v3 the group
instance id (KIP-345). The newest versions are written, except that an offset with an expire timestamp is v1.
"""

from __future__ import annotations

import struct
from typing import Final

from klamm.errors import ProtocolError
from klamm.lazy_dataclass import lazy_dataclass
from klamm.model import TopicPartition

OFFSET_COMMIT_KEY_VERSION: Final = 1
OFFSET_COMMIT_VALUE_VERSION: Final = 3
GROUP_METADATA_KEY_VERSION: Final = 2
GROUP_METADATA_VALUE_VERSION: Final = 3
NO_TIMESTAMP: Final = -1


@lazy_dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """One committed offset. `expire_timestamp_ms` only comes from OffsetCommit requests of version 2 to 4."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int = NO_TIMESTAMP
    expire_timestamp_ms: int | None = None


@lazy_dataclass(frozen=True, slots=True)
class OffsetKey:
    group_id: str
    topic_partition: TopicPartition


@lazy_dataclass(frozen=True, slots=True)
class GroupKey:
    group_id: str


@lazy_dataclass(frozen=True, slots=True)
class UnknownKey:
    version: int


@lazy_dataclass(frozen=True, slots=True)
class MemberValue:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@lazy_dataclass(frozen=True, slots=True)
class GroupMetadataValue:
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    current_state_timestamp_ms: int
    members: tuple[MemberValue, ...]


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">h", len(raw)) + raw


def _nullable_string(text: str | None) -> bytes:
    return b"\xff\xff" if text is None else _string(text)


def _bytes(raw: bytes) -> bytes:
    return struct.pack(">i", len(raw)) + raw


class _Reader:
    """Reads fields in order; every length is checked against the bytes that remain."""

    __slots__ = ("_buf", "_pos")

    def __init__(self, buf: bytes | memoryview) -> None:
        self._buf = memoryview(buf)
        self._pos = 0

    def _take(self, size: int) -> memoryview:
        end = self._pos + size
        if size < 0 or end > len(self._buf):
            raise ProtocolError(f"a group record ends at byte {len(self._buf)}, {size} bytes more were expected")
        taken = self._buf[self._pos : end]
        self._pos = end
        return taken

    def int16(self) -> int:
        return int.from_bytes(self._take(2), "big", signed=True)

    def int32(self) -> int:
        return int.from_bytes(self._take(4), "big", signed=True)

    def int64(self) -> int:
        return int.from_bytes(self._take(8), "big", signed=True)

    def nullable_string(self) -> str | None:
        size = self.int16()
        if size == -1:
            return None
        try:
            return str(self._take(size), "utf-8")
        except UnicodeDecodeError as error:
            raise ProtocolError(f"a group record holds a string that is not UTF-8: {error}") from error

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise ProtocolError("a group record holds a null where a string is required")
        return text

    def bytes_(self) -> bytes:
        return bytes(self._take(self.int32()))

    def count(self, smallest: int) -> int:
        """An array's length, of elements that take at least `smallest` bytes each."""
        count = self.int32()
        if count < 0 or count * smallest > len(self._buf) - self._pos:
            raise ProtocolError(f"a group record announces {count} elements in {len(self._buf) - self._pos} bytes")
        return count


def encode_offset_key(group_id: str, tp: TopicPartition) -> bytes:
    return (
        struct.pack(">h", OFFSET_COMMIT_KEY_VERSION)
        + _string(group_id)
        + _string(tp.topic)
        + struct.pack(">i", tp.partition)
    )


def encode_group_key(group_id: str) -> bytes:
    return struct.pack(">h", GROUP_METADATA_KEY_VERSION) + _string(group_id)


def encode_offset_value(value: OffsetAndMetadata) -> bytes:
    if value.expire_timestamp_ms is not None:
        return (
            struct.pack(">hq", 1, value.offset)
            + _string(value.metadata)
            + struct.pack(">qq", value.commit_timestamp_ms, value.expire_timestamp_ms)
        )
    return (
        struct.pack(">hqi", OFFSET_COMMIT_VALUE_VERSION, value.offset, value.leader_epoch)
        + _string(value.metadata)
        + struct.pack(">q", value.commit_timestamp_ms)
    )


def encode_group_value(value: GroupMetadataValue) -> bytes:
    parts = [
        struct.pack(">h", GROUP_METADATA_VALUE_VERSION),
        _string(value.protocol_type),
        struct.pack(">i", value.generation),
        _nullable_string(value.protocol),
        _nullable_string(value.leader),
        struct.pack(">qi", value.current_state_timestamp_ms, len(value.members)),
    ]
    for member in value.members:
        parts += (
            _string(member.member_id),
            _nullable_string(member.group_instance_id),
            _string(member.client_id),
            _string(member.client_host),
            struct.pack(">ii", member.rebalance_timeout_ms, member.session_timeout_ms),
            _bytes(member.subscription),
            _bytes(member.assignment),
        )
    return b"".join(parts)


def decode_key(buf: bytes | memoryview) -> OffsetKey | GroupKey | UnknownKey:
    reader = _Reader(buf)
    version = reader.int16()
    if 0 <= version <= OFFSET_COMMIT_KEY_VERSION:
        return OffsetKey(reader.string(), TopicPartition(reader.string(), reader.int32()))
    if version == GROUP_METADATA_KEY_VERSION:
        return GroupKey(reader.string())
    return UnknownKey(version)


def decode_offset_value(buf: bytes | memoryview) -> OffsetAndMetadata:
    reader = _Reader(buf)
    version = reader.int16()
    if not 0 <= version <= OFFSET_COMMIT_VALUE_VERSION:
        raise ProtocolError(f"offset commit value version {version} is unknown")
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else -1
    metadata = reader.string()
    commit_timestamp_ms = reader.int64()
    expire_timestamp_ms = reader.int64() if version == 1 else NO_TIMESTAMP
    return OffsetAndMetadata(
        offset,
        leader_epoch,
        metadata,
        commit_timestamp_ms,
        None if expire_timestamp_ms == NO_TIMESTAMP else expire_timestamp_ms,
    )


def decode_group_value(buf: bytes | memoryview) -> GroupMetadataValue:
    reader = _Reader(buf)
    version = reader.int16()
    if not 0 <= version <= GROUP_METADATA_VALUE_VERSION:
        raise ProtocolError(f"group metadata value version {version} is unknown")
    return GroupMetadataValue(
        protocol_type=reader.string(),
        generation=reader.int32(),
        protocol=reader.nullable_string(),
        leader=reader.nullable_string(),
        current_state_timestamp_ms=reader.int64() if version >= 2 else NO_TIMESTAMP,
        members=tuple(_member(reader, version) for _ in range(reader.count(smallest=18))),
    )


def _member(reader: _Reader, version: int) -> MemberValue:
    member_id = reader.string()
    group_instance_id = reader.nullable_string() if version >= 3 else None
    client_id = reader.string()
    client_host = reader.string()
    rebalance_timeout_ms = reader.int32() if version >= 1 else None
    session_timeout_ms = reader.int32()
    return MemberValue(
        member_id,
        group_instance_id,
        client_id,
        client_host,
        session_timeout_ms if rebalance_timeout_ms is None else rebalance_timeout_ms,
        session_timeout_ms,
        subscription=reader.bytes_(),
        assignment=reader.bytes_(),
    )
