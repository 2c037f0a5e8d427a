"""Batches with odd headers and times: the answer to Produce, the stored bytes and the search by time must be equal.

Each batch is written to a partition of its own, so that a batch that one broker refuses does not move the others.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

import crc32c

from klamm.errors import ErrorCode
from klamm.protocol.compression import CompressionType
from klamm.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from klamm.protocol.record_batch import PREFIX, Record, build_batch
from tests.support.raw_client import RawClient

NOW_MS: Final = 1_700_000_000_000
LARGEST: Final = 2**63 - 1
TIMES: Final = (-5, -2, -1, 0, LARGEST - 1, LARGEST)
TOPICS: Final = {"odd-create": "CreateTime", "odd-append": "LogAppendTime"}
SEARCHED: Final = (-3, -2, -1, 0, NOW_MS, LARGEST)
_ATTRIBUTES: Final = 21
_CRC: Final = 17
_BASE_TIMESTAMP: Final = 27
_MAX_TIMESTAMP: Final = 35


def patched(batch: bytes, position: int, layout: str, value: int) -> bytes:
    """Return the batch with another value in its header and the checksum that belongs to it."""
    changed = bytearray(batch)
    struct.pack_into(layout, changed, position, value)
    struct.pack_into(">I", changed, _CRC, crc32c.crc32c(bytes(changed[_ATTRIBUTES:])))
    return bytes(changed)


def with_attributes(batch: bytes, bits: int) -> bytes:
    (attributes,) = struct.unpack_from(">H", batch, _ATTRIBUTES)
    return patched(batch, _ATTRIBUTES, ">H", attributes | bits)


def _batch(*times: int, codec: CompressionType = CompressionType.NONE) -> bytes:
    return build_batch([Record(timestamp=time, value=b"v") for time in times], compression=codec)


def odd_batches() -> list[tuple[str, bytes]]:
    return list(_odd_batches())


def _odd_batches() -> Iterator[tuple[str, bytes]]:
    for codec in (CompressionType.NONE, CompressionType.GZIP, CompressionType.ZSTD):
        what = codec.name.lower()
        plain = _batch(NOW_MS, codec=codec)
        for bit in (3, *range(5, 16)):
            yield f"{what}, attribute bit {bit}", with_attributes(plain, 1 << bit)
        yield f"{what}, all reserved bits", with_attributes(plain, 0xFF80)
        for time in TIMES:
            yield f"{what}, time {time}", _batch(time, codec=codec)
            yield f"{what}, times {NOW_MS} and {time}", _batch(NOW_MS, time, codec=codec)
            yield f"{what}, header's last time {time}", patched(plain, _MAX_TIMESTAMP, ">q", time)
            yield f"{what}, header's first time {time}", patched(plain, _BASE_TIMESTAMP, ">q", time)
    for number in (5, 6, 7):
        yield f"codec {number}", with_attributes(_batch(NOW_MS), number)


class Stored:
    """One broker's view of the partition that a batch was written to."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._client = RawClient(address[1], address[0])

    def write(self, topic: str, partition: int, batch: bytes) -> str:
        """Return the answer, the stored batch and the offsets and times that searches find, as one text."""
        answer = self._client.produce(topic, batch, partition=partition, acks=1)
        error = ErrorCode(answer.error_code).name
        has_own_time = TOPICS[topic] == "LogAppendTime"
        time = "now" if has_own_time and answer.log_append_time_ms > 0 else answer.log_append_time_ms
        parts = [f"{error}, offset {answer.base_offset}, append time {time}"]
        if answer.error_code == ErrorCode.NONE:
            data = self._client.fetch(topic, 0, partition=partition)
            slices = data.records if isinstance(data.records, tuple) else (data.records or b"",)
            parts.append(f"fetched {ErrorCode(data.error_code).name} {_shown(b''.join(slices), has_own_time)}")
            parts += self._searches(topic, partition, has_own_time)
        return "; ".join(parts)

    def _searches(self, topic: str, partition: int, has_own_time: bool) -> Iterator[str]:
        for timestamp in SEARCHED:
            wanted = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
            request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[wanted])])
            [found] = self._client.ask(request, 7, ListOffsetsResponse).topics[0].partitions
            time = "now" if has_own_time and found.timestamp > 0 else found.timestamp
            yield f"search {timestamp}: {ErrorCode(found.error_code).name} {found.offset} at {time}"


def _shown(raw: bytes, has_own_time: bool) -> str:
    """Return the batch in hex, without the leader epoch, and without the times that the broker has set."""
    shown = bytearray(raw)
    shown[12 : PREFIX.size] = bytes(PREFIX.size - 12)
    if has_own_time:
        for start, end in ((_CRC, _ATTRIBUTES), (_MAX_TIMESTAMP, _MAX_TIMESTAMP + 8)):
            shown[start:end] = bytes(end - start)
    return shown.hex()


def differences(klamm: tuple[str, int], kafka: tuple[str, int], batches: Sequence[tuple[str, bytes]]) -> list[str]:
    """Write every batch to both brokers; return the differences. The topics have a partition per batch."""
    ours, theirs = Stored(klamm), Stored(kafka)
    found = []
    for topic in TOPICS:
        for partition, (what, batch) in enumerate(batches):
            one, two = (side.write(topic, partition, batch) for side in (ours, theirs))
            if one != two:
                found.append(f"{topic}, {what}: klamm {one}, kafka {two}")
    return found
