"""Run-time functions of compiled codecs: variable-length integers, tables, and errors."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import lru_cache
from struct import Struct
from typing import Any, Final, NoReturn
from uuid import UUID

from klamm.errors import ProtocolError
from klamm.model import ZERO_UUID
from klamm.protocol.declaration import BytesLike, Received

STRING_MAX_BYTES: Final = 32767
_CUT: Final = b"..."
MEMORY_BUDGET: Final = 256 * 1024 * 1024
"""Approximate memory limit for the objects of one message. 200,000 partitions take half of it."""
MAX_ELEMENTS: Final = 1_000_000
"""Elements of one array. Kafka 4.4 has the same limit."""
MAX_TAGGED_FIELDS: Final = 10_000
"""Tagged fields of one struct. Kafka 4.4 has the same limit."""
SLICE_BYTES: Final = 4 * 1024
"""A sliced decoder pauses after this many bytes: the worst message takes a millisecond for them."""
SLICE_TAGGED_FIELDS: Final = 1000
"""A sliced decoder pauses after this many unknown tagged fields."""
SLICE_ELEMENTS: Final = 100
"""A sliced encoder pauses after this many elements; 256 bytes of a string count like one."""
LARGE_BYTES: Final = 4 * 1024 * 1024
"""A sliced decoder copies bytes up to this size. Larger ones stay views of the frame: copying 100 MB takes 40 ms."""
SMALL: Final = 32
"""Arrays of integers shorter than this have a ready-made struct."""
INLINE_RECORDS: Final = 4096
"""Records up to this size are copied next to the fields around them: one write is cheaper than three."""

COMPACT_LENGTH: Final = tuple(bytes((n + 1,)) for n in range(127))
"""The one-byte compact lengths: COMPACT_LENGTH[n] announces n bytes or elements."""


def short(wanted: int, remaining: int) -> NoReturn:
    raise ProtocolError(f"{wanted} bytes announced, {remaining} remain")


def bad_null(name: str) -> NoReturn:
    raise ProtocolError(f"{name} is null, which this version does not allow")


def bad_length(name: str, length: int) -> NoReturn:
    raise ProtocolError(f"{name} has the impossible length {length}")


def too_many(name: str, count: int) -> NoReturn:
    raise ProtocolError(f"{name} announces {count} elements, more than one message may carry")


def bytes_of(buf: Received, pos: int, end: int) -> BytesLike:
    view = memoryview(buf)[pos:end]
    return bytes(view) if end - pos <= LARGE_BYTES else view


def bad_tag(tag: int) -> NoReturn:
    raise ProtocolError(f"tagged field {tag} does not fill its announced size")


def rest_of_uvarint(buf: Received, pos: int, first: int) -> tuple[int, int]:
    """Read the rest of an unsigned varint whose first byte, already read, had its high bit set."""
    value = first & 0x7F
    for shift in (7, 14, 21, 28):
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
    raise ProtocolError("an unsigned varint is longer than five bytes")


def read_uvarint(buf: Received, pos: int) -> tuple[int, int]:
    byte = buf[pos]
    return (byte, pos + 1) if byte < 0x80 else rest_of_uvarint(buf, pos + 1, byte)


def skip_tagged_fields(buf: Received, pos: int, first: int) -> int:
    """Skip a section of unknown tagged fields; `first` is the first byte of its count."""
    count, pos = _count_of_tagged_fields(buf, pos, first)
    return _skip_fields(buf, pos, count)


def skip_tagged_fields_in_slices(buf: Received, pos: int, first: int) -> Generator[None, None, int]:
    """Like `skip_tagged_fields`, but yields after every few of them."""
    count, pos = _count_of_tagged_fields(buf, pos, first)
    while count > SLICE_TAGGED_FIELDS:
        pos = _skip_fields(buf, pos, SLICE_TAGGED_FIELDS)
        count -= SLICE_TAGGED_FIELDS
        yield
    return _skip_fields(buf, pos, count)


def _count_of_tagged_fields(buf: Received, pos: int, first: int) -> tuple[int, int]:
    """Return how many fields follow, and the position of the first."""
    count = first
    if first >= 0x80:
        count, pos = rest_of_uvarint(buf, pos, first)
    size = len(buf)
    if count * 2 > size - pos:
        short(count * 2, size - pos)
    if count > MAX_TAGGED_FIELDS:
        too_many("a section of tagged fields", count)
    return count, pos


def _skip_fields(buf: Received, pos: int, count: int) -> int:
    size = len(buf)
    for _ in range(count):
        _, pos = read_uvarint(buf, pos)
        length, pos = read_uvarint(buf, pos)
        if length > size - pos:
            short(length, size - pos)
        pos += length
    return pos


def uvarint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def compact_string_length(length: int) -> bytes:
    """The length of a compact string too long for COMPACT_LENGTH."""
    if length > STRING_MAX_BYTES:
        raise ValueError(f"a string of {length} bytes")
    return uvarint(length + 1)


def shortened(text: bytes) -> bytes:
    """Cut UTF-8 text to the length of a string, between two characters."""
    if len(text) <= STRING_MAX_BYTES:
        return text
    return text[: STRING_MAX_BYTES - len(_CUT)].decode(errors="ignore").encode() + _CUT


@lru_cache(maxsize=8192)
def uuid_of(raw: bytes) -> UUID:
    """Cached, because topic ids repeat and creating a UUID takes a microsecond."""
    return UUID(bytes=raw) if any(raw) else ZERO_UUID


@lru_cache(maxsize=256)
def unpackers(code: str) -> tuple[Callable[[Received, int], tuple[Any, ...]], ...]:
    """unpack_from for arrays of 0, 1, 2 ... elements of one fixed-size type."""
    return tuple(Struct(f">{n}{code}").unpack_from for n in range(SMALL))


def unpack_many(code: str, count: int, buf: Received, pos: int) -> tuple[Any, ...]:
    """Unpack a large array of one fixed-size type."""
    return Struct(f">{count}{code}").unpack_from(buf, pos)


@lru_cache(maxsize=256)
def packers(length_code: str, code: str) -> tuple[Callable[..., bytes], ...]:
    """pack for an array's count and its 0, 1, 2 ... elements."""
    return tuple(Struct(f">{length_code}{n}{code}").pack for n in range(SMALL))


def records_length(records: BytesLike | tuple[BytesLike, ...]) -> int:
    return sum(map(len, records)) if isinstance(records, tuple) else len(records)


def put_records(parts: list[BytesLike], out: list[BytesLike], records: BytesLike | tuple[BytesLike, ...]) -> None:
    """Append records to `out`. Large records end the part that `out` collects and become separate parts."""
    for piece in records if isinstance(records, tuple) else (records,):
        if len(piece) <= INLINE_RECORDS:
            out.append(piece)
            continue
        if out:
            parts.append(b"".join(out))
            out.clear()
        parts.append(piece)
