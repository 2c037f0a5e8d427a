"""Fetch (1): record batches from the partitions this broker leads, or follows, for consumers and for followers.

v0-17:

- v0-3: clients do not know record batches. Records are converted, without their headers, to message format 0 (v0-1) or
  1 (v2-3).
- v3: a limit for the whole response.
- v4: isolation level.
- v5: log start offset.
- v6: KAFKA_STORAGE_ERROR. In earlier versions it is NOT_LEADER_OR_FOLLOWER.
- v7: sessions (KIP-227).
- v9: leader epoch.
- v10: zstd. In earlier versions a partition of a topic with `compression.type=zstd` is UNSUPPORTED_COMPRESSION_TYPE
  (76). Batches that a producer compressed with zstd are served as they are.
- v11: rack and preferred replica (KIP-392).
- v12: diverging epoch.
- v13: topic ids.
- v15: replica state.
- v16: if this broker is not the leader, the current leader and its endpoint.
- v17: replica directory, which is read and not used.

From v11 on a follower answers consumers as well, up to its own high watermark. An offset between that and the end of
its log gets an empty answer. An offset beyond the end is OFFSET_OUT_OF_RANGE (1), on which clients ask the leader.
With `replica.selector.class` a leader sends a consumer of another rack to an in-sync follower there.

The first batch is always whole, whatever the limits. A fetch with a broker's id as replica id reports that follower's
progress. Only a peer may continue a session under such an id; others get CLUSTER_AUTHORIZATION_FAILED (31). A Fetch of
a session costs what changed since the last one. A Fetch of many partitions is served in slices.
While clients leave much of what they asked for unread (128 MiB in total), a Fetch returns less, but at least one batch.
A consumer that is over its quota gets an empty answer with a throttle time (KIP-219); its session stays as it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from types import GeneratorType
from typing import Any, Final, TypeAlias

from klamm.apis.access import is_peer, remembering
from klamm.apis.api_declaration import Api, Broker, Plane, RequestContext
from klamm.apis.fetch_context import SLICE, FetchContext, consume, in_order, open_context, sliced
from klamm.apis.fetch_conversion import convert
from klamm.apis.fetch_meters import mark
from klamm.apis.fetch_quota import is_withheld, size_of
from klamm.apis.guards import Handle
from klamm.apis.leader_hint import WRONG_LEADER, LeaderHints
from klamm.errors import ErrorCode
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
from klamm.replica.delayed_fetch import LARGE_READS, LargeFetch, fetch_messages, park
from klamm.replica.fetch_path import FetchParams, ReadLimit, Reads, answer, bytes_to_wait_for, read_all, settle
from klamm.replica.fetch_session import FetchSession, SessionPartition
from klamm.replica.partition_reader import Isolation, PartitionRead
from klamm.replica.replica_selector import ClientMetadata
from klamm.security.acl.bindings import AclOperation, ResourceType
from klamm.waiting import Steps, after, begin

_FIRST_WITH_BATCHES: Final = 4
_FIRST_WITH_STORAGE_ERROR: Final = 6
_FIRST_WITH_ZSTD: Final = 10
_FIRST_WITH_RACK: Final = 11
_ZSTD: Final = "zstd"
# Members under names of their own: Python 3.11 takes ten times as long to find `Isolation.LOG_END`.
_LOG_END: Final = Isolation.LOG_END
_HIGH_WATERMARK: Final = Isolation.HIGH_WATERMARK
_TXN_COMMITTED: Final = Isolation.TXN_COMMITTED
_MAX_WAIT_MS: Final = 600_000
"""Maximum wait of a fetch: nothing may stay parked for a client that is long gone."""


Answer: TypeAlias = "FetchResponse | asyncio.Future[Any] | Steps[Any]"
"""The response, a future of one of these, or the steps to one of these."""


def handle(broker: Broker, ctx: RequestContext, req: FetchRequest) -> Answer:
    answer = _handle(broker, ctx, req)
    return answer if ctx.api_version >= _FIRST_WITH_BATCHES else _converted(broker, ctx.api_version, req, answer)


def _converted(broker: Broker, version: int, req: FetchRequest, answer: Answer) -> Answer:
    """The answer in the message format of this version."""
    if isinstance(answer, GeneratorType):
        return _converted_in_slices(broker, version, req, answer)
    if isinstance(answer, asyncio.Future):
        later: asyncio.Future[Any] = after(answer, lambda response: _converted(broker, version, req, response))
        return later
    assert isinstance(answer, FetchResponse)
    return convert(broker, version, req, answer)


def _converted_in_slices(broker: Broker, version: int, req: FetchRequest, answer: Steps[Any]) -> Steps[Any]:
    response = yield from answer
    converted = _converted(broker, version, req, response)
    return (yield from converted) if isinstance(converted, GeneratorType) else converted


def _handle(broker: Broker, ctx: RequestContext, req: FetchRequest) -> Answer:
    if req.session_epoch > 0 and broker.acls is not None and not _may_resume(broker, ctx, req):
        return FetchResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, responses=())
    opening = open_context(broker, ctx.api_version, req, partial(_is_follower, broker, ctx, req))
    try:
        next(opening)
    except StopIteration as done:
        context: FetchContext | ErrorCode = done.value
    else:
        return _handle_in_slices(broker, ctx, req, opening)
    if isinstance(context, ErrorCode):
        return FetchResponse(error_code=context, responses=())
    params = _params(broker, ctx, req)
    if params.replica_id >= 0:
        ctx.sends_at_once = True  # The leader computes the next follower's response while this one appends.
    looked_at = context.begin(broker, params, ctx)
    if ctx.trace is not None:
        ctx.trace.set_partitions(context.named())
    if isinstance(looked_at, ErrorCode):
        return FetchResponse(error_code=looked_at, responses=())
    if len(looked_at) > SLICE:
        return _fetch_in_slices(broker, ctx, params, context, looked_at)
    assert isinstance(looked_at, list), "few partitions are a list"
    refused, asked = _sort_out(broker, ctx, params, looked_at)
    if refused:
        params.max_wait_ms = 0

    def respond(reads: Reads) -> FetchResponse:
        return _respond(broker, ctx, params, context, refused + reads)

    return fetch_messages(broker.replicas, params, context.session, asked, respond)


def _handle_in_slices(
    broker: Broker, ctx: RequestContext, req: FetchRequest, opening: Steps[FetchContext | ErrorCode]
) -> Steps[Any]:
    """A request that names many partitions: the loop serves others between the steps."""
    context = yield from opening
    if isinstance(context, ErrorCode):
        return FetchResponse(error_code=context, responses=())
    params = _params(broker, ctx, req)
    if ctx.api_version >= _FIRST_WITH_BATCHES:  # the conversion looks at it again
        req.topics = req.forgotten_topics_data = ()
        yield from ctx.freed()
    looked_at = context.begin(broker, params, ctx)
    if isinstance(looked_at, ErrorCode):
        return FetchResponse(error_code=looked_at, responses=())
    return (yield from _fetch_in_slices(broker, ctx, params, context, looked_at))


def _fetch_in_slices(
    broker: Broker,
    ctx: RequestContext,
    params: FetchParams,
    context: FetchContext,
    looked_at: Collection[SessionPartition],
) -> Steps[Any]:
    """The first answer of a session comes at once, so that the next request can wait for many partitions cheaply."""
    session = context.session
    if session.id and context.is_full:
        params.max_wait_ms = 0
    delayed = LargeFetch(broker.replicas, params, session)
    refused: list[Reads] = []
    with _released_if_ended_early(ctx, delayed):
        missing = yield from _read_in_slices(broker, ctx, params, looked_at, delayed, refused)
        # A client that has left would not end the wait, and the partitions would be held for so long.
        waiting = park(broker.replicas, params, delayed, list) if missing and not ctx.has_ended() else None
    if isinstance(waiting, asyncio.Future):
        return after(waiting, lambda _: begin(_answer_in_slices(broker, ctx, params, context, delayed, refused)))
    return (yield from _answer_in_slices(broker, ctx, params, context, delayed, refused))


@contextmanager
def _released_if_ended_early(ctx: RequestContext, delayed: LargeFetch) -> Iterator[None]:
    """Partitions do not keep a fetch that ends early."""
    try:
        yield
    except BaseException:
        delayed.close()
        ctx.free_in_steps(delayed.released())
        raise


def _read_in_slices(
    broker: Broker,
    ctx: RequestContext,
    params: FetchParams,
    looked_at: Collection[SessionPartition],
    delayed: LargeFetch,
    refused: list[Reads],
) -> Steps[int]:
    """Read each partition once; return how many bytes are missing until the reader's minimum."""
    replicas = broker.replicas
    missing = params.min_bytes if params.max_wait_ms > 0 else 0
    limit = ReadLimit(params)
    ordered = yield from in_order(looked_at)
    for part in sliced(ordered, LARGE_READS):
        more_refused, asked = _sort_out(broker, ctx, params, part)
        reads = read_all(replicas, params, asked, limit)
        delayed.add(reads)
        if more_refused:
            refused.append(more_refused)
        missing = bytes_to_wait_for(replicas, params, reads, missing) if missing and not refused else 0
        yield
    return missing


def _answer_in_slices(
    broker: Broker,
    ctx: RequestContext,
    params: FetchParams,
    context: FetchContext,
    delayed: LargeFetch,
    refused: list[Reads],
) -> Steps[FetchResponse]:
    with _released_if_ended_early(ctx, delayed):
        delayed.close()
        yield from delayed.read_again(partial(_sort_out, broker, ctx, params))
        if broker.quotas.fetch.is_enabled:
            size_bytes = yield from delayed.size_bytes()
            if is_withheld(broker, ctx, params, context, size_bytes):
                yield from delayed.released()
                return FetchResponse(session_id=context.session.id, responses=())
        ctx.take_all_steps()  # A request of a session is small, its response is not.
        response = FetchResponse(session_id=context.session.id, responses=[])
        for part in chain(chain.from_iterable(consume(refused, 1)), delayed.parts()):
            _add(broker, ctx, params, context, answer(broker.replicas, params, part), response)
            delayed.release(part)
            yield
    return response


def _replica(version: int, req: FetchRequest) -> tuple[int, int]:
    if version < 15:
        return req.replica_id, -1
    state = req.replica_state
    return (-1, -1) if state is None else (state.replica_id, state.replica_epoch)


def _is_follower(broker: Broker, ctx: RequestContext, req: FetchRequest) -> bool:
    """Whether a broker sends the request. A guard has checked its proof if there is no authorizer."""
    replica_id, _ = _replica(ctx.api_version, req)
    return replica_id >= 0 and (broker.acls is None or is_peer(broker, ctx, replica_id, is_probe=True))


def _may_resume(broker: Broker, ctx: RequestContext, req: FetchRequest) -> bool:
    """Whether the sender may use a session: each use of a follower's session shows its leader that it is alive."""
    replica_id, _ = _replica(ctx.api_version, req)
    return replica_id < 0 or is_peer(broker, ctx, replica_id)


def _params(broker: Broker, ctx: RequestContext, req: FetchRequest) -> FetchParams:
    replica_id, replica_epoch = _replica(ctx.api_version, req)
    isolation = _LOG_END if replica_id >= 0 else _TXN_COMMITTED if req.isolation_level == 1 else _HIGH_WATERMARK
    is_consumer = replica_id == -1 and ctx.api_version >= _FIRST_WITH_RACK
    max_bytes = min(req.max_bytes, broker.config.fetch_max_bytes)
    if broker.quotas.fetch.is_enabled and replica_id < 0:
        max_bytes = min(max_bytes, broker.quotas.fetch_limit(ctx))
    min_bytes = min(req.min_bytes, max_bytes)
    return FetchParams(
        max_wait_ms=min(req.max_wait_ms, _MAX_WAIT_MS),
        min_bytes=min_bytes if min_bytes <= ctx.response_room() else 1,
        max_bytes=max_bytes,
        isolation=isolation,
        replica_id=replica_id,
        replica_epoch=replica_epoch,
        budget=ctx,
        client=ClientMetadata(req.rack_id, ctx.listener_name) if is_consumer else None,
    )


def _sort_out(
    broker: Broker, ctx: RequestContext, params: FetchParams, partitions: list[SessionPartition]
) -> tuple[Reads, list[SessionPartition]]:
    """Return the refused partitions, and those to read.

    A partition is refused if the reader may not read the topic, or if its id is unknown or not the one hosted here.
    """
    refused: Reads = []
    if broker.acls is not None:
        refused, partitions = _authorized(broker, ctx, params, partitions)
    if ctx.api_version < 13:
        return refused, partitions
    asked: list[SessionPartition] = []
    hosted = broker.replicas.partitions
    for partition in partitions:
        tp = partition.tp  # None if the id was unknown when it was named; it may be known by now
        known = None if tp is None else hosted.get(tp)
        if tp is None or (known is None and broker.metadata.topic_name(partition.topic_id) is None):
            refused.append((partition, PartitionRead(ErrorCode.UNKNOWN_TOPIC_ID)))
        elif known is not None and known.topic_id.int not in (0, partition.topic_id.int):
            refused.append((partition, PartitionRead(ErrorCode.INCONSISTENT_TOPIC_ID)))
        else:
            asked.append(partition)
    return refused, asked


def _authorized(
    broker: Broker, ctx: RequestContext, params: FetchParams, partitions: list[SessionPartition]
) -> tuple[Reads, list[SessionPartition]]:
    """Followers must be peers, consumers need READ on each topic. An unknown topic id names no topic."""
    refused: Reads = []
    asked: list[SessionPartition] = []
    may_read = remembering(broker, ctx, AclOperation.READ, ResourceType.TOPIC)
    is_follower = params.replica_id >= 0
    is_admitted = bool(partitions) and is_follower and is_peer(broker, ctx, params.replica_id)
    for partition in partitions:
        name = None if partition.tp is None else partition.tp.topic
        if is_admitted if is_follower else name is None or may_read(name):
            asked.append(partition)
        else:
            refused.append((partition, PartitionRead(ErrorCode.TOPIC_AUTHORIZATION_FAILED)))
    return refused, asked


def _respond(
    broker: Broker, ctx: RequestContext, params: FetchParams, context: FetchContext, results: Reads
) -> FetchResponse:
    if broker.quotas.fetch.is_enabled and is_withheld(broker, ctx, params, context, size_of(results)):
        return FetchResponse(session_id=context.session.id, responses=())
    response = FetchResponse(session_id=context.session.id, responses=[])
    _add(broker, ctx, params, context, results, response)
    return response


def _add(
    broker: Broker,
    ctx: RequestContext,
    params: FetchParams,
    context: FetchContext,
    results: Reads,
    response: FetchResponse,
) -> None:
    """Append results to the response. Afterwards the session skips partitions without news until they change."""
    version = ctx.api_version
    if version < _FIRST_WITH_ZSTD:
        results = [(partition, _for_old_client(broker, partition, read, version)) for partition, read in results]
    mark(broker, params, results)
    hints = LeaderHints(broker, ctx) if version >= 16 else None
    topics: list[FetchableTopicResponse] = response.responses  # type: ignore[assignment]
    last: object = None
    if topics:
        last = topics[-1].topic_id if version >= 13 else topics[-1].topic
    for partition, read in context.to_send(results):
        data = _partition_data(partition, read, hints)
        topic = partition.topic_id if version >= 13 else partition.tp and partition.tp.topic
        if topics and topic == last:
            topics[-1].partitions.append(data)  # type: ignore[attr-defined]
        else:
            name = partition.tp.topic if partition.tp is not None else ""
            topics.append(FetchableTopicResponse(topic=name, topic_id=partition.topic_id, partitions=[data]))
            last = topic
    if isinstance(context.session, FetchSession):
        settle(broker.replicas, params, context.session, results)
    if hints is not None and hints.endpoints:
        known = {node.node_id for node in response.node_endpoints}
        new = [node for node in hints.node_endpoints(NodeEndpoint) if node.node_id not in known]
        response.node_endpoints = [*response.node_endpoints, *new]


def _for_old_client(broker: Broker, partition: SessionPartition, read: PartitionRead, version: int) -> PartitionRead:
    """Return the answer for a client whose version does not know zstd or failed disks."""
    if read.error == ErrorCode.KAFKA_STORAGE_ERROR and version < _FIRST_WITH_STORAGE_ERROR:
        return PartitionRead(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    hosted = broker.replicas.hosted(partition.tp)
    if hosted is not None and hosted.log is not None and hosted.log.config.compression_type == _ZSTD:
        return PartitionRead(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
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


def metric_name(req: FetchRequest) -> str:
    is_follower = req.replica_id >= 0 or (req.replica_state is not None and req.replica_state.replica_id >= 0)
    return "FetchFollower" if is_follower else "FetchConsumer"


class _FollowerGuard:
    """Without an authorizer, a follower must be a proven peer: its position acknowledges records and enters the ISR.

    With one, the handler decides per partition.
    """

    def is_needed(self, broker: Broker) -> bool:
        return broker.acls is None and not broker.config.klamm_admit_unproven_peers

    def __call__(self, broker: Broker, handle: Handle, ctx: RequestContext, req: FetchRequest) -> Any:
        replica_id, _ = _replica(ctx.api_version, req)
        if replica_id < 0 or is_peer(broker, ctx, replica_id):
            return handle(ctx, req)
        return FetchResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, responses=())


API = Api(
    FetchRequest,
    FetchResponse,
    versions=(0, 17),
    plane=Plane.DATA,
    handle=handle,
    metric_name=metric_name,
    is_read=True,
    guard=_FollowerGuard(),
)
