"""DeleteRecords (21): moves the start of partitions' logs, and answers when every replica has moved it.

v0-2. Offset -1 means the high watermark; beyond it is OFFSET_OUT_OF_RANGE (1); a topic that is only compacted says
POLICY_VIOLATION (44), an internal topic INVALID_TOPIC_EXCEPTION (17).
"""

from __future__ import annotations

import asyncio

from klamm.apis.registry import Api, Broker, Plane, RequestContext, then
from klamm.model import TopicPartition
from klamm.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from klamm.replica.delete_records import DeletedRecords


def handle(
    broker: Broker, ctx: RequestContext, req: DeleteRecordsRequest
) -> DeleteRecordsResponse | asyncio.Future[DeleteRecordsResponse]:
    offsets = {TopicPartition(t.name, p.partition_index): p.offset for t in req.topics for p in t.partitions}
    results = broker.replicas.delete_records(offsets, req.timeout_ms)
    return then(results, _response) if isinstance(results, asyncio.Future) else _response(results)


def _response(results: DeletedRecords) -> DeleteRecordsResponse:
    topics: dict[str, list[DeleteRecordsPartitionResult]] = {}
    for tp, result in results.items():
        topics.setdefault(tp.topic, []).append(
            DeleteRecordsPartitionResult(
                partition_index=tp.partition, low_watermark=result.low_watermark, error_code=result.error
            )
        )
    return DeleteRecordsResponse(
        throttle_time_ms=0,
        topics=[DeleteRecordsTopicResult(name=name, partitions=partitions) for name, partitions in topics.items()],
    )


API = Api(DeleteRecordsRequest, DeleteRecordsResponse, versions=(0, 2), plane=Plane.DATA, handle=handle)
