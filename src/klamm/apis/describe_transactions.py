"""DescribeTransactions (65): state, producer and partitions of transactional ids.

v0. Only the coordinator of an id answers; others, and one that may have a successor after a pause (decision 0042),
return NOT_COORDINATOR (16). An unknown id is TRANSACTIONAL_ID_NOT_FOUND (105), an empty one INVALID_REQUEST (42). Each
id is answered once.
"""

from __future__ import annotations

from typing import Final

from klamm.apis.access import may
from klamm.apis.api_declaration import Answer, Api, Broker, Plane, RequestContext
from klamm.apis.slices import SLICE, each
from klamm.errors import ErrorCode
from klamm.protocol.chunked import ChunkedList
from klamm.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from klamm.security.acl.bindings import AclOperation, ResourceType
from klamm.waiting import Steps, begin

_PARTITIONS_PER_SLICE: Final = 1000


def handle(
    broker: Broker, ctx: RequestContext, req: DescribeTransactionsRequest
) -> Answer[DescribeTransactionsResponse]:
    return begin(_describe_all(broker, ctx, req))


def _describe_all(
    broker: Broker, ctx: RequestContext, req: DescribeTransactionsRequest
) -> Steps[DescribeTransactionsResponse]:
    once: dict[str, None] = {}
    yield from each(req.transactional_ids, once.setdefault)
    ctx.hold(once)
    states: ChunkedList[TransactionState] = ChunkedList()
    room = SLICE
    for name in once:
        if room <= 0:
            yield
            room = SLICE
        state = yield from _describe(broker, ctx, name)
        states.append(state)
        room -= 1 + sum(len(topic.partitions) for topic in state.topics)
    return DescribeTransactionsResponse(transaction_states=states)


def _describe(broker: Broker, ctx: RequestContext, transactional_id: str) -> Steps[TransactionState]:
    if not may(broker, ctx, AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        return _failed(transactional_id, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    described = broker.transactions.describe(transactional_id)
    value = described.value
    if value is None:
        return _failed(transactional_id, described.error)
    topics: dict[str, list[int]] = {}
    for number, (topic, index) in enumerate(value.partitions, 1):
        topics.setdefault(topic, []).append(index)
        if number % _PARTITIONS_PER_SLICE == 0:
            yield
    if broker.acls is not None:
        hidden = [
            name
            for name in topics
            if not may(broker, ctx, AclOperation.DESCRIBE, ResourceType.TOPIC, name, is_probe=True)
        ]
        for name in hidden:
            del topics[name]
    return TransactionState(
        error_code=described.error,
        transactional_id=transactional_id,
        transaction_state=value.state.title,
        transaction_timeout_ms=value.timeout_ms,
        transaction_start_time_ms=value.start_timestamp_ms,
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        topics=[TopicData(topic=topic, partitions=indexes) for topic, indexes in topics.items()],
    )


def _failed(transactional_id: str, error: ErrorCode) -> TransactionState:
    return TransactionState(
        error_code=error,
        transactional_id=transactional_id,
        transaction_state="",
        transaction_timeout_ms=0,
        transaction_start_time_ms=0,
        producer_id=0,
        producer_epoch=0,
        topics=(),
    )


API = Api(
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    versions=(0, 0),
    plane=Plane.DATA,
    handle=handle,
    is_read=True,
)
