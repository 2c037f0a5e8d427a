"""The request frames the load generator sends, and where a bare server finds the record batch in them."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

from klamm.protocol.frames import RequestHeader
from klamm.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from klamm.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.protocol.record_batch import Record, build_batch
from klamm.protocol.wire import Message
from tests.support.frames import encode_request_frame

PRODUCE_VERSION, FETCH_VERSION, LIST_OFFSETS_VERSION = 7, 11, 4


@dataclass(frozen=True, slots=True)
class ProduceFrame:
    frame: bytes
    batch_at: int
    """Where the record batch starts in the frame, after the four bytes of its length."""
    batch_bytes: int


def frame(message: Message, version: int, correlation_id: int = 1) -> bytes:
    return b"".join(encode_request_frame(RequestHeader(message.KEY, version, correlation_id, "bench"), message))


def batch(size_bytes: int, record_bytes: int = 1000) -> bytes:
    """A batch of about `size_bytes`, with records that do not compress."""
    now_ms = int(time.time() * 1000)
    count = max(1, size_bytes // (record_bytes + 12))
    value_bytes = min(record_bytes, size_bytes - 80)
    records = [Record(offset=n, timestamp=now_ms, key=None, value=os.urandom(value_bytes)) for n in range(count)]
    return bytes(build_batch(records))


def produce_frame(topic: str, partition: int, size_bytes: int, acks: int = 1) -> ProduceFrame:
    records = batch(size_bytes)
    data = PartitionProduceData(index=partition, records=records)
    request = ProduceRequest(
        acks=acks, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )
    whole = frame(request, PRODUCE_VERSION)
    return ProduceFrame(whole, whole.index(records), len(records))


def fetch_frame(topic: str, offsets: Sequence[int], partition_bytes: int) -> bytes:
    partitions = [
        FetchPartition(partition=p, fetch_offset=offset, partition_max_bytes=partition_bytes)
        for p, offset in enumerate(offsets)
    ]
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=50 << 20,
        topics=[FetchTopic(topic=topic, partitions=partitions)],
    )
    return frame(request, FETCH_VERSION)


def list_offsets_frame(topic: str) -> bytes:
    wanted = ListOffsetsTopic(name=topic, partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])
    return frame(ListOffsetsRequest(replica_id=-1, topics=[wanted]), LIST_OFFSETS_VERSION)
