"""Produce requests with record batches that a broker must refuse, or answer as Kafka does, in an attack on it.

The checksums are right, so that the batches reach the checks of the records. They go to every broker: only the leader
looks into them.
"""

from __future__ import annotations

import struct
from typing import Final

import crc32c

from klamm.protocol.compression import CompressionType, compress
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.protocol.record_batch import HEADER, Record, build_batch, encode_record
from tests.support.attack_target import Target, send_each_version

_CODECS: Final = (CompressionType.GZIP, CompressionType.SNAPPY, CompressionType.LZ4, CompressionType.ZSTD)
_CRC_POSITION: Final = 17
_CHECKED_FROM: Final = 21
_ATTRIBUTES_POSITION: Final = 21
_LAST_RESERVED_BIT: Final = 16
_FIRST_RESERVED_BIT: Final = 7
_VERSION: Final = 9
ODD_TIMES: Final = (-5, -1, 0, (1 << 63) - 1)


def damaged_batches(target: Target) -> None:
    """Batches with flipped bytes, and one in four with the checksum that it had before."""
    for _ in range(target.count(20)):
        data = bytearray(build_batch([Record(value=target.rng.randbytes(200)) for _ in range(5)]))
        for _ in range(target.rng.randrange(1, 4)):
            data[target.rng.randrange(len(data))] ^= 1 << target.rng.randrange(8)
        produce(target, with_checksum(data) if target.rng.randrange(4) else bytes(data))


def odd_headers(target: Target) -> None:
    """Reserved attribute bits, and times that no clock shows."""
    whole = build_batch([Record(value=b"reserved")])
    for bit in range(_FIRST_RESERVED_BIT, _LAST_RESERVED_BIT):
        data = bytearray(whole)
        (attributes,) = struct.unpack_from(">H", data, _ATTRIBUTES_POSITION)
        struct.pack_into(">H", data, _ATTRIBUTES_POSITION, attributes | 1 << bit)
        produce(target, with_checksum(data))
    for timestamp in ODD_TIMES:
        produce(target, build_batch([Record(timestamp=timestamp, value=b"odd")]))


def broken_inside(target: Target) -> None:
    """Compressed batches whose checksum is right and whose records are not."""
    for codec in _CODECS:
        for body in _broken_bodies(target):
            produce(target, _packed(compress(codec, body), codec))
        packed = compress(codec, _records(0, 1))
        produce(target, _packed(packed[: len(packed) // 2], codec))
        produce(target, _packed(target.rng.randbytes(50), codec))


def _broken_bodies(target: Target) -> tuple[bytes, ...]:
    """Bodies of a batch that claims two records."""
    flipped = bytearray(_records(0, 1))
    flipped[target.rng.randrange(len(flipped))] ^= 0xFF
    return _records(0), _records(0, 1, 2), _records(1, 0), _records(0, 5), _records(0, 1) + b"\0", bytes(flipped), b""


def _records(*offset_deltas: int) -> bytes:
    return b"".join(encode_record(Record(value=b"value"), delta, 0) for delta in offset_deltas)


def _packed(body: bytes, codec: CompressionType) -> bytes:
    fields = (0, HEADER.size - 12 + len(body), -1, 2, 0, codec, 1, 0, 0, -1, -1, -1, 2)
    return with_checksum(bytearray(HEADER.pack(*fields) + body))


def with_checksum(batch: bytearray) -> bytes:
    """The batch with the checksum of its bytes as they are now."""
    struct.pack_into(">I", batch, _CRC_POSITION, crc32c.crc32c(bytes(batch[_CHECKED_FROM:])))
    return bytes(batch)


def produce(target: Target, records: bytes) -> None:
    data = [
        TopicProduceData(name=target.damaged_topic, partition_data=[PartitionProduceData(index=0, records=records)])
    ]
    send_each_version(target, ProduceRequest(acks=1, timeout_ms=1_000, topic_data=data), (_VERSION,))
