"""Writes single records, for people: one attempt, so that a record is never written twice."""

from __future__ import annotations

import random
from typing import Final

from klamm.client.client_errors import ClientError, ProduceError, UnknownTopicError
from klamm.client.cluster_client import ClusterClient
from klamm.client.patience import SINGLE_RECORD
from klamm.client.topic_details import topic_view
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from klamm.protocol.record_batch import Record, build_batch

_ALL_REPLICAS: Final = -1
_BY_NAME: Final = 12
_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_UINT32: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return the hash by which Kafka's producers choose the partition of a key, as a signed number of 32 bits."""
    length = len(data)
    value = _SEED ^ length
    for start in range(0, length - length % 4, 4):
        word = int.from_bytes(data[start : start + 4], "little") * _M & _UINT32
        word = (word ^ word >> 24) * _M & _UINT32
        value = (value * _M & _UINT32) ^ word
    if rest := data[length - length % 4 :]:
        value = (value ^ int.from_bytes(rest, "little")) * _M & _UINT32
    value = (value ^ value >> 13) * _M & _UINT32
    value ^= value >> 15
    return value - (1 << 32) if value >> 31 else value


def partition_of_key(key: bytes, partitions: int) -> int:
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def produce(client: ClusterClient, topic: str, partition: int | None, record: Record) -> tuple[int, int]:
    """Write a record with acks=all; return its partition and offset.

    Without a partition, the key decides as in Kafka's producers; without a key, any partition with a leader is used.
    Raises ClientError; after a lost answer it says that the record may have been written.
    """
    view = topic_view(client, topic)
    led = [part.index for part in view.partitions if part.leader is not None]
    if partition is None:
        if record.key is not None:
            partition = partition_of_key(record.key, len(view.partitions))
        elif not led:
            raise ClientError(f"No partition of {topic} has a leader.")
        else:
            partition = random.choice(led)
    if partition not in {part.index for part in view.partitions}:
        raise UnknownTopicError(f"Topic {topic} has no partition {partition}.")
    tp = TopicPartition(topic, partition)
    _, host, port = client.leader_address(tp)
    data = PartitionProduceData(index=partition, records=build_batch([record]))
    request = ProduceRequest(
        acks=_ALL_REPLICAS,
        timeout_ms=int(SINGLE_RECORD.deadline_s * 1000),
        topic_data=[TopicProduceData(name=topic, partition_data=[data])],
    )
    try:
        connection = client.connection((host, port))
        answer = connection.ask(request, ProduceResponse, connection.version(ProduceRequest, _BY_NAME))
    except OSError as error:
        client.lost_leader(tp)
        raise ClientError(f"The leader of {tp} did not answer, so the record may have been written: {error}.") from None
    ((row,),) = [each.partition_responses for each in answer.responses]
    if row.error_code != ErrorCode.NONE:
        raise ProduceError(tp, row.error_code, row.error_message)
    return partition, row.base_offset
