"""OffsetForLeaderEpoch (23): where a leader epoch ends, so that a reader finds where its log diverges (KIP-101/320).

v0-4: leader epoch in the response v1; the reader's current leader epoch v2, checked (74, 75); replica id v3.
"""

from __future__ import annotations

from typing import Final

from klamm.apis.registry import Api, Broker, Plane, RequestContext
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from klamm.replica.partition_reader import offset_for_leader_epoch

_DEBUGGING_CONSUMER: Final = -2


def handle(broker: Broker, ctx: RequestContext, req: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
    require_leader = ctx.api_version < 3 or req.replica_id != _DEBUGGING_CONSUMER
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[_partition(broker, topic.topic, asked, require_leader) for asked in topic.partitions],
            )
            for topic in req.topics
        ]
    )


def _partition(broker: Broker, topic: str, asked: OffsetForLeaderPartition, require_leader: bool) -> EpochEndOffset:
    partition = broker.replicas.partition_or_error(TopicPartition(topic, asked.partition))
    if isinstance(partition, ErrorCode):
        return EpochEndOffset(error_code=partition, partition=asked.partition)
    found = offset_for_leader_epoch(
        partition, asked.current_leader_epoch, asked.leader_epoch, require_leader=require_leader
    )
    return EpochEndOffset(
        error_code=found.error,
        partition=asked.partition,
        leader_epoch=found.leader_epoch,
        end_offset=found.end_offset,
    )


API = Api(
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    versions=(0, 4),
    plane=Plane.DATA,
    handle=handle,
    is_read=True,
)
