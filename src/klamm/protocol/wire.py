"""The wire codec: encode and decode messages of any version.

Encoders and decoders are compiled from the class of a message once per version, at the first use of that version
(`compiler_decode`, `compiler_encode`). `declaration` describes how a message is declared.

Decoding raises only ProtocolError: an error of the peer. Encoding a value that does not fit its type raises ValueError:
an error of the caller.
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from mmap import mmap
from typing import Any, TypeVar

from klamm.errors import ProtocolError
from klamm.protocol.chunked import Held
from klamm.protocol.compiler_decode import compile_decoder, compile_sliced_decoder
from klamm.protocol.compiler_encode import compile_encoder, compile_sliced_encoder, compile_template
from klamm.protocol.declaration import (
    ALWAYS,
    NEVER,
    Array,
    Bool,
    Bytes,
    BytesLike,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    Kind,
    Message,
    NullableArray,
    NullableBytes,
    NullableString,
    Received,
    Records,
    RecordSlices,
    String,
    Struct,
    UInt16,
    UInt32,
    Uuid,
    Versions,
    message,
    since,
)
from klamm.protocol.schema import explain_misfit

__all__ = [
    "ALWAYS",
    "NEVER",
    "Array",
    "Bool",
    "Bytes",
    "BytesLike",
    "Float64",
    "Int8",
    "Int16",
    "Int32",
    "Int64",
    "Kind",
    "Message",
    "NullableArray",
    "NullableBytes",
    "NullableString",
    "Received",
    "RecordSlices",
    "Records",
    "String",
    "Struct",
    "UInt16",
    "UInt32",
    "Uuid",
    "Versions",
    "decode",
    "decode_in_slices",
    "encode",
    "encode_around",
    "encode_bytes",
    "encode_in_slices",
    "message",
    "since",
]

_MALFORMED = (struct.error, IndexError, UnicodeDecodeError, ValueError, OverflowError, RecursionError)
_UNFIT = (struct.error, AttributeError, TypeError, ValueError, OverflowError)

M = TypeVar("M", bound=Message)


def decode(cls: type[M], version: int, buf: Received, pos: int = 0) -> tuple[M, int]:
    """Read one message at `pos`; return it with the position after it. Raises ProtocolError only."""
    decoder = cls.DECODERS.get(version)
    if decoder is None:
        if version not in cls.VERSIONS:
            raise ProtocolError(f"{cls.__name__} has no version {version}")
        decoder = cls.DECODERS[version] = compile_decoder(cls, version)
    received: Any = _owner(buf) if buf.__class__ is memoryview else buf
    try:
        return decoder(received, pos)
    except _MALFORMED as error:
        raise ProtocolError(f"{cls.__name__} v{version} is malformed: {error}") from error


def encode(msg: Message, version: int) -> list[BytesLike]:
    """Return the bytes of a message as a few parts.

    Large records are the caller's own objects, not copies. Raises ValueError if a value does not fit its type.
    """
    encoder = msg.ENCODERS.get(version)
    if encoder is None:
        if version not in msg.VERSIONS:
            raise ValueError(f"{type(msg).__name__} has no version {version}")
        encoder = msg.ENCODERS[version] = compile_encoder(type(msg), version)
    try:
        return encoder(msg)
    except _UNFIT as error:
        raise ValueError(f"{type(msg).__name__} v{version}: {explain_misfit(msg, version) or error}") from error


def decode_in_slices(
    cls: type[M], version: int, buf: bytes | bytearray | mmap, pos: int = 0, held: Held | None = None
) -> Generator[None, None, tuple[M, int]]:
    """Like `decode`, but yields at least after every millisecond of work. `bytes` above 4 MiB stay views of `buf`.

    Arrays of more than 1,000 elements are `Chunked`. `held` receives the lists of the message (`chunked.release`).
    """
    decoder = cls.SLICED_DECODERS.get(version)
    if decoder is None:
        if version not in cls.VERSIONS:
            raise ProtocolError(f"{cls.__name__} has no version {version}")
        decoder = cls.SLICED_DECODERS[version] = compile_sliced_decoder(cls, version)
    try:
        return (yield from decoder(buf, pos, [] if held is None else held))
    except _MALFORMED as error:
        raise ProtocolError(f"{cls.__name__} v{version} is malformed: {error}") from error


def encode_in_slices(msg: Message, version: int, held: Held | None = None) -> Generator[None, None, list[BytesLike]]:
    """Like `encode`, but yields after less than a millisecond of work. `held` receives the lists of the message."""
    encoder = msg.SLICED_ENCODERS.get(version)
    if encoder is None:
        if version not in msg.VERSIONS:
            raise ValueError(f"{type(msg).__name__} has no version {version}")
        encoder = msg.SLICED_ENCODERS[version] = compile_sliced_encoder(type(msg), version)
    try:
        return (yield from encoder(msg, [] if held is None else held))
    except _UNFIT as error:
        raise ValueError(f"{type(msg).__name__} v{version}: {explain_misfit(msg, version) or error}") from error


def encode_around(msg: Message, version: int, *holes: str) -> list[bytes]:
    """Return the bytes before, between and after the fields named `holes`.

    The caller inserts the bytes of these fields.

    For fields that many messages share, or that are encoded faster elsewhere. Raises ValueError for a field that the
    version does not have.
    """
    template = msg.TEMPLATES.get((version, holes))
    if template is None:
        if version not in msg.VERSIONS:
            raise ValueError(f"{type(msg).__name__} has no version {version}")
        template = msg.TEMPLATES[version, holes] = compile_template(type(msg), version, holes)
    try:
        return [b"".join(parts) for parts in template(msg)]
    except _UNFIT as error:
        raise ValueError(f"{type(msg).__name__} v{version}: {explain_misfit(msg, version) or error}") from error


def encode_bytes(msg: Message, version: int) -> bytes:
    """Return the bytes of a message in one piece."""
    return b"".join(encode(msg, version))


def _owner(view: memoryview) -> bytes | bytearray:
    """Return the object if the view covers all of it, else a copy: indexing bytes is twice as fast as a view."""
    owner = view.obj
    if isinstance(owner, bytes | bytearray) and view.nbytes == len(owner) and view.contiguous:
        return owner
    return bytes(view)
