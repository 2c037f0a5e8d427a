"""Produce (0): appends record batches to the partitions this broker leads.

v0-11: append time v2; transactional id v3; KAFKA_STORAGE_ERROR v4 (before it NOT_LEADER_OR_FOLLOWER); log start offset
v5; zstd v7 (before it UNSUPPORTED_COMPRESSION_TYPE, 76); record errors and messages v8; the current leader and its
endpoint when this broker is not it v10. v0-2 carry messages of the formats 0 and 1, which become record batches; from
v3 on they are INVALID_RECORD (87).
acks=0 gets no response, and a failure then closes the connection, because the client has no other way to notice. acks
other than -1, 0 and 1 is INVALID_REQUIRED_ACKS (21). Transactions are left out: a transactional id is answered with
INVALID_TXN_STATE (48), as for a partition that is in no transaction; transactional records without such an id are
TRANSACTIONAL_ID_AUTHORIZATION_FAILED (53) for the whole request.
"""

from __future__ import annotations

import asyncio
from typing import Final

from klamm.apis.api_declaration import Api, Broker, Plane, RequestContext
from klamm.apis.leader_hint import WRONG_LEADER, LeaderHints
from klamm.apis.parts import Parts, in_parts
from klamm.errors import ErrorCode
from klamm.log.producer_state import AppendOrigin
from klamm.log.results import AppendResult
from klamm.model import TopicPartition
from klamm.protocol.compression import CompressionType
from klamm.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from klamm.protocol.record_batch import (
    ATTRIBUTES_POSITION,
    COMPRESSION_MASK,
    MAGIC_POSITION,
    MAGIC_V2,
    TRANSACTIONAL_BIT,
)
from klamm.replica.append_path import append_records, failed
from klamm.replica.record_checks import AppendResults, RecordsBytes
from klamm.waiting import after

ADMIN_CLIENT_ID: Final = "__admin_client"
_FIRST_WITH_BATCHES: Final = 3
_FIRST_WITH_ZSTD: Final = 7
_FLAGS: Final = ATTRIBUTES_POSITION + 1
"""The byte of a batch's attributes that has all the bits in use."""


def handle(
    broker: Broker, ctx: RequestContext, req: ProduceRequest
) -> ProduceResponse | asyncio.Future[ProduceResponse | None] | None:
    acks = req.acks
    is_transactional = False
    entries: dict[TopicPartition, RecordsBytes] = {}
    for topic in req.topic_data:
        name = topic.name
        for data in topic.partition_data:
            records = data.records if data.records is not None else b""
            entries[TopicPartition(name, data.index)] = records
            if len(records) > _FLAGS and records[_FLAGS] & TRANSACTIONAL_BIT and records[MAGIC_POSITION] == MAGIC_V2:
                is_transactional = True
    if not -1 <= acks <= 1:
        return _response(broker, ctx, _refused(entries, ErrorCode.INVALID_REQUIRED_ACKS))
    if req.transactional_id is not None:
        results: AppendResults | asyncio.Future[AppendResults] = _refused(entries, ErrorCode.INVALID_TXN_STATE)
    elif is_transactional:
        results = _refused(entries, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    elif ctx.api_version < _FIRST_WITH_ZSTD:
        results = _append_old(broker, ctx, req, entries)
    else:
        is_admin = ctx.client_id == ADMIN_CLIENT_ID
        results = append_records(broker.replicas, acks, is_admin, AppendOrigin.CLIENT, entries, req.timeout_ms)
    if isinstance(results, asyncio.Future):
        return after(results, lambda done: _answer(broker, ctx, acks, done))
    return _answer(broker, ctx, acks, results)


def _answer(broker: Broker, ctx: RequestContext, acks: int, results: AppendResults) -> ProduceResponse | None:
    if acks == 0:
        if any(result.error for result in results.values()):
            ctx.close_connection()
        return None
    return _response(broker, ctx, results)


def _append_old(
    broker: Broker, ctx: RequestContext, req: ProduceRequest, entries: dict[TopicPartition, RecordsBytes]
) -> AppendResults | asyncio.Future[AppendResults]:
    """As for newer versions, but zstd came later: a client this old could not read its own records back."""
    message = f"zstd needs Produce v{_FIRST_WITH_ZSTD}"
    refused = {
        tp: failed(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, message)
        for tp, records in entries.items()
        if len(records) > _FLAGS
        and records[MAGIC_POSITION] == MAGIC_V2
        and records[_FLAGS] & COMPRESSION_MASK == CompressionType.ZSTD
    }
    accepted = {tp: records for tp, records in entries.items() if tp not in refused}
    is_admin = ctx.client_id == ADMIN_CLIENT_ID
    is_converted = ctx.api_version < _FIRST_WITH_BATCHES
    done = append_records(
        broker.replicas, req.acks, is_admin, AppendOrigin.CLIENT, accepted, req.timeout_ms, convert=is_converted
    )

    def in_order(results: AppendResults) -> AppendResults:
        return {tp: _as_told(refused.get(tp) or results[tp], ctx.api_version) for tp in order}

    order = tuple(entries)
    return after(done, in_order)


def _as_told(result: AppendResult, version: int) -> AppendResult:
    if version <= 3 and result.error == ErrorCode.KAFKA_STORAGE_ERROR:
        return result.with_error(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return result


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
                answer.current_leader = hints.current_leader(tp, LeaderIdAndEpoch)
        partitions.append(answer)
    response = ProduceResponse(responses=topics)
    if hints is not None:
        response.node_endpoints = hints.node_endpoints(NodeEndpoint)
    return response


def _explain(answer: PartitionProduceResponse, result: AppendResult) -> None:
    answer.base_offset = -1
    answer.error_message = result.error_message
    answer.record_errors = [
        BatchIndexAndErrorMessage(batch_index=error.batch_index, batch_index_error_message=error.message)
        for error in result.record_errors
    ]


_PARTS: Final = Parts(
    asked="topic_data",
    answers="responses",
    rows="partition_data",
    row_answers="partition_responses",
    most=100,
    together=True,
    union="node_endpoints",
)
API = Api(ProduceRequest, ProduceResponse, versions=(0, 11), plane=Plane.DATA, handle=in_parts(handle, _PARTS))
