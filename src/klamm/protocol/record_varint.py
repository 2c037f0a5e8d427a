"""Zig-zag varints of records: seven bits per byte, the lowest first."""

from __future__ import annotations

from typing import Final

from klamm.errors import ProtocolError

_MAX_VARLONG_BITS: Final = 63


def read_varint(view: memoryview, position: int) -> tuple[int, int]:
    """Return the number at `position` and the position after it. Raises IndexError if the buffer ends too early."""
    byte = view[position]
    position += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position
    raw = byte & 0x7F
    shift = 7
    while True:
        byte = view[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), position
        shift += 7
        if shift > _MAX_VARLONG_BITS:
            raise ProtocolError("a varint of a record is longer than ten bytes")


def write_varint(out: bytearray, value: int) -> None:
    raw = (value << 1) ^ (value >> 63)
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
