"""Records of the embedded server's files, each with a length, a CRC-32 and a payload; and rules for damaged ends.

Logs and snapshots are written with `frame` and read with `frames`. Both ask `fits`, so nothing is ever written that
cannot be read again.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from klamm.zk.model import jute
from klamm.zk.model.jute import OpCode
from klamm.zk.model.ops import Id, RequestTooLarge

MAGIC: Final = b"klammzk1"
MAX_RECORD_BYTES: Final = 1 << 26
MAX_IDENTITIES: Final = 255
"""The count of identities in a log record is one byte."""
_FRAME: Final = struct.Struct(">II")
_RECORD: Final = struct.Struct(">qqqiB")
_ZXID: Final = struct.Struct(">q")
MIN_RECORD_BYTES: Final = _FRAME.size + _RECORD.size
_MAX_TORN_ZEROS: Final = 4_096
"""Zero bytes at the end of a log that a lost write may leave behind: one page."""
_SEARCH_BYTES: Final = 1 << 30
_LOGGED_OPCODES: Final = (
    OpCode.CREATE,
    OpCode.DELETE,
    OpCode.SET_DATA,
    OpCode.SET_ACL,
    OpCode.CHECK,
    OpCode.MULTI,
    OpCode.CREATE2,
    OpCode.CREATE_SESSION,
    OpCode.CLOSE_SESSION,
)


class LogRecord(NamedTuple):
    """A request that took effect.

    `auth` are the identities of its client, so that access rules decide the same again.
    """

    zxid: int
    now_ms: int
    session_id: int
    opcode: int
    auth: Sequence[Id]
    body: bytes


def fits(payload_bytes: int) -> bool:
    """Whether a payload of this size is valid. No record is empty, so zeros on disk are never a record."""
    return 0 < payload_bytes <= MAX_RECORD_BYTES


def frame(payload: bytes) -> bytes:
    if not fits(len(payload)):
        raise RequestTooLarge(message=f"a record of {len(payload)} bytes exceeds the limit of {MAX_RECORD_BYTES}")
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def encode_record(record: LogRecord) -> bytes:
    """Encode a record with its frame. Raises RequestTooLarge for a record that no reader would accept."""
    zxid, now_ms, session_id, opcode, auth, body = record
    if len(auth) > MAX_IDENTITIES:
        raise RequestTooLarge(message=f"{len(auth)} identities exceed the limit of {MAX_IDENTITIES} per record")
    who = b"".join(jute.string_bytes(i.scheme) + jute.string_bytes(i.id) for i in auth)
    return frame(_RECORD.pack(zxid, now_ms, session_id, opcode, len(auth)) + who + body)


def decode_record(payload: bytes) -> LogRecord:
    """Decode a payload. Raises struct.error or MarshallingError if it is not a log record."""
    zxid, now_ms, session_id, opcode, count = _RECORD.unpack_from(payload)
    pos = _RECORD.size
    auth = []
    for _ in range(count):
        scheme, pos = jute.read_string(payload, pos)
        who, pos = jute.read_string(payload, pos)
        auth.append(Id(scheme, who))
    return LogRecord(zxid, now_ms, session_id, opcode, auth, payload[pos:])


def frames(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield undamaged payloads from the beginning, each with the position after it; stop at the first damage."""
    pos = len(MAGIC)
    while (payload := _payload_at(content, pos)) is not None:
        pos += _FRAME.size + len(payload)
        yield pos, payload


def _payload_at(content: bytes, pos: int) -> bytes | None:
    if pos + _FRAME.size > len(content):
        return None
    length, crc = _FRAME.unpack_from(content, pos)
    start = pos + _FRAME.size
    if not fits(length) or start + length > len(content):
        return None
    payload = content[start : start + length]
    return payload if zlib.crc32(payload) == crc else None


def is_torn_end(content: bytes, position: int, last_zxid: int) -> bool:
    """Return whether the damage at `position` is an unfinished write of the last record, which was never acknowledged.

    It is not if the damaged record ends before the file does, or if a complete record follows it: then acknowledged
    changes follow.
    """
    rest = content[position:]
    if len(rest) < _FRAME.size:
        return True
    if not any(rest):
        return len(rest) <= _MAX_TORN_ZEROS
    length, _ = _FRAME.unpack_from(rest)
    missing = _FRAME.size + length - len(rest)
    if missing < 0 or (missing > 0 and not _is_begun_record(rest, last_zxid)):
        return False
    return not _has_later_record(content, position, last_zxid)


def _is_begun_record(rest: bytes, last_zxid: int) -> bool:
    """Whether the bytes are the beginning of the next record: an unfinished write leaves the beginning intact."""
    zxid = rest[_FRAME.size : _FRAME.size + _ZXID.size]
    return fits(_FRAME.unpack_from(rest)[0]) and _ZXID.pack(last_zxid + 1).startswith(zxid)


def _has_later_record(content: bytes, position: int, last_zxid: int) -> bool:
    """Whether a whole record that came after `last_zxid` is behind `position`, or too many bytes look like one.

    A client can put such bytes into a znode. If exactly that write is torn, the start stops although nothing is lost:
    that is the safe side.
    """
    checked = 0
    for match in _record_pattern(last_zxid).finditer(content, position + 1):
        start = match.start()
        checked += min(_FRAME.unpack_from(content, start)[0], MAX_RECORD_BYTES)
        if checked > _SEARCH_BYTES:
            return True
        if _zxid_of(_payload_at(content, start)) > last_zxid:
            return True
    return False


def last_record(content: bytes, position: int, last_zxid: int) -> tuple[int, int]:
    """Return the end and the zxid of the last complete record after damage at `position`, or both arguments if there is
    none.

    Zxids of a log are consecutive, so the bytes before a record bound its zxid: records that a client has put into a
    znode do not count.
    """
    checked, end, last = 0, position, last_zxid
    for match in _record_pattern(last_zxid).finditer(content, position + 1):
        start = match.start()
        if start < end:
            continue
        payload = _payload_at(content, start)
        zxid = _zxid_of(payload)
        if payload is not None and last < zxid <= last + 1 + (start - end) // MIN_RECORD_BYTES:
            end, last = start + _FRAME.size + len(payload), zxid
            continue
        checked += min(_FRAME.unpack_from(content, start)[0], MAX_RECORD_BYTES)
        if checked > _SEARCH_BYTES:
            break
    return end, last


def _zxid_of(payload: bytes | None) -> int:
    """Return the zxid of a log record; 0 for other bytes."""
    return 0 if payload is None or len(payload) < _RECORD.size else int(_RECORD.unpack_from(payload)[0])


def _record_pattern(last_zxid: int) -> re.Pattern[bytes]:
    """Find the positions at which a record with a zxid after `last_zxid` may begin; they may overlap."""
    high = last_zxid >> 32
    zxids = b"|".join(re.escape(struct.pack(">i", each)) for each in (high, high + 1))
    opcodes = b"|".join(re.escape(struct.pack(">i", opcode)) for opcode in _LOGGED_OPCODES)
    return re.compile(rb"(?=[\x00-\x04].{7}(?:%b).{4}\x00.{15}(?:%b))" % (zxids, opcodes), re.DOTALL)
