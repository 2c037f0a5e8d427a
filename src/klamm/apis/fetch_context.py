"""The partitions of one Fetch request: named in the request, or remembered in its session (KIP-227)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from itertools import islice, pairwise
from typing import Final, TypeVar
from uuid import UUID

from klamm.apis.api_declaration import Broker, RequestContext
from klamm.clock import elapsed_ms
from klamm.errors import ErrorCode
from klamm.model import ZERO_UUID, TopicPartition
from klamm.protocol.chunked import SpreadDict, pieces
from klamm.protocol.messages.fetch import FetchRequest
from klamm.replica.fetch_path import FetchParams, Reads
from klamm.replica.fetch_session import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    INVALID_SESSION_ID,
    FetchSession,
    OneFetch,
    SessionKey,
    SessionPartition,
    place_of,
    size_bytes_of,
)
from klamm.replica.partition_reader import PartitionFetch, PartitionRead
from klamm.replica.replica_selector import NO_PREFERENCE

MAX_SESSION_PARTITIONS: Final = 200_000
"""A session that grows beyond this is ended: this bounds the memory that a client can claim."""
SLICE: Final = 500
"""Partitions of a request that is handled at once; a larger one is handled in steps."""
STEP: Final = 100
"""Partitions per step of a large request: some tenths of a millisecond."""

T = TypeVar("T")


class FetchContext:
    """A request and its session.

    Without a session (`session.id` 0), all partitions are answered and none is remembered.

    The first answer of a session names every partition, later ones only those with news.
    """

    __slots__ = ("asked", "is_full", "session")

    def __init__(self, session: FetchSession | OneFetch, asked: list[SessionPartition], *, is_full: bool) -> None:
        self.session = session
        self.asked = asked
        """The partitions of a request without a session."""
        self.is_full = is_full

    def begin(
        self, broker: Broker, params: FetchParams, ctx: RequestContext
    ) -> Collection[SessionPartition] | ErrorCode:
        """Return the partitions to inspect: a list, or for a session also more than `SLICE` that are not in order.

        If the reader has gone, a large session is ended instead: inspecting all of it would hold the loop.
        """
        session = self.session
        if isinstance(session, OneFetch):
            return self.asked
        client = params.client
        is_sent_elsewhere = client is not None and client.rack_id and broker.replicas.replica_selector is not None
        brokers = broker.metadata.snapshot.brokers if is_sent_elsewhere else None
        # A change of the rules, of the principal or of the proven broker decides again which partitions may be read.
        access = None
        if broker.acls is not None:
            access = (ctx.principal, ctx.client_host, ctx.peer_broker_id, broker.acls.authorizer.rules)
        is_old = ctx.api_version < 10
        reader = params.isolation, params.replica_id, params.replica_epoch, client, brokers, is_old, access
        if len(session.partitions) > SLICE and session.is_of_another(reader):
            broker.fetch_sessions.remove(session.id)
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        return session.begin_fetch(reader, elapsed_ms(broker.clock))

    def named(self) -> Iterator[tuple[str | UUID, int]]:
        """The first partitions of the request or of its session, for traces."""
        session = self.session
        partitions = self.asked if isinstance(session, OneFetch) else session.partitions.values()
        for partition in islice(partitions, SLICE):
            yield partition.topic_id if partition.tp is None else partition.tp.topic, partition.index

    def to_send(self, results: Reads) -> Reads:
        """Return the results that belong to the response."""
        session = self.session
        if isinstance(session, OneFetch):
            return results
        is_full = self.is_full
        return [result for result in results if self._note(session, *result) or is_full]

    def _note(self, session: FetchSession, partition: SessionPartition, read: PartitionRead) -> bool:
        """Remember what the reader learns from this result; return whether it is new."""
        if read.size_bytes and partition.session is not None:
            session.move_to_end(partition)
        is_news = bool(
            read.size_bytes
            or read.error
            or read.diverging_epoch is not None
            or partition.high_watermark != read.high_watermark
            or partition.log_start_offset != read.log_start_offset
            or read.preferred_read_replica != NO_PREFERENCE
        )
        partition.high_watermark = -1 if read.error else read.high_watermark
        partition.log_start_offset = read.log_start_offset
        return is_news


def open_context(
    broker: Broker, version: int, req: FetchRequest, is_follower: Callable[[], bool]
) -> Generator[None, None, FetchContext | ErrorCode]:
    """Return the request's partitions. The epoch decides whether the session is created, resumed or closed.

    A session of a follower takes the place of a consumer's if there are too many. `is_follower` is called only for a
    new session.
    A request of few partitions, with a session in which little changed, takes one step.
    """
    sessions = broker.fetch_sessions
    uses_ids = version >= 13
    if req.session_epoch not in (INITIAL_EPOCH, FINAL_EPOCH):
        return (yield from _resume(broker, req, uses_ids))
    if req.session_id != INVALID_SESSION_ID:
        sessions.remove(req.session_id)
    count, size_bytes = yield from _size(req, uses_ids)
    if req.session_epoch == FINAL_EPOCH or not 0 < count <= MAX_SESSION_PARTITIONS:
        return (yield from _without_session(broker, req, uses_ids))
    created = sessions.create(
        is_privileged=is_follower(),
        uses_topic_ids=uses_ids,
        partition_count=count,
        size_bytes=size_bytes,
    )
    if created is None:
        return (yield from _without_session(broker, req, uses_ids))
    yield from _update(broker, created, req, uses_ids)
    if not sessions.keep(created):  # a session with a higher priority has taken its place
        yield from _released(created)
        return (yield from _without_session(broker, req, uses_ids))
    return FetchContext(created, [], is_full=True)


def _size(req: FetchRequest, uses_ids: bool) -> Generator[None, None, tuple[int, int]]:
    """Return how many partitions a request names, and the memory that a session of them takes."""
    count = size_bytes = 0
    for number, topic in enumerate(req.topics, 1):
        count += len(topic.partitions)
        size_bytes += size_bytes_of(0 if uses_ids else len(topic.topic), len(topic.partitions))
        if not number % SLICE:
            yield
    return count, size_bytes


def _resume(broker: Broker, req: FetchRequest, uses_ids: bool) -> Generator[None, None, FetchContext | ErrorCode]:
    sessions = broker.fetch_sessions
    session = sessions.resume(req.session_id, req.session_epoch, uses_ids)
    if isinstance(session, ErrorCode):
        return session
    if req.topics:
        yield from _update(broker, session, req, uses_ids)
    room = SLICE
    for topic in req.forgotten_topics_data:
        name: str | UUID = topic.topic_id if uses_ids else topic.topic
        for indexes in pieces(topic.partitions):
            session.forget((name, index) for index in indexes)
            room -= 1 + len(indexes)
            if room < 0:
                room = SLICE
                yield
    if uses_ids:
        if len(session.changed) <= SLICE:
            _name(broker, session.changed)
        else:
            for copied in _copies(session.changed):
                for part in consume(copied):
                    _name(broker, part)
                    yield
    if not session.partitions:  # all partitions were forgotten, so the session ends
        sessions.remove(session.id)
        return FetchContext(OneFetch(), [], is_full=True)
    if len(session.partitions) > MAX_SESSION_PARTITIONS:
        sessions.remove(session.id)
        return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    if session.size_bytes != session.cached_bytes and not sessions.keep(session):
        yield from _released(session)
        return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    return FetchContext(session, [], is_full=False)


def _name(broker: Broker, partitions: Iterable[SessionPartition]) -> None:
    """Find the names of topic ids that were not known here before."""
    for partition in partitions:
        if partition.tp is None and (known := broker.metadata.topic_name(partition.topic_id)) is not None:
            partition.tp = TopicPartition(known, partition.index)


def _without_session(broker: Broker, req: FetchRequest, uses_ids: bool) -> Generator[None, None, FetchContext]:
    """Keep one entry per partition, as in Kafka, because a parked fetch holds its entries."""
    this = OneFetch()
    few: dict[SessionKey, SessionPartition] = {}
    rest = _asked(broker, req, uses_ids, this)
    count = 0
    for count, partition in enumerate(islice(rest, SLICE), 1):  # noqa: B007 - used after the loop
        few[_key(partition, uses_ids)] = partition
    partitions = list(few.values())
    if count == SLICE:
        yield from _add_once(SpreadDict(few.items()), partitions, rest, uses_ids)
    return FetchContext(this, partitions, is_full=True)


def _add_once(
    known: SpreadDict[SessionKey, SessionPartition],
    partitions: list[SessionPartition],
    rest: Iterator[SessionPartition],
    uses_ids: bool,
) -> Generator[None, None, None]:
    """Add the partitions of a large request to the first ones. If one is named again, its last mention counts."""
    for part in sliced(rest, STEP):
        yield
        for partition in part:
            first = known.setdefault(_key(partition, uses_ids), partition)
            if first is partition:
                partitions.append(partition)
            else:
                first.fetch = partition.fetch
    while len(known.dicts) > 1:  # To free all keys at once would hold the loop.
        known.dicts.pop()
        yield


def _released(session: FetchSession) -> Generator[None, None, None]:
    """Forget the partitions of a session that ended while it was changed."""
    while session.partitions:
        session.release(SLICE)
        yield


def in_order(partitions: Collection[SessionPartition]) -> Generator[None, None, Iterable[SessionPartition]]:
    """Put very many partitions into read order. A list is emptied, the changed partitions of a session are copied.

    The garbage collector visits the elements of all lists that were made since its last pass: few per step.
    """
    parts = []
    for copied in _copies(partitions):
        for part in consume(copied):
            part.sort(key=place_of)
            parts.append(part)
            yield
    if all(one[-1].place <= other[0].place for one, other in pairwise(parts)):
        return _each(parts)
    return heapq.merge(*parts, key=place_of)


def _copies(partitions: Collection[SessionPartition]) -> Iterator[list[SessionPartition]]:
    """Yield a list as it is, and others as copies of their parts."""
    if isinstance(partitions, SpreadDict):
        yield from partitions.parts()
    else:
        yield partitions if isinstance(partitions, list) else list(partitions)


def _each(parts: list[list[SessionPartition]]) -> Iterator[SessionPartition]:
    parts.reverse()
    while parts:
        yield from parts.pop()


def _update(broker: Broker, session: FetchSession, req: FetchRequest, uses_ids: bool) -> Generator[None, None, None]:
    for count, partition in enumerate(_asked(broker, req, uses_ids), 1):
        session.update(_key(partition, uses_ids), partition)
        if count >= SLICE and not count % STEP:
            yield


def _asked(
    broker: Broker, req: FetchRequest, uses_ids: bool, session: OneFetch | None = None
) -> Iterator[SessionPartition]:
    place = 0
    for topic in req.topics:
        name = broker.metadata.topic_name(topic.topic_id) if uses_ids else topic.topic
        topic_id = topic.topic_id if uses_ids else ZERO_UUID
        for asked in topic.partitions:
            fetch = PartitionFetch(
                asked.fetch_offset,
                asked.partition_max_bytes,
                asked.log_start_offset,
                asked.current_leader_epoch,
                asked.last_fetched_epoch,
            )
            tp = None if name is None else TopicPartition(name, asked.partition)
            yield SessionPartition(tp, topic_id, asked.partition, fetch, session, place)
            place += 1


def _key(partition: SessionPartition, uses_ids: bool) -> SessionKey:
    if uses_ids or partition.tp is None:
        return partition.topic_id, partition.index
    return partition.tp.topic, partition.index


def consume(items: list[T], size: int | None = None) -> Iterator[list[T]]:
    """Yield slices of a list and empty it: freeing a long list at its end would hold the loop."""
    size = SLICE if size is None else min(size, SLICE)
    items.reverse()
    while items:
        part = items[: -size - 1 : -1]
        del items[-size:]
        yield part


def sliced(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield slices of what an iterator returns."""
    rest = iter(items)
    while part := list(islice(rest, min(size, SLICE))):
        yield part
