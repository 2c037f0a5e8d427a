"""What waits to be sent to one broker. Superseded states collapse into the newest, so a slow broker cannot back it up.

What a broker ends up with depends only on the order of what concerns one partition, so requests that wait are merged:

- UpdateMetadata: one at most waits. The last state of a partition and the last list of live brokers win. It touches
  the metadata cache only and may pass a StopReplica. A partition's end is told before its name comes back.
- LeaderAndIsr: the last state of a partition wins (leader epochs only grow), `is_new` sticks. One that was put behind
  a waiting UpdateMetadata is sent behind it: the broker must know the leaders that it names.
- StopReplica is a barrier for its partitions: what was put before it stays before it, what comes later stays behind.

The oldest is sent first, so nothing starves, and the length is bounded by the size of the cluster and not by time.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from dataclasses import field, replace
from uuid import UUID

from klamm.controller.requests import (
    ControlRequest,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LiveLeader,
    RequestHead,
    StopReplicaPartition,
    StopReplicaRequest,
    UpdateMetadataBody,
    UpdateMetadataRequest,
)
from klamm.frozen import dataclass
from klamm.model import LEADER_DURING_DELETE, ZERO_UUID, TopicPartition


@dataclass(frozen=True, slots=True)
class QueueItem:
    """A request, and when the oldest part of it was put."""

    request: ControlRequest
    enqueue_s: float


@dataclasses.dataclass(slots=True)
class _Phase:
    """Partitions that wait for requests of one kind; `number` orders by the oldest of them."""

    number: int
    enqueue_s: float
    behind_update: bool = False
    topic_ids: dict[str, UUID] = field(default_factory=dict)
    states: dict[TopicPartition, LeaderAndIsrPartition] = field(default_factory=dict)
    live_leaders: dict[int, LiveLeader] = field(default_factory=dict)
    stops: dict[TopicPartition, StopReplicaPartition] = field(default_factory=dict)

    def request(self, head: RequestHead) -> ControlRequest:
        if self.stops:
            return StopReplicaRequest(head, tuple(self.stops.values()))
        ids, leaders = tuple(self.topic_ids.items()), tuple(self.live_leaders.values())
        return LeaderAndIsrRequest(head, tuple(self.states.values()), ids, leaders)


class RequestQueue:
    """`stop_flags`: whether one StopReplica can both stop and delete (version 3 on)."""

    def __init__(self, *, stop_flags: bool = True) -> None:
        self._stop_flags = stop_flags
        self._head: RequestHead | None = None
        self._ready: deque[QueueItem] = deque()
        self._update: tuple[int, float, UpdateMetadataRequest] | None = None
        self._phases: deque[_Phase] = deque()
        self._number = 0
        self.coalesced = 0
        """Requests that were put and are not sent on their own."""

    def __len__(self) -> int:
        return len(self._ready) + len(self._phases) + (self._update is not None)

    @property
    def oldest_s(self) -> float | None:
        """When the oldest waiting request was put."""
        times = [item.enqueue_s for item in self._ready] + [phase.enqueue_s for phase in self._phases]
        return min([*times, self._update[1]] if self._update is not None else times, default=None)

    def put(self, request: ControlRequest, now_s: float) -> None:
        """Another incarnation, another term, or a name that comes back is never merged with what waits."""
        if request.head != self._head or self._recreates(request):
            while self._update is not None or self._phases:
                self._ready.append(self._take_oldest())
            self._head = request.head
        before = len(self)
        self._number += 1
        if isinstance(request, UpdateMetadataRequest):
            self._put_update(request, now_s)
        elif isinstance(request, LeaderAndIsrRequest):
            self._put_states(request, now_s)
        else:
            self._put_stops(request, now_s)
        self.coalesced += len(self) == before

    def _recreates(self, request: ControlRequest) -> bool:
        """Whether it brings back a partition whose end waits to be told: the broker must hear of the end first."""
        if self._update is None or not isinstance(request, UpdateMetadataRequest):
            return False
        ended = {s.partition for s in self._update[2].body.partitions if s.leader == LEADER_DURING_DELETE}
        return any(s.partition in ended and s.leader != LEADER_DURING_DELETE for s in request.body.partitions)

    def take(self) -> QueueItem:
        """The oldest request. Raises IndexError when nothing waits."""
        return self._ready.popleft() if self._ready else self._take_oldest()

    def clear(self) -> None:
        self._ready.clear()
        self._phases.clear()
        self._update = None

    def _take_oldest(self) -> QueueItem:
        assert self._head is not None
        update = self._update
        if update is not None and (not self._phases or update[0] < self._phases[0].number):
            self._update = None
            for phase in self._phases:
                phase.behind_update = False
            return QueueItem(update[2], update[1])
        phase = self._phases.popleft()
        return QueueItem(phase.request(self._head), phase.enqueue_s)

    # --- merging -----------------------------------------------------------------------------------------------------

    def _put_update(self, request: UpdateMetadataRequest, now_s: float) -> None:
        """Alone, a request stays the very object that all brokers share."""
        if self._update is None:
            self._update = (self._number, now_s, request)
            return
        number, enqueue_s, waiting = self._update
        partitions = {state.partition: state for state in waiting.body.partitions}
        partitions.update((state.partition, state) for state in request.body.partitions)
        ids = dict(waiting.body.topic_ids) | dict(request.body.topic_ids)
        body = UpdateMetadataBody(tuple(partitions.values()), tuple(ids.items()), request.body.live_brokers)
        self._update = (number, enqueue_s, UpdateMetadataRequest(request.head, body))

    def _put_states(self, request: LeaderAndIsrRequest, now_s: float) -> None:
        ids = dict(request.topic_ids)
        for state in request.partitions:
            tp = state.partition
            topic_id = ids.get(tp.topic, ZERO_UUID)
            phase = self._phase_for_state(tp, topic_id) or self._new_phase(now_s)
            waiting = phase.states.get(tp)
            merged = replace(state, is_new=True) if waiting is not None and waiting.is_new else state
            phase.states[tp] = merged
            if topic_id != ZERO_UUID:
                phase.topic_ids[tp.topic] = topic_id
            phase.live_leaders.update((leader.id, leader) for leader in request.live_leaders)

    def _phase_for_state(self, tp: TopicPartition, topic_id: UUID) -> _Phase | None:
        """A waiting LeaderAndIsr that is not before anything of this partition, nor before a waiting UpdateMetadata."""
        found = None
        for phase in reversed(self._phases):
            fits = not phase.stops and phase.topic_ids.get(tp.topic, topic_id) == topic_id
            if fits and (self._update is None or phase.behind_update):
                found = phase
            if tp in phase.states or tp in phase.stops:
                break
        return found

    def _put_stops(self, request: StopReplicaRequest, now_s: float) -> None:
        for stop in request.partitions:
            tp = stop.partition
            phase = self._phase_for_stop(tp, stop.delete) or self._new_phase(now_s)
            waiting = phase.stops.get(tp)
            sticky = waiting is not None and waiting.delete
            phase.stops[tp] = replace(stop, delete=True) if sticky else stop

    def _phase_for_stop(self, tp: TopicPartition, delete: bool) -> _Phase | None:
        found = None
        for phase in reversed(self._phases):
            same_kind = bool(phase.stops) and (self._stop_flags or next(iter(phase.stops.values())).delete == delete)
            if same_kind:
                found = phase
            if tp in phase.states or tp in phase.stops:
                break
        return found

    def _new_phase(self, now_s: float) -> _Phase:
        phase = _Phase(self._number, now_s, behind_update=self._update is not None)
        self._phases.append(phase)
        return phase
