"""Incremental fetch sessions (KIP-227): a reader names its partitions once and then only changes.

A session keeps the partitions that may have something for its reader (`changed`). A partition leaves that set when its
reader knows everything, and its owner puts it back with the next change (`Partition.readers`). So a Fetch costs what
changed since the last one, for any session size.

The cache holds a bounded number of sessions and bytes. When it is full a new session replaces one that has not been
used for a while, or one that matters less (a consumer's before a follower's, few partitions before many); else the
reader continues without a session, which every client accepts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, MutableMapping
from operator import attrgetter
from random import Random
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias
from uuid import UUID

from klamm.clock import Clock, elapsed_ms
from klamm.errors import ErrorCode
from klamm.metrics import MetricsRegistry
from klamm.model import TopicPartition
from klamm.protocol.chunked import SpreadDict
from klamm.replica.partition_reader import PartitionFetch

if TYPE_CHECKING:
    from klamm.replica.partition import Partition
    from klamm.replica.remote_replica import RemoteReplica

INVALID_SESSION_ID: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
MAX_CACHED_BYTES: Final = 256 << 20
"""Limit on the estimated memory of all sessions: about half a million partitions."""
_MAX_INT32: Final = (1 << 31) - 1
_PARTITION_BYTES: Final = 512
_SWEEP: Final = 256
"""Partitions of ended sessions that each use of the cache releases."""
_SPREAD: Final = 5000
"""A session of so many partitions spreads them over several dictionaries: a large one grows in a step of 4 to 7 ms."""
_SPREAD_CHANGED: Final = 5200
"""The same for its changed partitions, later: in another step. A few may have changed then, and all in the end."""
MOST_SORTED: Final = 500
"""If more partitions changed, the caller copies them and puts them in order, in steps: 200,000 take 5 ms and more."""

SessionKey: TypeAlias = tuple[str | UUID, int]
"""A topic, by id or by name as the session uses, and the partition."""


class WaitingFetch(Protocol):
    """A parked Fetch of the session."""

    def on_change(self, partition: SessionPartition) -> None: ...


class SessionPartition:
    """One partition as a reader asks for it, and the state last sent to the reader (-1: to be sent again).

    `place` orders the partitions of a session: it decides which are read before the response is full.
    """

    __slots__ = (
        "fetch",
        "high_watermark",
        "index",
        "log_size_bytes",
        "log_start_offset",
        "place",
        "remote",
        "session",
        "topic_id",
        "tp",
        "watched",
    )

    def __init__(
        self,
        tp: TopicPartition | None,
        topic_id: UUID,
        index: int,
        fetch: PartitionFetch,
        session: Readers | None = None,
        place: int = 0,
    ) -> None:
        self.tp = tp
        """None while the topic id is not known here."""
        self.topic_id = topic_id
        self.index = index
        self.fetch = fetch
        self.session = session
        """None once the reader has forgotten the partition."""
        self.high_watermark = -1
        self.log_start_offset = -1
        self.place = place
        self.log_size_bytes = 0
        """The size of the log when the reader had read all of it."""
        self.watched: Partition | None = None
        self.remote: RemoteReplica | None = None
        """The follower's replica, while it counts as caught up by the fetches of its session."""

    def watch(self, partition: Partition) -> None:
        """Register for the next change."""
        if self.watched is not partition:
            self.unwatch()
            self.watched = partition
        partition.readers[self] = None

    def unwatch(self) -> None:
        if self.watched is not None:
            self.watched.readers.pop(self, None)
            self.watched = None

    def on_change(self) -> None:
        """The partition changes for the first time since `watch`."""
        self.watched = None
        session = self.session
        if session is not None:
            session.mark(self)
            for waiting in session.waiting:
                waiting.on_change(self)


class Readers:
    """The partitions of one Fetch or session, from the owners' point of view."""

    __slots__ = ("waiting",)

    id: int

    def __init__(self) -> None:
        self.waiting: list[WaitingFetch] = []

    def mark(self, partition: SessionPartition) -> None:
        """The partition may have something for the reader."""


class OneFetch(Readers):
    """A Fetch without a session: nothing is kept."""

    __slots__ = ()
    id = INVALID_SESSION_ID


class FetchSession(Readers):
    """The partitions that a reader named, and those that may have something for it."""

    __slots__ = (
        "_next_place",
        "cached_bytes",
        "changed",
        "created_ms",
        "epoch",
        "id",
        "is_privileged",
        "last_fetch_ms",
        "last_used_ms",
        "partitions",
        "previous_fetch_ms",
        "reader",
        "size_bytes",
        "uses_topic_ids",
    )

    def __init__(self, session_id: int, is_privileged: bool, uses_topic_ids: bool, now_ms: int) -> None:
        super().__init__()
        self.id = session_id
        self.is_privileged = is_privileged
        self.uses_topic_ids = uses_topic_ids
        self.partitions: MutableMapping[SessionKey, SessionPartition] = {}
        self.changed: MutableMapping[SessionPartition, None] = {}
        self.reader: object = None
        self.epoch = 1
        self.created_ms = self.last_used_ms = self.last_fetch_ms = now_ms
        self.previous_fetch_ms = 0
        self.size_bytes = 0
        """An estimate of the memory it takes."""
        self.cached_bytes = 0
        """The part of it that the cache has counted."""
        self._next_place = 0

    def advance(self, now_ms: int) -> None:
        """Accept the expected epoch; the next request carries the next one, never 0 or -1 again."""
        self.epoch = 1 if self.epoch == _MAX_INT32 else self.epoch + 1
        self.last_used_ms = now_ms

    def update(self, key: SessionKey, partition: SessionPartition) -> None:
        """Update a partition: it keeps its place and the state last sent to the reader. A new one is put at the end.

        A reader that does not continue after the last answer has not used that answer: it started again in another
        leader epoch, or truncated its log. It receives everything again.
        """
        known = self.partitions.get(key)
        if known is None:
            self.partitions[key] = partition
            partition.session = self
            self.move_to_end(partition)
            self.changed[partition] = None
            self.size_bytes += _size_bytes(key)
            if len(self.partitions) == _SPREAD:
                self.partitions = SpreadDict(self.partitions.items())
            elif len(self.partitions) >= _SPREAD_CHANGED and not isinstance(self.changed, SpreadDict):
                self.changed = SpreadDict(self.changed.items())
            return
        before, now = known.fetch, partition.fetch
        if now.current_leader_epoch != before.current_leader_epoch or now.fetch_offset <= before.fetch_offset:
            known.high_watermark = -1
        known.fetch = now
        known.tp = partition.tp
        self.mark(known)

    def forget(self, keys: Iterable[SessionKey]) -> None:
        for key in keys:
            if (partition := self.partitions.pop(key, None)) is not None:
                self.mark(partition)
                partition.unwatch()
                partition.session = None
                del self.changed[partition]
                self.size_bytes -= _size_bytes(key)

    def is_of_another(self, reader: object) -> bool:
        """Whether the last Fetch came from another reader, so that all partitions must be checked."""
        return self.reader is not None and reader != self.reader

    def begin_fetch(self, reader: object, now_ms: int) -> Collection[SessionPartition]:
        """Return the partitions to check for a Fetch: a list in read order, or all of `changed` if there are very many.

        `reader` is everything except positions that determines an answer. If it changed, all partitions are checked.
        """
        if self.is_of_another(reader):
            for partition in self.partitions.values():
                self.mark(partition)
        is_first, self.reader = self.reader is None, reader
        if not is_first:
            self.previous_fetch_ms = self.last_fetch_ms
        self.last_fetch_ms = now_ms
        if len(self.changed) > MOST_SORTED:
            return self.changed
        # Partitions of a new session are in their order.
        return list(self.changed) if is_first else sorted(self.changed, key=place_of)

    def mark(self, partition: SessionPartition) -> None:
        """The partition may have something for the reader."""
        self.changed[partition] = None
        if partition.remote is not None:
            partition.remote.leave_session()
            partition.remote = None

    def settle(self, partition: SessionPartition, hosted: Partition, log_size_bytes: int) -> None:
        """The reader knows everything about the partition: skip it until it changes."""
        partition.watch(hosted)
        partition.log_size_bytes = log_size_bytes
        del self.changed[partition]

    def release(self, most: int) -> None:
        """Forget some partitions of a session that has ended."""
        for _ in range(min(most, len(self.partitions))):
            _, partition = self.partitions.popitem()
            partition.unwatch()
            partition.session = None
            self.changed.pop(partition, None)

    def move_to_end(self, partition: SessionPartition) -> None:
        """The partition that was just served goes last, so that a full response does not starve the others."""
        partition.place = self._next_place
        self._next_place += 1


class FetchSessionCache:
    def __init__(
        self,
        max_slots: int,
        clock: Clock,
        rng: Random,
        metrics: MetricsRegistry,
        min_eviction_ms: int = 120_000,
        max_bytes: int = MAX_CACHED_BYTES,
    ) -> None:
        self._max_slots = max_slots
        self._max_bytes = max_bytes
        self._clock = clock
        self._rng = rng
        self._min_eviction_ms = min_eviction_ms
        self._sessions: dict[int, FetchSession] = {}
        self._ended: list[FetchSession] = []
        self.size_bytes = 0
        """Of all sessions, and of those that ended and are not released yet."""
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

    def create(
        self, *, is_privileged: bool, uses_topic_ids: bool, partition_count: int, size_bytes: int = 0
    ) -> FetchSession | None:
        """Return a new session, or None if there is no room for it."""
        self._sweep()
        now_ms = elapsed_ms(self._clock)
        while len(self._sessions) >= self._max_slots or self.size_bytes + size_bytes > self._max_bytes:
            if self._ended and len(self._sessions) < self._max_slots:
                self._sweep()
            elif size_bytes > self._max_bytes or not self._make_room(is_privileged, partition_count, now_ms):
                return None
        session = FetchSession(self._new_id(), is_privileged, uses_topic_ids, now_ms)
        self._sessions[session.id] = session
        session.cached_bytes = size_bytes
        self.size_bytes += size_bytes
        return session

    def resume(self, session_id: int, epoch: int, uses_topic_ids: bool) -> FetchSession | ErrorCode:
        """Return the session that a request continues, or the error."""
        self._sweep()
        session = self._sessions.get(session_id)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if session.uses_topic_ids != uses_topic_ids:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        session.advance(elapsed_ms(self._clock))
        self._sessions[session_id] = self._sessions.pop(session_id)
        return session

    def keep(self, session: FetchSession) -> bool:
        """Count the memory that a session gained or lost; False if there is no room for it and it has ended."""
        if self._sessions.get(session.id) is not session:
            return False
        self.size_bytes += session.size_bytes - session.cached_bytes
        has_grown = session.size_bytes > session.cached_bytes
        session.cached_bytes = session.size_bytes
        now_ms = elapsed_ms(self._clock)
        while has_grown and self.size_bytes > self._max_bytes and session.id in self._sessions:
            if self._ended:
                self._sweep()
            elif not self._make_room(session.is_privileged, len(session.partitions), now_ms):
                self.remove(session.id)
        return session.id in self._sessions

    def remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._ended.append(session)
            self._sweep()

    def _sweep(self) -> None:
        """Release some partitions of ended sessions: all at once would take too long."""
        if not self._ended:
            return
        session = self._ended[-1]
        session.release(_SWEEP)
        if not session.partitions:
            self._ended.pop()
            self.size_bytes -= session.cached_bytes

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
        self.remove(session.id)
        self._evictions.mark()

    def _new_id(self) -> int:
        while (session_id := self._rng.randint(1, _MAX_INT32)) in self._sessions:
            pass
        return session_id


def size_bytes_of(name_bytes: int, partition_count: int) -> int:
    """The estimate for the partitions of one topic."""
    return (_PARTITION_BYTES + name_bytes) * partition_count


def _size_bytes(key: SessionKey) -> int:
    name = key[0]
    return size_bytes_of(len(name) if isinstance(name, str) else 0, 1)


def _weight(session: FetchSession) -> tuple[bool, int]:
    return session.is_privileged, len(session.partitions)


place_of: Final = attrgetter("place")
