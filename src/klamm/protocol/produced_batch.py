"""Batches of a producer, from records that are encoded already."""

from __future__ import annotations

import struct
from typing import Final

import crc32c

from klamm.protocol.compression import CompressionType, compress
from klamm.protocol.record_batch import (
    ATTRIBUTES_POSITION,
    CRC_POSITION,
    HEADER,
    LOG_OVERHEAD,
    MAGIC_V2,
    NO_PARTITION_LEADER_EPOCH,
    RECORD_BATCH_OVERHEAD,
    TRANSACTIONAL_BIT,
)
from klamm.protocol.wire import BytesLike

_CRC: Final = struct.Struct(">I")


def transactional_batch(
    records: BytesLike,
    count: int,
    *,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    timestamp_ms: int,
    codec: CompressionType = CompressionType.NONE,
    level: int | None = None,
) -> bytes:
    """Return a batch of `count` encoded records with offset deltas 0, 1, 2 and timestamp delta 0."""
    packed = bytes(records) if codec is CompressionType.NONE else compress(codec, records, level)
    header = HEADER.pack(
        0,
        RECORD_BATCH_OVERHEAD - LOG_OVERHEAD + len(packed),
        NO_PARTITION_LEADER_EPOCH,
        MAGIC_V2,
        0,
        codec | TRANSACTIONAL_BIT,
        count - 1,
        timestamp_ms,
        timestamp_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    checked = header[ATTRIBUTES_POSITION:]
    crc = _CRC.pack(crc32c.crc32c(packed, crc32c.crc32c(checked)))
    return b"".join((header[:CRC_POSITION], crc, checked, packed))
