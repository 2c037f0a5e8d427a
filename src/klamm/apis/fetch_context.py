"""The partitions of one Fetch request: named in the request, or remembered in its session (KIP-227)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Protocol, TypeAlias
from uuid import UUID

from klamm.apis.registry import Broker
from klamm.errors import ErrorCode
from klamm.model import ZERO_UUID, TopicPartition
from klamm.protocol.messages.fetch import FetchRequest
from klamm.replica.fetch_session import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    INVALID_SESSION_ID,
    FetchSession,
    SessionKey,
    SessionPartition,
)
from klamm.replica.partition_reader import PartitionFetch, PartitionRead
from klamm.replica.replica_selector import NO_PREFERENCE

MAX_SESSION_PARTITIONS: Final = 200_000
"""A session that grows beyond this is ended: what a client makes the broker remember is bounded."""

Result: TypeAlias = tuple[SessionPartition, PartitionRead]


class FetchContext(Protocol):
    @property
    def session_id(self) -> int: ...

    def partitions(self) -> Iterable[SessionPartition]: ...

    def to_send(self, results: list[Result]) -> Iterable[Result]:
        """The results that belong into the response."""


class SessionlessFetch:
    """Everything asked is answered, nothing is remembered."""

    __slots__ = ("_partitions",)
    session_id = INVALID_SESSION_ID

    def __init__(self, partitions: list[SessionPartition]) -> None:
        self._partitions = partitions

    def partitions(self) -> Iterable[SessionPartition]:
        return self._partitions

    def to_send(self, results: list[Result]) -> Iterable[Result]:
        return results


class SessionFetch:
    """A session's fetch: the first is answered in full, later ones with what has changed."""

    __slots__ = ("_is_full", "_session")

    def __init__(self, session: FetchSession, *, is_full: bool) -> None:
        self._session = session
        self._is_full = is_full

    @property
    def session_id(self) -> int:
        return self._session.id

    def partitions(self) -> Iterable[SessionPartition]:
        return self._session.partitions.values()

    def to_send(self, results: list[Result]) -> Iterable[Result]:
        return [result for result in results if self._note(*result) or self._is_full]

    def _note(self, partition: SessionPartition, read: PartitionRead) -> bool:
        """Remembers what the reader will know; returns whether it is news to it."""
        if read.size_bytes:
            self._session.move_to_end(_key(partition, self._session.uses_topic_ids))
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


def open_context(broker: Broker, version: int, req: FetchRequest) -> FetchContext | ErrorCode:
    """The request's partitions, with its session created, resumed or closed as its epoch says."""
    sessions = broker.fetch_sessions
    uses_ids = version >= 13
    if req.session_epoch not in (INITIAL_EPOCH, FINAL_EPOCH):
        session = sessions.resume(req.session_id, req.session_epoch, uses_ids)
        if isinstance(session, ErrorCode):
            return session
        _update(broker, session, req, uses_ids)
        if len(session.partitions) > MAX_SESSION_PARTITIONS:
            sessions.remove(session.id)
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if not session.partitions:  # everything is forgotten: so is the session
            sessions.remove(session.id)
            return SessionlessFetch([])
        return SessionFetch(session, is_full=False)
    if req.session_id != INVALID_SESSION_ID:
        sessions.remove(req.session_id)
    asked = list(_asked(broker, req, uses_ids))
    if req.session_epoch == FINAL_EPOCH or not 0 < len(asked) <= MAX_SESSION_PARTITIONS:
        return SessionlessFetch(asked)
    is_follower = req.replica_id >= 0 or req.replica_state is not None
    created = sessions.create(is_privileged=is_follower, uses_topic_ids=uses_ids, partition_count=len(asked))
    if created is None:
        return SessionlessFetch(asked)
    for partition in asked:
        created.update(_key(partition, uses_ids), partition)
    return SessionFetch(created, is_full=True)


def _update(broker: Broker, session: FetchSession, req: FetchRequest, uses_ids: bool) -> None:
    for partition in _asked(broker, req, uses_ids):
        session.update(_key(partition, uses_ids), partition)
    for topic in req.forgotten_topics_data:
        name: str | UUID = topic.topic_id if uses_ids else topic.topic
        session.forget((name, index) for index in topic.partitions)
    if uses_ids:
        for partition in session.partitions.values():
            if partition.tp is None and (known := broker.metadata.topic_name(partition.topic_id)) is not None:
                partition.tp = TopicPartition(known, partition.index)


def _asked(broker: Broker, req: FetchRequest, uses_ids: bool) -> Iterator[SessionPartition]:
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
            yield SessionPartition(tp, topic_id, asked.partition, fetch)


def _key(partition: SessionPartition, uses_ids: bool) -> SessionKey:
    if uses_ids or partition.tp is None:
        return partition.topic_id, partition.index
    return partition.tp.topic, partition.index
