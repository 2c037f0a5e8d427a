"""WriteTxnMarkers (27): a transaction coordinator ends transactions in the partitions that this broker leads.

v0-2:

- v1: flexible.
- v2: the request has the `transaction.version` of each marker (KIP-1228).

A marker is a control batch, which no Produce can write. Every marker has an answer of its own. A partition that is
named twice in a marker has one answer. The response waits until all in-sync replicas have the markers, and until the
offsets that the transaction committed for consumer groups are visible or dropped.

A coordinator whose epoch is older than that of the last marker is TRANSACTION_COORDINATOR_FENCED (52). A marker of an
older producer epoch is INVALID_PRODUCER_EPOCH (47).

From version 2 on the coordinator bumps the epoch at every end. A marker with the epoch of the open transaction is late
and is INVALID_PRODUCER_EPOCH. One with the epoch of the last marker repeats it and succeeds.

Before version 2 a late marker is not written, and its connection is closed without an answer. It is late in two cases:

- its coordinator has sent one of the same epochs on a younger connection;
- its connection is older than the leadership, and the producer has begun another transaction.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from klamm.apis.access import is_open, is_peer, may_on_cluster
from klamm.apis.api_declaration import Answer, Api, Broker, Plane, RequestContext
from klamm.apis.guards import FromPeer, Handle
from klamm.apis.slices import each, each_partition
from klamm.errors import ErrorCode
from klamm.log.end_markers import marker_record_fields
from klamm.log.producer_state import AppendOrigin
from klamm.log.verification_state import TransactionCheck
from klamm.model import GROUP_METADATA_TOPIC, TopicPartition, TransactionVersion
from klamm.protocol.chunked import CHUNK, ChunkedList, SpreadDict, of_chunks
from klamm.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from klamm.protocol.record_batch import Record, build_batch
from klamm.replica.append_path import append_records
from klamm.replica.record_checks import AppendResults
from klamm.security.acl.bindings import AclOperation
from klamm.waiting import Steps, after, begin, result_of

_ALL_IN_SYNC: Final = -1
_AT_ONCE: Final = 10
"""Appends without giving the loop back. Each may have to open a log."""


class _Written(NamedTuple):
    """A marker whose appends were begun, and the answers so far."""

    producer_id: int
    pending: deque[AppendResults | asyncio.Future[AppendResults]]
    topics: SpreadDict[str, list[list[WritableTxnMarkerPartitionResult]]]


def handle(broker: Broker, ctx: RequestContext, req: WriteTxnMarkersRequest) -> Answer[WriteTxnMarkersResponse]:
    return begin(_write(broker, ctx, req))


def _write(
    broker: Broker, ctx: RequestContext, req: WriteTxnMarkersRequest, *, is_of_operator: bool = False
) -> Steps[Any]:
    written: deque[_Written] = deque()
    room = _AT_ONCE
    for marker in req.markers:
        batch = _control_batch(marker, broker.clock.now_ms())
        check = TransactionCheck(_version(marker), is_of_operator=is_of_operator)
        partitions = yield from _partitions(ctx, marker)
        done = _Written(marker.producer_id, deque(), SpreadDict())
        written.append(done)
        room -= 1
        for start in range(0, len(partitions), _AT_ONCE):
            if room <= 0:
                yield
                room = _AT_ONCE
            part = partitions[start : start + _AT_ONCE]
            if not _admits(broker, ctx, marker, check.version, part):
                ctx.close_connection()
                return None
            room -= len(part)
            appended = append_records(
                broker.replicas,
                _ALL_IN_SYNC,
                True,
                AppendOrigin.COORDINATOR,
                dict.fromkeys(part, batch),
                broker.config.request_timeout_ms,
                transactions=dict.fromkeys(part, check),
            )
            done.pending.append(after(appended, partial(_complete_offsets, broker, marker)))
        if room <= 0:
            yield
            room = _AT_ONCE
    return (yield from _response(written))


def _admits(
    broker: Broker,
    ctx: RequestContext,
    marker: WritableTxnMarker,
    version: TransactionVersion,
    partitions: Sequence[TopicPartition],
) -> bool:
    """Whether the coordinator has not repeated this marker on another connection. Newer versions have the epoch."""
    if version.bumps_epoch:
        return True
    term = marker.producer_id, marker.producer_epoch, marker.coordinator_epoch
    connection = ctx.channel.order
    if not broker.replicas.transactional_producers.marker_connections.admit(*term, connection):
        return False
    hosted = map(broker.replicas.partitions.get, partitions)
    return not any(partition is not None and partition.is_late_marker(*term, connection) for partition in hosted)


def _partitions(ctx: RequestContext, marker: WritableTxnMarker) -> Steps[Sequence[TopicPartition]]:
    """Return the partitions of a marker, each once."""
    once: SpreadDict[TopicPartition, int] = SpreadDict()
    partitions: ChunkedList[TopicPartition] = ChunkedList()

    def add(topic: WritableTxnMarkerTopic, index: int) -> None:
        tp = TopicPartition(topic.name, index)
        number = len(partitions)
        if once.setdefault(tp, number) == number:
            partitions.append(tp)

    yield from each_partition(marker.topics, lambda topic: topic.partition_indexes, add, lambda *_: None)
    if len(partitions) > CHUNK:
        ctx.hold(partitions, *once.dicts)
    return partitions


def _control_batch(marker: WritableTxnMarker, now_ms: int) -> bytes:
    key, value = marker_record_fields(not marker.transaction_result, marker.coordinator_epoch)
    return build_batch(
        [Record(timestamp=now_ms, key=key, value=value)],
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        is_control=True,
        is_transactional=True,
    )


def _version(marker: WritableTxnMarker) -> TransactionVersion:
    """A version that this broker does not know is at least as strict as the newest one it knows."""
    newest = max(TransactionVersion)
    return TransactionVersion(min(max(marker.transaction_version, TransactionVersion.TV_0), newest))


def _complete_offsets(
    broker: Broker, marker: WritableTxnMarker, results: AppendResults
) -> AppendResults | asyncio.Future[AppendResults]:
    """Offsets that the transaction committed become visible, or are dropped, before the coordinator has its answer.

    Otherwise the producer could send those of its next transaction meanwhile, which would replace them.
    """
    offsets = {
        tp.partition: result.base_offset
        for tp, result in results.items()
        if tp.topic == GROUP_METADATA_TOPIC and result.error == ErrorCode.NONE
    }
    if not offsets:
        return results
    completed = broker.groups.on_transaction_completed(marker.producer_id, offsets, commit=marker.transaction_result)
    return after(completed.on(broker.loop), lambda _: results)


def _response(written: deque[_Written]) -> Steps[WriteTxnMarkersResponse]:
    """Wait for the appends, in their order, and collect their results."""
    results: ChunkedList[WritableTxnMarkerResult] = ChunkedList()
    room = _AT_ONCE
    while written:
        if room <= 0:
            yield
            room = _AT_ONCE
        producer_id, pending, topics = written[0]
        while pending:
            first = yield from result_of(pending.popleft())
            for tp, result in first.items():
                row = WritableTxnMarkerPartitionResult(partition_index=tp.partition, error_code=result.error)
                rows = topics.setdefault(tp.topic, [[]])
                if len(rows[-1]) >= CHUNK:
                    rows.append([])
                rows[-1].append(row)
            room -= len(first)
            if room <= 0 and pending:
                yield
                room = _AT_ONCE
        answers = yield from each(
            topics.items(), lambda topic: WritableTxnMarkerTopicResult(name=topic[0], partitions=of_chunks(topic[1]))
        )
        results.append(WritableTxnMarkerResult(producer_id=producer_id, topics=answers))
        while len(topics.dicts) > 1:  # To free the answers of very many topics at once would hold the loop.
            topics.dicts.pop()
            yield
        written.popleft()
        room -= 1
    return WriteTxnMarkersResponse(markers=results)


def _refused(ctx: RequestContext, req: WriteTxnMarkersRequest, error: ErrorCode) -> Any:
    return begin(_refusal(req, error))


def _refusal(req: WriteTxnMarkersRequest, error: ErrorCode) -> Steps[WriteTxnMarkersResponse]:
    markers = []
    for marker in req.markers:
        topics = yield from each_partition(
            marker.topics,
            lambda topic: topic.partition_indexes,
            lambda _, index: WritableTxnMarkerPartitionResult(partition_index=index, error_code=error),
            lambda topic, rows: WritableTxnMarkerTopicResult(name=topic.name, partitions=rows),
        )
        markers.append(WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics))
        yield
    return WriteTxnMarkersResponse(markers=markers)


class _Guard(FromPeer):
    """Coordinators send markers, and so do operators with ALTER on the cluster, who end a hanging transaction.

    If no rule of an authorizer decides, every client may act as an operator, but only to abort: a commit comes from a
    proven broker. Such a marker must name the epoch of an open transaction (otherwise 47), and its coordinator epoch
    must not exceed that of the last marker (otherwise 31): higher epochs would fence the producer or its coordinator
    for ever.
    """

    def __init__(self) -> None:
        super().__init__(_refused)

    def __call__(self, broker: Broker, handle: Handle, ctx: RequestContext, req: WriteTxnMarkersRequest) -> Any:
        has_no_rule = is_open(broker, ctx)
        if not has_no_rule and may_on_cluster(broker, ctx, AclOperation.ALTER, is_probe=True):
            return handle(ctx, req)
        first = req.markers[0] if len(req.markers) == 1 else None
        is_abort = first is not None and not first.transaction_result and first.producer_id >= 0
        if has_no_rule and is_abort and not is_peer(broker, ctx, is_probe=True):
            return begin(_write(broker, ctx, req, is_of_operator=True))
        return super().__call__(broker, handle, ctx, req)


API = Api(
    WriteTxnMarkersRequest, WriteTxnMarkersResponse, versions=(0, 2), plane=Plane.DATA, handle=handle, guard=_Guard()
)
