"""DescribeProducers (61): the producers whose state a replica keeps.

v0. Every replica answers, not only the leader; a partition that is named several times is answered once. An invalid
topic name is INVALID_TOPIC_EXCEPTION (17). Transactions are left out, so no transaction start is ever given unless the
log itself (written by another broker) has one open.
"""

from __future__ import annotations

from klamm.apis.api_declaration import Api, Broker, Plane, RequestContext, Sliced
from klamm.apis.slices import LOGS, Steps, begin, each_partition
from klamm.controller.topic_validation import validate_topic_name
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)


def handle(
    broker: Broker, ctx: RequestContext, req: DescribeProducersRequest
) -> DescribeProducersResponse | Sliced[DescribeProducersResponse]:
    return begin(_describe(broker, req))


def _describe(broker: Broker, req: DescribeProducersRequest) -> Steps[DescribeProducersResponse]:
    # Once each: a short request that repeats a partition would ask for more producers than memory holds.
    asked: dict[str, dict[int, None]] = {}
    yield from each_partition(
        req.topics,
        lambda topic: topic.partition_indexes,
        lambda topic, index: asked.setdefault(topic.name, {}).setdefault(index),
        lambda topic, _: asked.setdefault(topic.name, {}),
    )
    topics = yield from each_partition(
        asked.items(),
        lambda topic: topic[1],
        lambda topic, index: _partition(broker, topic[0], index),
        lambda topic, partitions: TopicResponse(name=topic[0], partitions=partitions),
        LOGS,
    )
    return DescribeProducersResponse(throttle_time_ms=0, topics=topics)


def _partition(broker: Broker, topic: str, index: int) -> PartitionResponse:
    if (refused := validate_topic_name(topic)) is not None:
        return _error(index, refused.error, refused.message)
    partition = broker.replicas.partition_or_error(TopicPartition(topic, index))
    if isinstance(partition, ErrorCode):
        return _error(index, partition)
    log = partition.log
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
            for entry in (log.producers.entries.values() if log is not None else ())
        ],
    )


def _error(index: int, error: ErrorCode, message: str | None = None) -> PartitionResponse:
    return PartitionResponse(partition_index=index, error_code=error, error_message=message, active_producers=())


API = Api(
    DescribeProducersRequest, DescribeProducersResponse, versions=(0, 0), plane=Plane.DATA, handle=handle, is_read=True
)
