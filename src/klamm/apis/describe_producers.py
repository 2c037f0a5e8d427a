"""DescribeProducers (61): the producers whose state a partition's leader keeps.

v0. Answered from the leader's producer state; transactions are left out, so no transaction start is ever given
unless the log itself (written by another broker) has one open.
"""

from __future__ import annotations

from klamm.apis.registry import Api, Broker, Plane, RequestContext
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)


def handle(broker: Broker, ctx: RequestContext, req: DescribeProducersRequest) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        throttle_time_ms=0,
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[_partition(broker, topic.name, index) for index in topic.partition_indexes],
            )
            for topic in req.topics
        ],
    )


def _partition(broker: Broker, topic: str, index: int) -> PartitionResponse:
    log = broker.replicas.leader_log(TopicPartition(topic, index))
    if isinstance(log, ErrorCode):
        return PartitionResponse(partition_index=index, error_code=log, active_producers=())
    return PartitionResponse(
        partition_index=index,
        error_code=ErrorCode.NONE,
        active_producers=[
            ProducerState(
                producer_id=entry.producer_id,
                producer_epoch=entry.producer_epoch,
                last_sequence=entry.last_sequence,
                last_timestamp=entry.last_timestamp,
                coordinator_epoch=entry.coordinator_epoch,
                current_txn_start_offset=-1
                if entry.current_txn_first_offset is None
                else entry.current_txn_first_offset,
            )
            for entry in log.producers.entries.values()
        ],
    )


API = Api(DescribeProducersRequest, DescribeProducersResponse, versions=(0, 0), plane=Plane.DATA, handle=handle)
