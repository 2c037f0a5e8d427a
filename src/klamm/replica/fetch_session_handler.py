"""The follower's side of incremental fetch sessions (KIP-227): which partitions a Fetch request must name.

The leader remembers the partitions that a session has named; later requests name only new and changed ones. One
request names a bounded number of them, and later requests name the others: encoding one request for 20,000 partitions
would hold the loop for 6 ms. After any failure everything is named again. A leader without room for a session is asked
for the partitions in turn. Cost follows the change, not the number of partitions.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple
from uuid import UUID

from klamm.errors import ErrorCode
from klamm.model import UNKNOWN_BROKER_EPOCH, ZERO_UUID, TopicPartition
from klamm.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic, ReplicaState
from klamm.replica.fetch_session import INITIAL_EPOCH, INVALID_SESSION_ID, SessionKey
from klamm.replica.fetch_state import PartitionFetchState
from klamm.replica.fetcher_config import REPLICA_STATE_VERSION, TOPIC_ID_VERSION, FetcherConfig

_MAX_EPOCH: Final = (1 << 31) - 1
NEW_PARTITIONS: Final = 2_000
"""Partitions that one request adds to a session. If more are left, the leader is asked to answer at once."""
CHANGED_PARTITIONS: Final = 2_000
"""Changed partitions that one request names. The session forgets the others, and they are added to it again."""
FORGOTTEN_PARTITIONS: Final = 2_000
"""Partitions that one request takes out of a session."""
SESSION_ERRORS: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
PARTITIONS_PER_SLICE: Final = 200
"""Partitions that a follower adds to a request, or reads from an answer, before the loop serves others."""


class BuiltRequest(NamedTuple):
    request: FetchRequest
    version: int


class FetchSessionHandler:
    """Owned by one ReplicaFetcher. The leader's session holds the same partitions as `_asked`, under the names of that
    version."""

    def __init__(self, config: FetcherConfig) -> None:
        self._config = config
        self._active: dict[TopicPartition, PartitionFetchState] = {}
        self._without_id = 0
        self._new: dict[TopicPartition, PartitionFetchState] = {}
        """Partitions that the leader's session does not hold yet."""
        self._changed: dict[TopicPartition, PartitionFetchState] = {}
        """Partitions that the session holds with an outdated position."""
        self._is_refused = False
        """The leader has no room for a session: requests name the partitions in the order of `_active`."""
        self._forgotten: dict[SessionKey, tuple[TopicPartition, UUID]] = {}
        self._session_id = INVALID_SESSION_ID
        self._epoch = INITIAL_EPOCH
        self._version = config.fetch_version
        self._asked: dict[SessionKey, PartitionFetchState] = {}

    def __len__(self) -> int:
        return len(self._active)

    def is_asked_for(self, state: PartitionFetchState) -> bool:
        return self._active.get(state.tp) is state

    def put(self, state: PartitionFetchState) -> None:
        """The partition is new, or its parameters changed."""
        tp = state.tp
        if self._active.get(tp) is not state:
            self.remove(tp)
            self._without_id += state.topic_id == ZERO_UUID
        self._active[tp] = state
        key = self._key(state)
        if self._forgotten.pop(key, None) is not None or key in self._asked:
            self._changed[tp] = state
            self._new.pop(tp, None)
        else:
            self._new[tp] = state

    def remove(self, tp: TopicPartition) -> None:
        """Stop asking for the partition, for good or for a while."""
        state = self._active.pop(tp, None)
        if state is None:
            return
        self._without_id -= state.topic_id == ZERO_UUID
        self._changed.pop(tp, None)
        self._new.pop(tp, None)
        key = self._key(state)
        if self._asked.pop(key, None) is not None:
            self._forgotten[key] = tp, state.topic_id

    def asked(self, topic: str, topic_id: UUID, partition: int) -> PartitionFetchState | None:
        """Return the request for an answered partition; None if it is no longer asked for."""
        name: str | UUID = topic_id if self._version >= TOPIC_ID_VERSION else topic
        return self._asked.get((name, partition))

    def _key(self, state: PartitionFetchState) -> SessionKey:
        name: str | UUID = state.topic_id if self._version >= TOPIC_ID_VERSION else state.tp.topic
        return name, state.tp.partition

    def reset(self) -> None:
        """The connection or the session is lost: the next request is full and ends the old session."""
        self._epoch = INITIAL_EPOCH

    def build(self, max_wait_ms: int, broker_epoch: int = UNKNOWN_BROKER_EPOCH) -> BuiltRequest:
        """Return the next request, made at once."""
        steps = self.building(max_wait_ms, broker_epoch)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                built: BuiltRequest = done.value
                return built

    def building(
        self, max_wait_ms: int, broker_epoch: int = UNKNOWN_BROKER_EPOCH
    ) -> Generator[None, None, BuiltRequest]:
        """Return the next request, made slice by slice. Topics are named by id unless one of them has none.

        Partitions may come and go between the slices: those that have been named already are in the next request again,
        or are forgotten by it.
        """
        version = self._config.fetch_version
        if self._without_id and version >= TOPIC_ID_VERSION:
            version = TOPIC_ID_VERSION - 1
        if version != self._version:
            self.reset()
        self._version = version
        if self._epoch == INITIAL_EPOCH:
            changed, new = self._begin()
            forgotten: dict[SessionKey, tuple[TopicPartition, UUID]] = {}
        else:
            new = self._take_new(NEW_PARTITIONS)
            yield from self._forget_changed()
            changed, self._changed = self._changed, {}
            taken = list(islice(self._forgotten, FORGOTTEN_PARTITIONS))
            forgotten = {key: self._forgotten.pop(key) for key in taken}
        grouped: dict[tuple[str, UUID], list[FetchPartition]] = {}
        for count, state in enumerate([*changed.values(), *new], 1):
            if self.is_asked_for(state):
                grouped.setdefault((state.tp.topic, state.topic_id), []).append(self._partition(state))
                self._asked[self._key(state)] = state
            if count % PARTITIONS_PER_SLICE == 0:
                yield
        topics = [
            FetchTopic(topic=name, topic_id=topic_id, partitions=each) for (name, topic_id), each in grouped.items()
        ]
        wait_ms = self._wait_ms(max_wait_ms)
        return BuiltRequest(
            self._request(version, topics, _forgotten_topics(forgotten), wait_ms, broker_epoch), version
        )

    def _begin(self) -> tuple[dict[TopicPartition, PartitionFetchState], list[PartitionFetchState]]:
        """Return the partitions of a request that begins a session. Without one, changed partitions come first."""
        changed: dict[TopicPartition, PartitionFetchState] = {}
        if self._is_refused:
            changed = dict(islice(self._changed.items(), CHANGED_PARTITIONS))
        self._asked, self._changed, self._forgotten = {}, {}, {}
        self._new = dict(self._active)
        for tp in changed:
            del self._new[tp]
        new = self._take_new(NEW_PARTITIONS)
        for state in new:  # The next request that begins a session names others.
            del self._active[state.tp]
            self._active[state.tp] = state
        return changed, new

    def _forget_changed(self) -> Iterator[None]:
        """Remove the partitions that do not fit into one request from the session: otherwise the leader would send them
        again.
        """
        count = 0
        while len(self._changed) > CHANGED_PARTITIONS:
            tp, state = self._changed.popitem()
            key = self._key(state)
            self._asked.pop(key, None)
            self._forgotten[key] = tp, state.topic_id
            self._new[tp] = state
            count += 1
            if count % PARTITIONS_PER_SLICE == 0:
                yield

    def _take_new(self, count: int) -> list[PartitionFetchState]:
        states = [self._new.pop(tp) for tp in list(islice(self._new, count))]
        for state in states:
            self._forgotten.pop(self._key(state), None)
        return states

    def _wait_ms(self, max_wait_ms: int) -> int:
        """Return `max_wait_ms` of the next fetch.

        It is 0 if some partitions are not named yet. Without a session, it is a share of the usual wait.
        """
        if self._is_refused and self._new:
            return max(1, max_wait_ms * len(self._asked) // len(self._active)) if max_wait_ms else 0
        return 0 if self._new or self._forgotten else max_wait_ms

    def _request(
        self,
        version: int,
        topics: list[FetchTopic],
        forgotten: Iterable[ForgottenTopic],
        max_wait_ms: int,
        broker_epoch: int,
    ) -> FetchRequest:
        config = self._config
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=config.min_bytes,
            max_bytes=config.response_max_bytes,
            session_id=self._session_id,
            session_epoch=self._epoch,
            topics=topics,
            forgotten_topics_data=list(forgotten),
        )
        if version >= REPLICA_STATE_VERSION:
            request.replica_state = ReplicaState(replica_id=config.broker_id, replica_epoch=broker_epoch)
        else:
            request.replica_id = config.broker_id
        return request

    def _partition(self, state: PartitionFetchState) -> FetchPartition:
        state.reported_log_start_offset = state.log.log_start_offset
        return FetchPartition(
            partition=state.tp.partition,
            current_leader_epoch=state.leader_epoch,
            fetch_offset=state.fetch_offset,
            last_fetched_epoch=state.last_fetched_epoch,
            log_start_offset=state.log.log_start_offset,
            partition_max_bytes=self._config.max_bytes,
        )

    def on_response(self, error: ErrorCode, session_id: int) -> None:
        """Advance the session. After an error, or without room at the leader, the next request is full."""
        if error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self._session_id = INVALID_SESSION_ID
            self.reset()
        elif error != ErrorCode.NONE:
            self.reset()
        elif self._epoch == INITIAL_EPOCH:
            self._session_id = session_id
            self._is_refused = session_id == INVALID_SESSION_ID
            self._epoch = INITIAL_EPOCH if self._is_refused else 1
        else:
            self._epoch = 1 if self._epoch == _MAX_EPOCH else self._epoch + 1


def _forgotten_topics(forgotten: Mapping[SessionKey, tuple[TopicPartition, UUID]]) -> list[ForgottenTopic]:
    grouped: dict[tuple[str, UUID], list[int]] = {}
    for tp, topic_id in forgotten.values():
        grouped.setdefault((tp.topic, topic_id), []).append(tp.partition)
    return [
        ForgottenTopic(topic=name, topic_id=topic_id, partitions=each) for (name, topic_id), each in grouped.items()
    ]
