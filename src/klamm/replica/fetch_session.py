"""Incremental fetch sessions (KIP-227): a reader names its partitions once and then only what changes.

The cache holds a bounded number of sessions. When it is full a new session replaces one that has not been used for
a while, or one that matters less (a consumer's before a follower's, few partitions before many); else the reader
goes on without a session, which every client accepts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Final, TypeAlias
from uuid import UUID

from klamm.clock import Clock
from klamm.errors import ErrorCode
from klamm.metrics import MetricsRegistry
from klamm.model import TopicPartition
from klamm.replica.partition_reader import PartitionFetch

INVALID_SESSION_ID: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_MAX_INT32: Final = (1 << 31) - 1

SessionKey: TypeAlias = tuple[str | UUID, int]
"""A topic by id where the session uses ids, else by name; and the partition."""


@dataclass(slots=True)
class SessionPartition:
    """What the reader asked of a partition last, and what it was told last (-1: to be told again)."""

    tp: TopicPartition | None
    """None while the topic id is not known here."""
    topic_id: UUID
    index: int
    fetch: PartitionFetch
    high_watermark: int = -1
    log_start_offset: int = -1


class FetchSession:
    __slots__ = ("created_ms", "epoch", "id", "is_privileged", "last_used_ms", "partitions", "uses_topic_ids")

    def __init__(self, session_id: int, is_privileged: bool, uses_topic_ids: bool, now_ms: int) -> None:
        self.id = session_id
        self.is_privileged = is_privileged
        self.uses_topic_ids = uses_topic_ids
        self.partitions: dict[SessionKey, SessionPartition] = {}
        self.epoch = 1
        self.created_ms = self.last_used_ms = now_ms

    def advance(self, now_ms: int) -> None:
        """The request with the expected epoch came: the next one carries the next epoch, never 0 or -1 again."""
        self.epoch = 1 if self.epoch == _MAX_INT32 else self.epoch + 1
        self.last_used_ms = now_ms

    def update(self, key: SessionKey, partition: SessionPartition) -> None:
        """A changed partition keeps its place and what the reader was last told; a new one goes to the end.

        A reader that does not ask for what comes after the last answer has not used that answer: it started anew in
        another leader epoch, or cut its log. It is told everything again.
        """
        known = self.partitions.get(key)
        if known is None:
            self.partitions[key] = partition
            return
        before, now = known.fetch, partition.fetch
        if now.current_leader_epoch != before.current_leader_epoch or now.fetch_offset <= before.fetch_offset:
            known.high_watermark = -1
        known.fetch = now
        known.tp = partition.tp

    def forget(self, keys: Iterable[SessionKey]) -> None:
        for key in keys:
            self.partitions.pop(key, None)

    def move_to_end(self, key: SessionKey) -> None:
        """Who was just served goes last, so that a full response does not starve the others."""
        if (partition := self.partitions.pop(key, None)) is not None:
            self.partitions[key] = partition


class FetchSessionCache:
    def __init__(
        self,
        max_slots: int,
        clock: Clock,
        rng: Random,
        metrics: MetricsRegistry,
        min_eviction_ms: int = 120_000,
    ) -> None:
        self._max_slots = max_slots
        self._clock = clock
        self._rng = rng
        self._min_eviction_ms = min_eviction_ms
        self._sessions: dict[int, FetchSession] = {}
        self._evictions = metrics.meter("kafka.server", "FetchSessionCache", "IncrementalFetchSessionEvictionsPerSec")
        metrics.gauge("kafka.server", "FetchSessionCache", "NumIncrementalFetchSessions", self.__len__)
        metrics.gauge(
            "kafka.server", "FetchSessionCache", "NumIncrementalFetchPartitionsCached", lambda: self.partition_count
        )

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[FetchSession]:
        return iter(self._sessions.values())

    @property
    def partition_count(self) -> int:
        return sum(len(session.partitions) for session in self._sessions.values())

    def create(self, *, is_privileged: bool, uses_topic_ids: bool, partition_count: int) -> FetchSession | None:
        """A new session, or None when there is no room for one like this."""
        now_ms = self._clock.now_ms()
        if len(self._sessions) >= self._max_slots and not self._make_room(is_privileged, partition_count, now_ms):
            return None
        session = FetchSession(self._new_id(), is_privileged, uses_topic_ids, now_ms)
        self._sessions[session.id] = session
        return session

    def resume(self, session_id: int, epoch: int, uses_topic_ids: bool) -> FetchSession | ErrorCode:
        """The session a request goes on with, or why it cannot."""
        session = self._sessions.get(session_id)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if session.uses_topic_ids != uses_topic_ids:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        session.advance(self._clock.now_ms())
        self._sessions[session_id] = self._sessions.pop(session_id)
        return session

    def remove(self, session_id: int) -> None:
        self._sessions.pop(session_id, None)

    def _make_room(self, is_privileged: bool, partition_count: int, now_ms: int) -> bool:
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if now_ms - oldest.last_used_ms > self._min_eviction_ms:
            self._evict(oldest)
            return True
        weakest = min(self._sessions.values(), key=_weight)
        is_settled = now_ms - weakest.created_ms > self._min_eviction_ms
        if _weight(weakest) < (is_privileged, partition_count) and (
            is_settled or is_privileged > weakest.is_privileged
        ):
            self._evict(weakest)
            return True
        return False

    def _evict(self, session: FetchSession) -> None:
        del self._sessions[session.id]
        self._evictions.mark()

    def _new_id(self) -> int:
        while (session_id := self._rng.randint(1, _MAX_INT32)) in self._sessions:
            pass
        return session_id


def _weight(session: FetchSession) -> tuple[bool, int]:
    return session.is_privileged, len(session.partitions)
