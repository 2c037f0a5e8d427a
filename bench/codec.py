"""The wire codec beside a bare ceiling: the cost of one struct call per partition, or of one copy of the bytes.

    python -m bench.codec

Prints microseconds per item for decoding and encoding, and how many times the ceiling that is.
"""

from __future__ import annotations

import struct
import timeit
from collections.abc import Callable
from dataclasses import dataclass

from klamm.protocol.frames import FrameReader, RequestHeader, decode_request_header
from klamm.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.protocol.wire import Message, decode, encode, encode_bytes
from tests.support.frames import encode_request_frame

TOPICS, PARTITIONS = 20, 12
SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    items: int
    decode_us: float
    encode_us: float
    ceiling_us: float

    def __str__(self) -> str:
        ratio = self.decode_us / self.ceiling_us
        return (
            f"{self.name:<44} {self.items:>4} {self.decode_us:>9.2f} {self.encode_us:>9.2f}"
            f" {self.ceiling_us:>9.2f} {ratio:>7.1f}"
        )


def metadata_response() -> MetadataResponse:
    """20 topics of 12 partitions with three replicas."""
    partitions = [
        MetadataResponsePartition(
            error_code=0,
            partition_index=index,
            leader_id=1001,
            leader_epoch=7,
            replica_nodes=[1001, 1002, 1003],
            isr_nodes=[1001, 1002, 1003],
        )
        for index in range(PARTITIONS)
    ]
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=n, host=f"broker-{n}", port=9092) for n in (1001, 1002, 1003)],
        cluster_id="bench",
        controller_id=1001,
        topics=[MetadataResponseTopic(error_code=0, name=f"topic-{n}", partitions=partitions) for n in range(TOPICS)],
    )


def produce_request(record_bytes: int) -> ProduceRequest:
    data = PartitionProduceData(index=0, records=bytes(record_bytes))
    return ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=[data])])


def microseconds(action: Callable[[], object], items: int) -> float:
    """The best of five rounds, an item."""
    timer = timeit.Timer(action)
    rounds = max(1, int(SECONDS / max(timer.timeit(1), 1e-7)))
    return min(timer.repeat(5, rounds)) / rounds / items * 1e6


def figure(message: Message, version: int, items: int, ceiling: Callable[[bytes], object]) -> Figure:
    raw = encode_bytes(message, version)
    cls = type(message)
    return Figure(
        f"{cls.__name__} v{version}, {len(raw)} bytes",
        items,
        microseconds(lambda: decode(cls, version, raw), items),
        microseconds(lambda: encode(message, version), items),
        microseconds(lambda: ceiling(raw), items),
    )


def one_struct_a_partition(raw: bytes) -> list[tuple[object, ...]]:
    partition = struct.Struct(">hiiiiiiiiii")
    return [partition.unpack_from(raw, 0) for _ in range(TOPICS * PARTITIONS)]


def frames_figure() -> Figure:
    parts = encode_request_frame(RequestHeader(0, 9, 1, "bench"), produce_request(1000))
    frame = b"".join(parts)
    stream = frame * 50
    reader = FrameReader(1 << 20)

    def cut() -> None:
        for body in reader.receive(stream):
            decode_request_header(body)

    return Figure(
        f"frames and headers, {len(frame)} bytes",
        50,
        microseconds(cut, 50),
        microseconds(lambda: encode_request_frame(RequestHeader(0, 9, 1, "bench"), produce_request(1000)), 1),
        microseconds(lambda: [bytes(frame) for _ in range(50)], 50),
    )


def main() -> None:
    print(f"{'':<44} {'each':>4} {'decode us':>9} {'encode us':>9} {'ceiling':>9} {'times':>7}")
    for version in (8, 12):
        print(figure(metadata_response(), version, TOPICS * PARTITIONS, one_struct_a_partition))
    for version in (7, 9):
        for size in (1024, 256 * 1024):
            print(figure(produce_request(size), version, 1, lambda raw: struct.unpack_from(">hiih", raw)))
    print(frames_figure())


if __name__ == "__main__":
    main()
