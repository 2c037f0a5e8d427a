"""DescribeProducers (61): the producers whose state a replica keeps.

v0. Every replica answers, not only the leader; a partition that is named several times is answered once. An invalid
topic name is INVALID_TOPIC_EXCEPTION (17). The response contains the start offset of an open transaction, or the
coordinator epoch of the last marker. The other field is -1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from klamm.apis.access import may
from klamm.apis.api_declaration import Answer, Api, Broker, Plane, RequestContext
from klamm.apis.slices import LOGS, each, each_partition
from klamm.controller.topic_validation import validate_topic_name
from klamm.errors import ErrorCode
from klamm.log.producer_entry import ProducerStateEntry
from klamm.model import TopicPartition
from klamm.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from klamm.security.acl.bindings import AclOperation, ResourceType
from klamm.waiting import Steps, begin

_PRODUCERS: Final = 1_000
"""Producers that are described without giving the loop back: about a millisecond."""


def handle(broker: Broker, ctx: RequestContext, req: DescribeProducersRequest) -> Answer[DescribeProducersResponse]:
    return begin(_describe(broker, ctx, req))


def _describe(broker: Broker, ctx: RequestContext, req: DescribeProducersRequest) -> Steps[DescribeProducersResponse]:
    # Once each: otherwise a short request that repeats a partition could exhaust the memory.
    asked: dict[str, dict[int, None]] = {}
    ctx.hold(asked)
    yield from each_partition(
        req.topics,
        lambda topic: topic.partition_indexes,
        lambda topic, index: asked.setdefault(topic.name, {}).setdefault(index),
        lambda topic, _: asked.setdefault(topic.name, {}),
    )
    topics: list[TopicResponse] = []
    done = 0
    for name, indexes in asked.items():
        partitions: list[PartitionResponse] = []
        refusal = _refusal(broker, ctx, name)
        for index in indexes:
            partitions.append(refusal(index) if refusal else (yield from _partition(broker, name, index)))
            done += 1
            if done % LOGS == 0:
                yield
        topics.append(TopicResponse(name=name, partitions=partitions))
        done += 1
        if done % LOGS == 0:
            yield
    return DescribeProducersResponse(throttle_time_ms=0, topics=topics)


def _refusal(broker: Broker, ctx: RequestContext, topic: str) -> Callable[[int], PartitionResponse] | None:
    """Return the answer for every partition of a topic that cannot be described; None if it can."""
    if (refused := validate_topic_name(topic)) is not None:
        return partial(_error, error=refused.error, message=refused.message)
    if not may(broker, ctx, AclOperation.READ, ResourceType.TOPIC, topic):
        return partial(_error, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return None


def _partition(broker: Broker, topic: str, index: int) -> Steps[PartitionResponse]:
    partition = broker.replicas.partition_or_error(TopicPartition(topic, index))
    if isinstance(partition, ErrorCode):
        return _error(index, partition)
    log = partition.log
    entries = list(log.producers.entries.values()) if log is not None else []
    producers = yield from each(entries, _producer, _PRODUCERS)
    return PartitionResponse(partition_index=index, error_code=ErrorCode.NONE, active_producers=producers)


def _producer(entry: ProducerStateEntry) -> ProducerState:
    first_offset = entry.current_txn_first_offset
    return ProducerState(
        producer_id=entry.producer_id,
        producer_epoch=entry.producer_epoch,
        last_sequence=entry.last_sequence,
        last_timestamp=entry.last_timestamp,
        coordinator_epoch=entry.coordinator_epoch,
        current_txn_start_offset=-1 if first_offset is None else first_offset,
    )


def _error(index: int, error: ErrorCode, message: str | None = None) -> PartitionResponse:
    return PartitionResponse(partition_index=index, error_code=error, error_message=message, active_producers=())


API = Api(
    DescribeProducersRequest, DescribeProducersResponse, versions=(0, 0), plane=Plane.DATA, handle=handle, is_read=True
)
