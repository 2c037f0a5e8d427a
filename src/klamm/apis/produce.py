"""Produce (0): appends record batches to the partitions this broker leads.

v0-12:

- v0-2: messages of the formats 0 and 1, which become record batches. From v3 on they are INVALID_RECORD (87).
- v2: append time.
- v3: transactional id.
- v4: KAFKA_STORAGE_ERROR. In earlier versions it is NOT_LEADER_OR_FOLLOWER.
- v5: log start offset.
- v7: zstd. In earlier versions it is UNSUPPORTED_COMPRESSION_TYPE (76).
- v8: errors of single records, and messages.
- v10: if this broker is not the leader, the current leader and its endpoint.
- v11: TRANSACTION_ABORTABLE (120). In earlier versions it is INVALID_TXN_STATE (48).
- v12: transactions of `transaction.version` 2. The leader adds their partitions.

acks=0 gets no response. A failure then closes the connection, because the client has no other way to notice. acks
other than -1, 0 and 1 is INVALID_REQUIRED_ACKS (21). Transactional records without a transactional id are
TRANSACTIONAL_ID_AUTHORIZATION_FAILED (53) for the whole request.

Before the first batch of a transaction the leader asks the coordinator (KIP-890). A partition that is not in the
transaction is INVALID_TXN_STATE. If the coordinator cannot be asked, the error is NOT_ENOUGH_REPLICAS (19), which
clients repeat.

Before v12, late transactional requests are dropped without a response. A request is late if its producer has a younger
connection to this broker, has closed this one, or has aborted a transaction since it opened this one. An abort does not
count for a client library that renews the epoch after a batch of unknown fate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from logging import DEBUG
from typing import Any, Final

from klamm.apis.access import is_logged, may
from klamm.apis.api_declaration import Api, Broker, Plane, RequestContext
from klamm.apis.guards import Each, Handle
from klamm.apis.leader_hint import WRONG_LEADER, LeaderHints
from klamm.apis.parts import Parts, in_parts
from klamm.apis.slices import each_partition
from klamm.errors import ErrorCode
from klamm.log.producer_state import AppendOrigin
from klamm.log.results import AppendResult
from klamm.model import TopicPartition, TransactionVersion
from klamm.protocol.compression import CompressionType
from klamm.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
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
from klamm.replica.transaction_verification import append_transactional
from klamm.security.acl.bindings import AclOperation, ResourceType
from klamm.waiting import Steps, after, begin, promptly

ADMIN_CLIENT_ID: Final = "__admin_client"
MOST_BYTES: Final = 1 << 20
"""Records that are appended in one slice of the loop, at 1 to 2 ms per MiB. A batch is never split."""
_FIRST_WITH_BATCHES: Final = 3
_FIRST_WITH_ZSTD: Final = 7
_FIRST_WITH_ABORTABLE: Final = 11
_FIRST_WITH_TV_2: Final = 12
_RENEWING_CLIENTS: Final = ("apache-kafka-java", "librdkafka", "confluent-kafka")
"""Libraries that take a new epoch after a batch whose fate they do not know (KIP-360), by the names of KIP-511."""
# Members under names of their own: Python 3.11 takes ten times as long to find `ErrorCode.NONE`.
_CLIENT: Final = AppendOrigin.CLIENT
_NONE: Final = ErrorCode.NONE
_WITH_RESPONSE: Final = (1, -1)
_FLAGS: Final = ATTRIBUTES_POSITION + 1
"""The byte of a batch's attributes that has all the bits in use."""


def handle_usual(broker: Broker, ctx: RequestContext, req: ProduceRequest) -> Any:
    """Handle a request with one batch by the shortest way; leave all that is less usual to `handle`, in parts."""
    topics, acks = req.topic_data, req.acks
    if len(topics) != 1 or len(topics[0].partition_data) != 1 or acks not in _WITH_RESPONSE:
        return _handle_in_parts(broker, ctx, req)
    name, data = topics[0].name, topics[0].partition_data[0]
    records = data.records
    if (
        records is None
        or len(records) <= _FLAGS
        or records[_FLAGS] & TRANSACTIONAL_BIT
        or ctx.api_version < _FIRST_WITH_ZSTD
    ):
        return _handle_in_parts(broker, ctx, req)
    tp = TopicPartition(name, data.index)
    is_admin = ctx.client_id == ADMIN_CLIENT_ID
    results = append_records(broker.replicas, acks, is_admin, _CLIENT, {tp: records}, req.timeout_ms)
    if isinstance(results, asyncio.Future):
        return promptly(results, partial(_answer, broker, ctx, acks))
    result = results[tp]
    if result.error or ctx.closes_connection:
        return _answer(broker, ctx, acks, results)
    answer = PartitionProduceResponse(
        index=tp.partition,
        error_code=_NONE,
        base_offset=result.base_offset,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=result.log_start_offset,
    )
    return ProduceResponse(responses=[TopicProduceResponse(name=name, partition_responses=[answer])])


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
    results: AppendResults | asyncio.Future[AppendResults]
    if is_transactional:
        results = _append_transactional(broker, ctx, req, entries)
    elif ctx.api_version < _FIRST_WITH_ZSTD:
        results = _append_old(broker, ctx, req, entries)
    else:
        is_admin = ctx.client_id == ADMIN_CLIENT_ID
        results = append_records(broker.replicas, acks, is_admin, _CLIENT, entries, req.timeout_ms)
    if isinstance(results, asyncio.Future):
        return promptly(results, partial(_answer, broker, ctx, acks))
    return _answer(broker, ctx, acks, results)


def _answer(broker: Broker, ctx: RequestContext, acks: int, results: AppendResults) -> ProduceResponse | None:
    if acks == 0:
        if any(result.error for result in results.values()):
            ctx.close_connection()
        return None
    if ctx.closes_connection:
        return None
    return _response(broker, ctx, results)


def _append_transactional(
    broker: Broker, ctx: RequestContext, req: ProduceRequest, entries: dict[TopicPartition, RecordsBytes]
) -> AppendResults | asyncio.Future[AppendResults]:
    if req.transactional_id is None:
        return _refused(entries, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    version = TransactionVersion.TV_2 if ctx.api_version >= _FIRST_WITH_TV_2 else TransactionVersion.TV_1
    refused = {} if ctx.api_version >= _FIRST_WITH_ZSTD else _packed_too_new(entries)
    done = append_transactional(
        broker.replicas,
        req.acks,
        ctx.client_id == ADMIN_CLIENT_ID,
        AppendOrigin.CLIENT,
        {tp: records for tp, records in entries.items() if tp not in refused} if refused else entries,
        req.timeout_ms,
        transactional_id=req.transactional_id,
        version=version,
        connection=ctx.channel.order,
        admit=None if version.bumps_epoch else partial(_admit, ctx),
        renews_epoch=ctx.client_software_name.startswith(_RENEWING_CLIENTS),
    )

    def for_client(results: AppendResults) -> AppendResults:
        if any(result.error == ErrorCode.NETWORK_EXCEPTION for result in results.values()):
            ctx.close_connection()
        return {tp: _for_client(refused.get(tp) or results[tp], ctx.api_version) for tp in order}

    order = tuple(entries)
    return promptly(done, for_client)


def _is_transactional(records: RecordsBytes | None) -> bool:
    return (
        records is not None
        and len(records) > _FLAGS
        and bool(records[_FLAGS] & TRANSACTIONAL_BIT)
        and records[MAGIC_POSITION] == MAGIC_V2
    )


def _admit(ctx: RequestContext) -> ErrorCode:
    """A client that closed its connection while the coordinator was asked has given up the batch.

    It may be a late one of an earlier transaction, whose bytes and whose end of the connection arrive together.
    """
    return ErrorCode.NETWORK_EXCEPTION if ctx.has_ended() else ErrorCode.NONE


def _append_old(
    broker: Broker, ctx: RequestContext, req: ProduceRequest, entries: dict[TopicPartition, RecordsBytes]
) -> AppendResults | asyncio.Future[AppendResults]:
    """As for newer versions, but zstd came later: a client this old could not read its own records back."""
    refused = _packed_too_new(entries)
    accepted = {tp: records for tp, records in entries.items() if tp not in refused}
    is_admin = ctx.client_id == ADMIN_CLIENT_ID
    is_converted = ctx.api_version < _FIRST_WITH_BATCHES
    done = append_records(
        broker.replicas, req.acks, is_admin, AppendOrigin.CLIENT, accepted, req.timeout_ms, convert=is_converted
    )

    def in_order(results: AppendResults) -> AppendResults:
        return {tp: _for_client(refused.get(tp) or results[tp], ctx.api_version) for tp in order}

    order = tuple(entries)
    return after(done, in_order)


def _packed_too_new(entries: dict[TopicPartition, RecordsBytes]) -> AppendResults:
    """Return the results for batches of zstd in requests that are too old for it."""
    message = f"zstd needs Produce v{_FIRST_WITH_ZSTD}"
    return {
        tp: failed(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, message)
        for tp, records in entries.items()
        if len(records) > _FLAGS
        and records[MAGIC_POSITION] == MAGIC_V2
        and records[_FLAGS] & COMPRESSION_MASK == CompressionType.ZSTD
    }


def _for_client(result: AppendResult, version: int) -> AppendResult:
    if version <= 3 and result.error == ErrorCode.KAFKA_STORAGE_ERROR:
        return result.with_error(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if version < _FIRST_WITH_ABORTABLE and result.error == ErrorCode.TRANSACTION_ABORTABLE:
        return result.with_error(ErrorCode.INVALID_TXN_STATE)
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


def _size(data: PartitionProduceData) -> int:
    return 0 if data.records is None else len(data.records)


_PARTS: Final = Parts(
    asked="topic_data",
    answers="responses",
    rows="partition_data",
    row_answers="partition_responses",
    most=100,
    row_bytes=_size,
    most_bytes=MOST_BYTES,
    together=True,
    union="node_endpoints",
)


_handle_in_parts: Final = in_parts(handle, _PARTS)


def _refused_topic(topic: TopicProduceData, rows: Sequence[PartitionProduceResponse]) -> TopicProduceResponse:
    return TopicProduceResponse(name=topic.name, partition_responses=rows)


def _close_without_acks(ctx: RequestContext, req: ProduceRequest) -> None:
    if req.acks == 0:
        ctx.close_connection()


_WRITE: Final = AclOperation.WRITE
_TOPIC: Final = ResourceType.TOPIC


class _Guard:
    """Every topic needs WRITE, and the transactional id of transactional records."""

    _topics = Each(
        kind=ResourceType.TOPIC,
        operation=AclOperation.WRITE,
        asked="topic_data",
        answers="responses",
        name=lambda topic: topic.name,
        rows=lambda topic: topic.partition_data,
        refuse=lambda row, error: PartitionProduceResponse(index=row.index, error_code=error, base_offset=-1),
        gather=_refused_topic,
        on_refusal=_close_without_acks,
    )

    def is_needed(self, broker: Broker) -> bool:
        return broker.acls is not None

    def __call__(self, broker: Broker, handle: Handle, ctx: RequestContext, req: ProduceRequest) -> Any:
        transactional_id = req.transactional_id
        topics = req.topic_data
        if transactional_id is None and len(topics) == 1:  # the usual request
            acls, name, channel = broker.acls, topics[0].name, ctx.channel
            asked = (channel.principal, channel.client_host, _WRITE, _TOPIC, name)
            # `may`, written out for decisions that are remembered: each call here costs 0.5 % of a small produce.
            is_known = acls is not None and acls.authorizer.remembered.get(asked) and not is_logged(DEBUG)
            if is_known or may(broker, ctx, _WRITE, _TOPIC, name):
                return handle(ctx, req)
            return self._topics.without(handle, ctx, req)
        if (
            transactional_id is not None
            and _has_transactional_records(req)
            and not may(broker, ctx, _WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
        ):
            _close_without_acks(ctx, req)
            return None if req.acks == 0 else begin(_refuse_all(req, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
        return self._topics(broker, handle, ctx, req)


def _has_transactional_records(req: ProduceRequest) -> bool:
    return any(_is_transactional(data.records) for topic in req.topic_data for data in topic.partition_data)


def _refuse_all(req: ProduceRequest, error: ErrorCode) -> Steps[ProduceResponse]:
    topics = yield from each_partition(
        req.topic_data,
        lambda topic: topic.partition_data,
        lambda _, row: PartitionProduceResponse(index=row.index, error_code=error, base_offset=-1),
        _refused_topic,
    )
    return ProduceResponse(responses=topics)


API = Api(
    ProduceRequest,
    ProduceResponse,
    versions=(0, 12),
    plane=Plane.DATA,
    handle=handle_usual,
    guard=_Guard(),
)
