"""Produce (0): appends record batches to the partitions this broker leads.

v0-11: append time v2; transactional id v3; log start offset v5; record errors and messages v8; the current leader and
its endpoint when this broker is not it v10. v0-2 carry the message formats of old (v0, v1): the log refuses these
batch by batch with INVALID_RECORD (87), the versions stay for the clients that look for them.
acks=0 gets no response, and a failure then closes the connection, because nothing else could tell the client. acks
other than -1, 0 and 1 is INVALID_REQUIRED_ACKS (21). Transactions are left out: a transactional id is answered with
INVALID_TXN_STATE (48), as for a partition that is in no transaction.
"""

from __future__ import annotations

import asyncio
from typing import Final

from klamm.apis.leader_hint import WRONG_LEADER, LeaderHints
from klamm.apis.registry import Api, Broker, Plane, RequestContext, then
from klamm.errors import ErrorCode
from klamm.log.producer_state import AppendOrigin
from klamm.log.results import AppendResult
from klamm.model import TopicPartition
from klamm.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from klamm.replica.append_path import AppendResults, RecordsBytes, failed

ADMIN_CLIENT_ID: Final = "__admin_client"


def handle(
    broker: Broker, ctx: RequestContext, req: ProduceRequest
) -> ProduceResponse | asyncio.Future[ProduceResponse] | None:
    acks = req.acks
    entries: dict[TopicPartition, RecordsBytes] = {}
    for topic in req.topic_data:
        name = topic.name
        for data in topic.partition_data:
            entries[TopicPartition(name, data.index)] = data.records if data.records is not None else b""
    if not -1 <= acks <= 1:
        return _response(broker, ctx, _refused(entries, ErrorCode.INVALID_REQUIRED_ACKS))
    if req.transactional_id is not None:
        results: AppendResults | asyncio.Future[AppendResults] = _refused(entries, ErrorCode.INVALID_TXN_STATE)
    else:
        is_admin = ctx.client_id == ADMIN_CLIENT_ID
        results = broker.replicas.append_records(acks, is_admin, AppendOrigin.CLIENT, entries, req.timeout_ms)
    if isinstance(results, asyncio.Future):
        return then(results, lambda done: _response(broker, ctx, done))
    if acks == 0:
        if any(result.error for result in results.values()):
            ctx.close_connection()
        return None
    return _response(broker, ctx, results)


def _refused(entries: dict[TopicPartition, RecordsBytes], error: ErrorCode) -> AppendResults:
    return {tp: failed(error) for tp in entries}


def _response(broker: Broker, ctx: RequestContext, results: AppendResults) -> ProduceResponse:
    """Grouped as the request was: results are in its order. The request itself is not held while it waits."""
    hints: LeaderHints | None = None
    topics: list[TopicProduceResponse] = []
    partitions: list[PartitionProduceResponse] = []
    name: str | None = None
    for tp, result in results.items():
        if tp.topic != name:
            name, partitions = tp.topic, []
            topics.append(TopicProduceResponse(name=name, partition_responses=partitions))
        answer = PartitionProduceResponse(
            index=tp.partition,
            error_code=result.error,
            base_offset=result.base_offset,
            log_append_time_ms=result.log_append_time_ms,
            log_start_offset=result.log_start_offset,
        )
        if result.error:
            _explain(answer, result)
            if result.error in WRONG_LEADER and ctx.api_version >= 10:
                hints = hints or LeaderHints(broker, ctx)
                _name_leader(answer, tp, hints)
        partitions.append(answer)
    response = ProduceResponse(responses=topics)
    if hints is not None:
        response.node_endpoints = [
            NodeEndpoint(node_id=node_id, host=endpoint.host, port=endpoint.port, rack=rack)
            for node_id, (endpoint, rack) in hints.endpoints.items()
        ]
    return response


def _explain(answer: PartitionProduceResponse, result: AppendResult) -> None:
    answer.base_offset = -1
    answer.error_message = result.error_message
    answer.record_errors = [
        BatchIndexAndErrorMessage(batch_index=error.batch_index, batch_index_error_message=error.message)
        for error in result.record_errors
    ]


def _name_leader(answer: PartitionProduceResponse, tp: TopicPartition, hints: LeaderHints) -> None:
    if (state := hints.leader_of(tp)) is not None:
        answer.current_leader = LeaderIdAndEpoch(leader_id=state.leader, leader_epoch=state.leader_epoch)


API = Api(ProduceRequest, ProduceResponse, versions=(0, 11), plane=Plane.DATA, handle=handle)
