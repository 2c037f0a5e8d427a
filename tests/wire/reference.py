"""A slow codec that walks the classes field by field: plainly right, and there to be compared with the fast one.

It shares nothing with the compilers but the annotations of the message classes.
"""

from __future__ import annotations

import struct
import typing
from collections.abc import Iterator
from dataclasses import MISSING, fields
from functools import cache
from typing import Annotated, Any
from uuid import UUID

from klamm.protocol.wire import ALWAYS, Kind, Message, Struct


class Malformed(Exception):
    """The bytes are not a message."""


@cache
def hints(cls: type[Struct]) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


def present(cls: Any, version: int) -> Iterator[Any]:
    """(name, hint, versions, default) of the fields that a version has."""
    for f in fields(cls):
        versions = f.metadata.get("versions", ALWAYS)
        if versions.since <= version <= versions.until:
            yield f.name, hints(cls)[f.name], versions, None if f.default is MISSING else f.default


class Reader:
    """Reads one message from bytes."""

    def __init__(self, buf: bytes, version: int, flexible: bool) -> None:
        self.buf, self.version, self.flexible = buf, version, flexible
        self.pos = 0

    def take(self, n: int) -> bytes:
        if n < 0 or self.pos + n > len(self.buf):
            raise Malformed(f"{n} bytes at {self.pos} of {len(self.buf)}")
        self.pos += n
        return self.buf[self.pos - n : self.pos]

    def fixed(self, code: str) -> Any:
        return struct.unpack(">" + code, self.take(struct.calcsize(">" + code)))[0]

    def uvarint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise Malformed("long varint")

    def length(self, code: str) -> int | None:
        n: int = self.uvarint() - 1 if self.flexible else self.fixed(code)
        return None if n < 0 else n

    def struct(self, cls: Any) -> Any:
        values = {}
        tagged = {}
        for name, hint, versions, _ in present(cls, self.version):
            if versions.tag is None:
                values[name] = self.value(hint, versions.nullable)
            else:
                tagged[versions.tag] = (name, hint)
        if self.flexible:
            for _ in range(self.uvarint()):
                tag, size = self.uvarint(), self.uvarint()
                end = self.pos + size
                if tag in tagged:
                    name, hint = tagged[tag]
                    values[name] = self.value(struct_of(hint) or hint, None)
                else:
                    self.take(size)
                if self.pos != end:
                    raise Malformed("tagged field of another size")
        return cls(**values)

    def value(self, hint: Any, nullable_since: int | None) -> Any:
        if isinstance(hint, type):
            return self.struct(hint)
        if typing.get_origin(hint) is not Annotated:
            return None if self.fixed("b") < 0 else self.struct(struct_of(hint))
        base, kind = typing.get_args(hint)
        if kind.code:
            raw = self.fixed(kind.code)
            return UUID(bytes=raw) if kind.name == "uuid" else raw
        n = self.length("h" if kind.name == "string" else "i")
        if n is None:
            if not kind.nullable or self.version < (nullable_since or 0):
                raise Malformed("null")
            return None
        return self.sized(base, kind, n)

    def sized(self, base: Any, kind: Kind, n: int) -> Any:
        if kind.name == "array":
            return [self.value(element_of(base), None) for _ in range(n)]
        if kind.name == "string" and n > 32767:
            raise Malformed("long string")
        raw = self.take(n)
        return raw.decode("utf-8") if kind.name == "string" else raw


class Writer:
    """Writes one message to bytes."""

    def __init__(self, version: int, flexible: bool) -> None:
        self.version, self.flexible = version, flexible

    def struct(self, msg: Any) -> bytes:
        out = b""
        tags: dict[int, bytes] = {}
        for name, hint, versions, default in present(type(msg), self.version):
            value = getattr(msg, name)
            if versions.tag is None:
                out += self.value(hint, value)
                continue
            inner = struct_of(hint)
            absent = value is None or value == inner() if inner else value == default or (value == [] and default == ())
            if not absent:
                tags[versions.tag] = self.value(inner or hint, value)
        if self.flexible:
            out += uvarint(len(tags))
            for tag in sorted(tags):
                out += uvarint(tag) + uvarint(len(tags[tag])) + tags[tag]
        return out

    def value(self, hint: Any, value: Any) -> bytes:
        if isinstance(hint, type):
            return self.struct(value)
        if typing.get_origin(hint) is not Annotated:
            return b"\xff" if value is None else b"\x01" + self.struct(value)
        base, kind = typing.get_args(hint)
        if kind.code:
            return struct.pack(">" + kind.code, value.bytes if kind.name == "uuid" else value)
        code = "h" if kind.name == "string" else "i"
        if value is None:
            return b"\x00" if self.flexible else struct.pack(">" + code, -1)
        if kind.name == "array":
            body = b"".join(self.value(element_of(base), item) for item in value)
            n = len(value)
        else:
            body = value.encode() if kind.name == "string" else bytes(value)
            n = len(body)
        return (uvarint(n + 1) if self.flexible else struct.pack(">" + code, n)) + body


def uvarint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value % 128 + 128])
        value //= 128
    return out + bytes([value])


def struct_of(hint: Any) -> Any:
    """The struct behind `X` or `X | None`, else None."""
    return next((a for a in (hint, *typing.get_args(hint)) if isinstance(a, type) and issubclass(a, Struct)), None)


def element_of(base: Any) -> Any:
    """T of `Sequence[T]` or `Sequence[T] | None`."""
    if type(None) in typing.get_args(base):
        base = next(a for a in typing.get_args(base) if a is not type(None))
    return typing.get_args(base)[0]


def reference_decode(cls: type[Message], version: int, buf: bytes) -> tuple[Any, int]:
    reader = Reader(buf, version, version >= cls.FLEXIBLE)
    try:
        return reader.struct(cls), reader.pos
    except UnicodeDecodeError as error:
        raise Malformed("utf-8") from error


def reference_encode(msg: Message, version: int) -> bytes:
    return Writer(version, version >= msg.FLEXIBLE).struct(msg)
