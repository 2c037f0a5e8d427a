"""Fetch (1): record batches from the partitions this broker leads, or follows, for consumers and for followers.

v0-17: overall limit v3; isolation level v4; log start offset v5; KAFKA_STORAGE_ERROR v6 (before it
NOT_LEADER_OR_FOLLOWER); sessions v7 (KIP-227); leader epoch v9; zstd v10; rack and preferred replica v11 (KIP-392);
diverging epoch v12; topic ids v13; replica state v15; the current leader and its endpoint when this broker is not it
v16; replica directory v17 (read and not used).
From v11 on a follower answers consumers as well, up to its own high watermark: an offset between that and the end of
its log is no error but an empty answer, one beyond the end is OFFSET_OUT_OF_RANGE (1), on which clients ask the leader.
With `replica.selector.class` a leader sends a consumer of another rack to an in-sync follower there.
The first batch is always whole, whatever the limits. Clients of v0-3 know no record batches, and records are not
converted for them: a partition with something to read is UNSUPPORTED_VERSION (35). Below v10 one with zstd in it is
UNSUPPORTED_COMPRESSION_TYPE (76). A fetch with a broker's id as replica id reports that follower's progress.
While clients leave much of what they asked for unread (128 MiB over all), fetches get less, one batch at least.
"""

from __future__ import annotations

import asyncio
from typing import Final

from klamm.apis.fetch_context import FetchContext, open_context
from klamm.apis.leader_hint import WRONG_LEADER, LeaderHints
from klamm.apis.registry import Api, Broker, Plane, RequestContext, then
from klamm.errors import ErrorCode
from klamm.protocol.compression import CompressionType
from klamm.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from klamm.protocol.record_batch import batches
from klamm.replica.fetch_path import FetchParams, Reads
from klamm.replica.fetch_session import SessionPartition
from klamm.replica.partition_reader import Isolation, PartitionRead
from klamm.replica.replica_selector import ClientMetadata

_FIRST_WITH_BATCHES: Final = 4
_FIRST_WITH_STORAGE_ERROR: Final = 6
_FIRST_WITH_ZSTD: Final = 10
_FIRST_WITH_RACK: Final = 11
_MAX_WAIT_MS: Final = 600_000
"""The longest a fetch is held, whatever it asks for: nothing may stay parked for a client that has long gone."""


def handle(broker: Broker, ctx: RequestContext, req: FetchRequest) -> FetchResponse | asyncio.Future[FetchResponse]:
    context = open_context(broker, ctx.api_version, req)
    if isinstance(context, ErrorCode):
        return FetchResponse(error_code=context, responses=())
    refused, asked = _sort_out(broker, context, ctx.api_version)
    max_bytes = min(req.max_bytes, broker.config.fetch_max_bytes)
    params = _params(ctx, req, max_bytes, has_refused=bool(refused))
    reads = broker.replicas.fetch_messages(params, [(p.tp, p.fetch) for p in asked if p.tp is not None])
    if isinstance(reads, asyncio.Future):
        return then(reads, lambda done: _respond(broker, ctx, params, context, asked, done, refused))
    return _respond(broker, ctx, params, context, asked, reads, refused)


def _replica(version: int, req: FetchRequest) -> tuple[int, int]:
    if version < 15:
        return req.replica_id, -1
    state = req.replica_state
    return (-1, -1) if state is None else (state.replica_id, state.replica_epoch)


def _params(ctx: RequestContext, req: FetchRequest, max_bytes: int, *, has_refused: bool) -> FetchParams:
    replica_id, replica_epoch = _replica(ctx.api_version, req)
    if replica_id >= 0:
        isolation = Isolation.LOG_END
    else:
        isolation = Isolation.TXN_COMMITTED if req.isolation_level == 1 else Isolation.HIGH_WATERMARK
    is_consumer = replica_id == -1 and ctx.api_version >= _FIRST_WITH_RACK
    min_bytes = min(req.min_bytes, max_bytes)
    return FetchParams(
        max_wait_ms=0 if has_refused else min(req.max_wait_ms, _MAX_WAIT_MS),
        min_bytes=min_bytes if min_bytes <= ctx.response_room() else 1,
        max_bytes=max_bytes,
        isolation=isolation,
        replica_id=replica_id,
        replica_epoch=replica_epoch,
        budget=ctx,
        client=ClientMetadata(req.rack_id, ctx.listener_name) if is_consumer else None,
    )


def _sort_out(
    broker: Broker, context: FetchContext, version: int
) -> tuple[list[tuple[SessionPartition, PartitionRead]], list[SessionPartition]]:
    """Partitions whose topic id is unknown or not the one hosted here, and the ones to read."""
    if version < 13:
        return [], list(context.partitions())
    refused: list[tuple[SessionPartition, PartitionRead]] = []
    asked: list[SessionPartition] = []
    hosted = broker.replicas.partitions
    for partition in context.partitions():
        known = None if partition.tp is None else hosted.get(partition.tp)
        if known is None and broker.metadata.topic_name(partition.topic_id) is None:
            refused.append((partition, PartitionRead(ErrorCode.UNKNOWN_TOPIC_ID)))
        elif known is not None and known.topic_id.int not in (0, partition.topic_id.int):
            refused.append((partition, PartitionRead(ErrorCode.INCONSISTENT_TOPIC_ID)))
        else:
            asked.append(partition)
    return refused, asked


def _respond(
    broker: Broker,
    ctx: RequestContext,
    params: FetchParams,
    context: FetchContext,
    asked: list[SessionPartition],
    reads: Reads,
    refused: list[tuple[SessionPartition, PartitionRead]],
) -> FetchResponse:
    results = refused + [(partition, read) for partition, (_, read) in zip(asked, reads, strict=True)]
    if ctx.api_version < _FIRST_WITH_ZSTD:
        results = [(partition, _for_old_client(read, ctx.api_version)) for partition, read in results]
    _mark(broker, params, results)
    hints = LeaderHints(broker, ctx) if ctx.api_version >= 16 else None
    topics: list[FetchableTopicResponse] = []
    last: object = None
    for partition, read in context.to_send(results):
        data = _partition_data(partition, read, hints)
        topic = partition.topic_id if ctx.api_version >= 13 else partition.tp and partition.tp.topic
        if topics and topic == last:
            topics[-1].partitions.append(data)  # type: ignore[attr-defined]
        else:
            name = partition.tp.topic if partition.tp is not None else ""
            topics.append(FetchableTopicResponse(topic=name, topic_id=partition.topic_id, partitions=[data]))
            last = topic
    response = FetchResponse(session_id=context.session_id, responses=topics)
    if hints is not None and hints.endpoints:
        response.node_endpoints = hints.node_endpoints(NodeEndpoint)
    return response


def _for_old_client(read: PartitionRead, version: int) -> PartitionRead:
    """What a client can be given that does not know batches, zstd or failed disks."""
    if read.size_bytes and version < _FIRST_WITH_BATCHES:
        return PartitionRead(ErrorCode.UNSUPPORTED_VERSION)
    if read.size_bytes and any(batch.compression == CompressionType.ZSTD for batch in batches(read.records)):
        return PartitionRead(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    if read.error == ErrorCode.KAFKA_STORAGE_ERROR and version < _FIRST_WITH_STORAGE_ERROR:
        return PartitionRead(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return read


def _partition_data(partition: SessionPartition, read: PartitionRead, hints: LeaderHints | None) -> PartitionData:
    data = PartitionData(
        partition_index=partition.index,
        error_code=read.error,
        high_watermark=read.high_watermark,
        last_stable_offset=read.last_stable_offset,
        log_start_offset=read.log_start_offset,
        aborted_transactions=None,
        records=read.records,
        preferred_read_replica=read.preferred_read_replica,
    )
    if read.aborted is not None:
        data.aborted_transactions = [
            AbortedTransaction(producer_id=txn.producer_id, first_offset=txn.first_offset) for txn in read.aborted
        ]
    if read.diverging_epoch is not None:
        epoch, end_offset = read.diverging_epoch
        data.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end_offset)
    if hints is not None and read.error in WRONG_LEADER and partition.tp is not None:
        data.current_leader = hints.current_leader(partition.tp, LeaderIdAndEpoch)
    return data


def _mark(broker: Broker, params: FetchParams, results: list[tuple[SessionPartition, PartitionRead]]) -> None:
    stats = broker.replicas.topic_stats
    totals = stats.all_topics
    totals.total_fetch_requests.count += len(results)
    hosted = broker.replicas.partitions
    last: str | None = None
    for partition, read in results:
        tp = partition.tp
        if tp not in hosted:  # no meters of its own: the name may be anything a client sends
            continue
        if tp.topic != last:
            last = tp.topic
            topic = stats.topic(last)
        topic.total_fetch_requests.count += 1
        if read.size_bytes and params.is_from_follower:
            stats.replication_bytes_out.count += read.size_bytes
        elif read.size_bytes:
            topic.bytes_out.count += read.size_bytes
            totals.bytes_out.count += read.size_bytes
        elif read.error == ErrorCode.UNKNOWN_SERVER_ERROR:
            topic.failed_fetch_requests.mark()
            totals.failed_fetch_requests.mark()


def metric_name(req: FetchRequest) -> str:
    is_follower = req.replica_id >= 0 or (req.replica_state is not None and req.replica_state.replica_id >= 0)
    return "FetchFollower" if is_follower else "FetchConsumer"


API = Api(
    FetchRequest,
    FetchResponse,
    versions=(0, 17),
    plane=Plane.DATA,
    handle=handle,
    metric_name=metric_name,
    is_read=True,
)
