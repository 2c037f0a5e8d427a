"""The four codecs of a record batch, with a limit on the decompressed size.

`decompress` determines the maximum size before it allocates memory: from the headers of snappy, and from the frames of
lz4 and zstd. gzip is stopped at the limit. Invalid input raises `ProtocolError`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import Final

import cramjam

from klamm.errors import ProtocolError

DEFAULT_MAX_DECOMPRESSED_BYTES: Final = 100 * 1024 * 1024


class UnpackedTooLargeError(ProtocolError):
    """The decompressed size of a batch exceeds the limit of its reader."""


class CompressionType(IntEnum):
    """The low three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @property
    def label(self) -> str:
        """The name used by `compression.type`."""
        return self.name.lower()


_INT32 = struct.Struct(">i")
_UINT32_LE = struct.Struct("<I")

_MAX_GZIP_MEMBERS: Final = 64
"""Maximum number of members of a gzip stream; producers write one.

The library copies the rest after each member, so many members would cost quadratic time.
"""

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES: Final = 32 * 1024

_LZ4_MAGIC: Final = 0x184D2204
# Version 1, independent blocks, no checksums, no content size, blocks up to 64 KiB, and the checksum of those two
# bytes. Java clients read independent blocks only, so the frame is written here and not by the library.
_LZ4_HEADER: Final = bytes.fromhex("04224d18604082")
_LZ4_BLOCK_BYTES: Final = 64 * 1024
_LZ4_END_MARK: Final = bytes(4)
_LZ4_UNCOMPRESSED_BIT: Final = 0x80000000

_ZSTD_MAGIC: Final = 0xFD2FB528
_SKIPPABLE_MAGIC_MASK: Final = 0xFFFFFFF0
_SKIPPABLE_MAGIC: Final = 0x184D2A50
_ZSTD_BLOCK_BYTES: Final = 128 * 1024


def compress(codec: CompressionType, data: bytes | bytearray | memoryview, level: int | None = None) -> bytes:
    """`level` is that of gzip or zstd; the other codecs have none."""
    if level is not None and codec is CompressionType.GZIP:
        return _compress_gzip(data, level)
    if level is not None and codec is CompressionType.ZSTD:
        return _compress_zstd(data, level)
    return _COMPRESSORS[codec](data)


def decompress(
    codec: int, data: bytes | memoryview, max_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
) -> bytes | memoryview:
    """Return the decompressed bytes.

    Raises ProtocolError if the codec is unknown or the input is invalid or too large.
    """
    decompressor = _DECOMPRESSORS.get(codec)
    if decompressor is None:
        raise ProtocolError(f"compression type {codec} is unknown: expected 0 to 4")
    try:
        return decompressor(memoryview(data), max_bytes)
    except (cramjam.DecompressionError, zlib.error, struct.error, IndexError, ValueError) as e:
        raise ProtocolError(f"the {CompressionType(codec).label} data of a record batch is broken: {e}") from e


def _too_large(max_bytes: int) -> UnpackedTooLargeError:
    return UnpackedTooLargeError(f"a record batch unpacks to more than the {max_bytes} bytes allowed")


def _compress_gzip(data: bytes | bytearray | memoryview, level: int = -1) -> bytes:
    packer = zlib.compressobj(level, wbits=31)
    return packer.compress(data) + packer.flush()


def _compress_snappy(data: bytes | bytearray | memoryview) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)


def _compress_lz4(data: bytes | bytearray | memoryview) -> bytes:
    view = memoryview(data)
    parts = [_LZ4_HEADER]
    for start in range(0, len(view), _LZ4_BLOCK_BYTES):
        plain = view[start : start + _LZ4_BLOCK_BYTES]
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(block) < len(plain):
            parts += (_UINT32_LE.pack(len(block)), block)
        else:
            parts += (_UINT32_LE.pack(len(plain) | _LZ4_UNCOMPRESSED_BIT), bytes(plain))
    parts.append(_LZ4_END_MARK)
    return b"".join(parts)


def _compress_zstd(data: bytes | bytearray | memoryview, level: int = 3) -> bytes:
    return bytes(cramjam.zstd.compress(data, level=level))


def _decompress_none(data: memoryview, max_bytes: int) -> memoryview:
    if len(data) > max_bytes:
        raise _too_large(max_bytes)
    return data


def _decompress_gzip(data: memoryview, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    total = 0
    rest = data
    while rest:
        if len(parts) == _MAX_GZIP_MEMBERS:
            raise ProtocolError(f"the gzip data of a record batch has more than {_MAX_GZIP_MEMBERS} members")
        unpacker = zlib.decompressobj(wbits=31)
        parts.append(unpacker.decompress(rest, max_bytes - total + 1))
        total += len(parts[-1])
        if total > max_bytes:
            raise _too_large(max_bytes)
        if not unpacker.eof:
            raise ProtocolError("the gzip data of a record batch ends too early")
        rest = rest[len(rest) - len(unpacker.unused_data) :]
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _decompress_snappy(data: memoryview, max_bytes: int) -> bytes:
    if bytes(data[:8]) != _XERIAL_MAGIC:
        return _snappy_block(data, 0, max_bytes)
    parts: list[bytes] = []
    total = 0
    pos = len(_XERIAL_HEADER)
    while pos < len(data):
        (size,) = _INT32.unpack_from(data, pos)
        pos += 4
        if size <= 0 or size > len(data) - pos:
            raise ProtocolError(f"a snappy block of {size} bytes does not fit into the {len(data) - pos} that remain")
        parts.append(_snappy_block(data[pos : pos + size], total, max_bytes))
        total += len(parts[-1])
        pos += size
    return b"".join(parts)


def _snappy_block(block: memoryview, unpacked_bytes: int, max_bytes: int) -> bytes:
    if unpacked_bytes + cramjam.snappy.decompress_raw_len(block) > max_bytes:
        raise _too_large(max_bytes)
    return bytes(cramjam.snappy.decompress_raw(block))


def _decompress_lz4(data: memoryview, max_bytes: int) -> memoryview:
    return _unpack_into(cramjam.lz4.decompress_into, data, _lz4_bound(data), max_bytes)


def _decompress_zstd(data: memoryview, max_bytes: int) -> memoryview:
    return _unpack_into(cramjam.zstd.decompress_into, data, _zstd_bound(data), max_bytes)


def _unpack_into(
    unpack: Callable[[memoryview, bytearray], int], data: memoryview, bound: int, max_bytes: int
) -> memoryview:
    """`bound` is the maximum size of the blocks; if it is above the limit, the actual size may still be below it."""
    out = bytearray(min(bound, max_bytes))
    try:
        size = unpack(data, out)
    except cramjam.DecompressionError:
        if bound > max_bytes:
            raise _too_large(max_bytes) from None
        raise
    return memoryview(out)[:size]


def _lz4_bound(data: memoryview) -> int:
    """Return the maximum decompressed size of the frame's blocks."""
    (magic,) = _UINT32_LE.unpack_from(data)
    if magic != _LZ4_MAGIC:
        raise ProtocolError("an lz4 record batch does not start with the lz4 frame magic")
    flags, descriptor = data[4], data[5]
    block_bytes = 1 << (8 + 2 * ((descriptor >> 4) & 7))
    has_block_checksum = bool(flags & 0x10)
    pos = 7 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
    bound = 0
    while True:
        (word,) = _UINT32_LE.unpack_from(data, pos)
        if word == 0:
            return bound
        size = word & ~_LZ4_UNCOMPRESSED_BIT
        bound += size if word & _LZ4_UNCOMPRESSED_BIT else min(block_bytes, 255 * size)
        pos += 4 + size + (4 if has_block_checksum else 0)


def _zstd_bound(data: memoryview) -> int:
    """Return the maximum decompressed size of all frames: a block never holds more than 128 KiB."""
    bound = pos = 0
    while pos < len(data):
        (magic,) = _UINT32_LE.unpack_from(data, pos)
        if magic & _SKIPPABLE_MAGIC_MASK == _SKIPPABLE_MAGIC:
            pos += 8 + int(_UINT32_LE.unpack_from(data, pos + 4)[0])
            continue
        if magic != _ZSTD_MAGIC:
            raise ProtocolError("a zstd record batch does not start with the zstd frame magic")
        frame_bound, pos = _zstd_frame_bound(data, pos)
        bound += frame_bound
    return bound


def _zstd_frame_bound(data: memoryview, pos: int) -> tuple[int, int]:
    """Return the size that one frame can decompress to, and the start of the next one."""
    flags = data[pos + 4]
    single_segment = bool(flags & 0x20)
    content_size_bytes = (1 if single_segment else 0, 2, 4, 8)[flags >> 6]
    pos += 5 + (0 if single_segment else 1) + (0, 1, 2, 4)[flags & 3] + content_size_bytes
    bound = 0
    while True:
        header = data[pos] | data[pos + 1] << 8 | data[pos + 2] << 16
        kind, size = (header >> 1) & 3, header >> 3
        bound += size if kind < 2 else _ZSTD_BLOCK_BYTES
        pos += 3 + (1 if kind == 1 else size)
        if header & 1:
            return bound, pos + (4 if flags & 4 else 0)


_COMPRESSORS: dict[int, Callable[[bytes | bytearray | memoryview], bytes]] = {
    CompressionType.NONE: bytes,
    CompressionType.GZIP: _compress_gzip,
    CompressionType.SNAPPY: _compress_snappy,
    CompressionType.LZ4: _compress_lz4,
    CompressionType.ZSTD: _compress_zstd,
}
_DECOMPRESSORS: dict[int, Callable[[memoryview, int], bytes | memoryview]] = {
    CompressionType.NONE: _decompress_none,
    CompressionType.GZIP: _decompress_gzip,
    CompressionType.SNAPPY: _decompress_snappy,
    CompressionType.LZ4: _decompress_lz4,
    CompressionType.ZSTD: _decompress_zstd,
}
