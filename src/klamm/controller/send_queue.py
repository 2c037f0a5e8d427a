"""Requests that wait to be sent to one broker. Newer states replace older ones, so a slow broker cannot back it up.

The final state of a broker depends only on the order of the requests per partition, so waiting requests are merged:

- UpdateMetadata: at most one waits. The last state of a partition and the last list of live brokers win. It concerns
  the metadata cache only and may overtake a StopReplica. If a topic is created again while the deletion of its
  predecessor is queued, the deletion is sent first, in a request of its own. If several deletions of one name are
  queued, the first is sent.
- LeaderAndIsr: the last state of a partition wins, because leader epochs only grow; `is_new` stays set. If it was
  queued after a waiting UpdateMetadata, it is sent after it: the broker must know the leaders that it names.
- StopReplica is a barrier for its partitions: earlier requests stay before it, later ones after it. A deletion
  supersedes everything that waits for its partition; a mere stop is superseded by the next state.

A request of very many partitions is sent in slices, so that the broker serves its clients between them. All slices of
a request are sent before anything else.

The oldest request is sent first, so nothing starves. At most one deletion, two states (before and after a waiting
UpdateMetadata) and one stop wait per partition: the length is bounded by the cluster's size, not by time.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from dataclasses import field, replace
from typing import NamedTuple
from uuid import UUID

from klamm.control_log.records import MAX_LISTED, Decision
from klamm.controller.requests import (
    ControlRequest,
    EncodedStates,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LiveLeader,
    RequestHead,
    StopReplicaPartition,
    StopReplicaRequest,
    UpdateMetadataBody,
    UpdateMetadataRequest,
)
from klamm.lazy_dataclass import lazy_dataclass
from klamm.metadata.update import MAX_PARTITIONS
from klamm.model import EPOCH_DURING_DELETE, LEADER_DURING_DELETE, ZERO_UUID, TopicPartition


@lazy_dataclass(frozen=True, slots=True)
class QueueItem:
    """A request with the time and number of its oldest part, and the decisions that were merged into it.

    The newest decision is the last; the oldest ones are dropped from a long list.
    """

    request: ControlRequest
    enqueue_s: float
    number: int
    decisions: tuple[Decision, ...] = ()


class _Update(NamedTuple):
    """The waiting UpdateMetadata."""

    number: int
    enqueue_s: float
    request: UpdateMetadataRequest
    decisions: tuple[Decision, ...]

    def item(self, request: UpdateMetadataRequest) -> QueueItem:
        return QueueItem(request, self.enqueue_s, self.number, self.decisions)


@dataclasses.dataclass(slots=True, eq=False)
class _Phase:
    """Partitions that wait for requests of one kind; `number` is that of the oldest."""

    number: int
    enqueue_s: float
    behind_update: bool = False
    topic_ids: dict[str, UUID] = field(default_factory=dict)
    states: dict[TopicPartition, LeaderAndIsrPartition] = field(default_factory=dict)
    live_leaders: dict[int, LiveLeader] = field(default_factory=dict)
    stops: dict[TopicPartition, StopReplicaPartition] = field(default_factory=dict)
    encoded: EncodedStates = field(default_factory=dict)
    decisions: tuple[Decision, ...] = ()

    def requests(self, head: RequestHead, limit: int) -> list[ControlRequest]:
        if self.stops:
            stops = tuple(self.stops.values())
            return [StopReplicaRequest(head, stops[i : i + limit]) for i in range(0, len(stops), limit)]
        states, leaders = tuple(self.states.values()), tuple(self.live_leaders.values())
        if len(states) <= limit:
            return [LeaderAndIsrRequest(head, states, tuple(self.topic_ids.items()), leaders, self.encoded)]
        slices = [states[i : i + limit] for i in range(0, len(states), limit)]
        return [LeaderAndIsrRequest(head, part, self._ids_of(part), leaders, self.encoded) for part in slices]

    def _ids_of(self, states: tuple[LeaderAndIsrPartition, ...]) -> tuple[tuple[str, UUID], ...]:
        topics = dict.fromkeys(state.partition.topic for state in states)
        return tuple((topic, self.topic_ids[topic]) for topic in topics if topic in self.topic_ids)


def _with(decisions: tuple[Decision, ...], decision: Decision | None) -> tuple[Decision, ...]:
    if decision is None or (decisions and decisions[-1] == decision):
        return decisions
    return (*decisions, decision)[-MAX_LISTED:]


def _merged_stop(waiting: StopReplicaPartition | None, stop: StopReplicaPartition) -> StopReplicaPartition:
    """A deletion stays a deletion; a topic deletion, which no broker epoch can refuse, stays one too."""
    if waiting is None or not waiting.delete:
        return stop
    ends_topic = waiting.leader_epoch == EPOCH_DURING_DELETE
    return replace(stop, delete=True, leader_epoch=EPOCH_DURING_DELETE if ends_topic else stop.leader_epoch)


class SendQueue:
    """`stop_flags`: whether one StopReplica can both stop and delete (version 3 on)."""

    def __init__(self, *, stop_flags: bool = True, max_partitions: int = MAX_PARTITIONS) -> None:
        self._stop_flags = stop_flags
        self._max_partitions = max_partitions
        self._head: RequestHead | None = None
        self._ready: deque[QueueItem] = deque()
        self._ends: UpdateMetadataRequest | None = None
        self._update: _Update | None = None
        self._phases: deque[_Phase] = deque()
        self._number = 0
        self._decision: Decision | None = None
        self.oldest_s: float | None = None
        self.oldest_number: int | None = None
        """Time and number of the oldest waiting request. Written on the control loop only; readable elsewhere."""
        self.coalesced = 0
        """Requests that were merged into others."""

    def __len__(self) -> int:
        updates = (self._update is not None) + (self._ends is not None)
        return len(self._ready) + len(self._phases) + updates

    def _note_oldest(self) -> None:
        """Each of the three is in time order: the first is the oldest."""
        firsts = [(items[0].enqueue_s, items[0].number) for items in (self._ready, self._phases) if items]
        if self._update is not None:
            firsts.append((self._update.enqueue_s, self._update.number))
        self.oldest_s = min((first[0] for first in firsts), default=None)
        self.oldest_number = min((first[1] for first in firsts), default=None)

    def put(self, request: ControlRequest, now_s: float, decision: Decision | None = None) -> None:
        """Requests for another incarnation or of another term are never merged with waiting ones.

        `decision` is the event that created the request, for the control log.
        """
        if request.head != self._head:
            while self._update is not None or self._phases:
                self._ready.extend(self._take_oldest())
            self._head = request.head
        before = len(self)
        self._number += 1
        self._decision = decision
        if isinstance(request, UpdateMetadataRequest):
            self._put_update(request, now_s)
        elif isinstance(request, LeaderAndIsrRequest):
            self._put_states(request, now_s)
        else:
            self._put_stops(request, now_s)
        self.coalesced += max(0, before + 1 - len(self))
        self._note_oldest()

    def take(self) -> QueueItem:
        """Return the oldest request. Raises IndexError if nothing waits."""
        if not self._ready:
            self._ready.extend(self._take_oldest())
        item = self._ready.popleft()
        self._note_oldest()
        return item

    def clear(self) -> None:
        self._ready.clear()
        self._phases.clear()
        self._ends = self._update = self.oldest_s = self.oldest_number = None

    def _take_oldest(self) -> list[QueueItem]:
        if self._head is None:
            raise IndexError("nothing waits")
        update = self._update
        if update is not None and (not self._phases or update.number < self._phases[0].number):
            ends, self._ends = self._ends, None
            if ends is not None:
                return [update.item(ends)]
            self._update = None
            for phase in self._phases:
                phase.behind_update = False
            return [update.item(part) for part in update.request.slices(self._max_partitions)]
        phase = self._phases.popleft()
        requests = phase.requests(self._head, self._max_partitions)
        return [QueueItem(request, phase.enqueue_s, phase.number, phase.decisions) for request in requests]

    # --- merging -----------------------------------------------------------------------------------------------------

    def _put_update(self, request: UpdateMetadataRequest, now_s: float) -> None:
        """An unmerged request stays the object that all brokers share."""
        if self._update is None:
            self._update = _Update(self._number, now_s, request, _with((), self._decision))
            return
        self._split_ends(request)
        number, enqueue_s, waiting, decisions = self._update
        partitions = {state.partition: state for state in waiting.body.partitions}
        partitions.update((state.partition, state) for state in request.body.partitions)
        ended = {s.partition.topic for s in waiting.body.partitions if s.leader == LEADER_DURING_DELETE}
        ids = dict(waiting.body.topic_ids)
        ids.update(pair for pair in request.body.topic_ids if pair[0] not in ended)
        body = UpdateMetadataBody(tuple(partitions.values()), tuple(ids.items()), request.body.live_brokers)
        merged = UpdateMetadataRequest(request.head, body)
        self._update = _Update(number, enqueue_s, merged, _with(decisions, self._decision))

    def _split_ends(self, request: UpdateMetadataRequest) -> None:
        """Send the queued deletions of topics that `request` creates again before it, in a request of their own."""
        assert self._update is not None
        waiting = self._update.request
        ended = [state for state in waiting.body.partitions if state.leader == LEADER_DURING_DELETE]
        back = {s.partition.topic for s in request.body.partitions if s.leader != LEADER_DURING_DELETE} if ended else ()
        ended = [state for state in ended if state.partition.topic in back]
        if not ended:
            return
        topics = {state.partition.topic for state in ended}
        first = () if self._ends is None else self._ends.body.partitions
        first_ids = () if self._ends is None else self._ends.body.topic_ids
        ends = {state.partition: state for state in (*ended, *first)}
        ids = {topic: topic_id for topic, topic_id in waiting.body.topic_ids if topic in topics} | dict(first_ids)
        body = UpdateMetadataBody(tuple(ends.values()), tuple(ids.items()), waiting.body.live_brokers)
        self._ends = UpdateMetadataRequest(request.head, body)
        kept = tuple(s for s in waiting.body.partitions if s.partition.topic not in topics)
        kept_ids = tuple(pair for pair in waiting.body.topic_ids if pair[0] not in topics)
        body = UpdateMetadataBody(kept, kept_ids, waiting.body.live_brokers)
        self._update = self._update._replace(request=UpdateMetadataRequest(request.head, body))

    def _put_states(self, request: LeaderAndIsrRequest, now_s: float) -> None:
        ids = dict(request.topic_ids)
        if not self._phases:
            self._put_first_states(request, ids, now_s)
            return
        used: dict[int, _Phase] = {}
        for state in request.partitions:
            tp = state.partition
            self._drop_waiting_stop(tp)
            topic_id = ids.get(tp.topic, ZERO_UUID)
            self._drop_other_incarnations(tp, topic_id)
            phase = self._phase_for_state(tp, topic_id) or self._new_phase(now_s)
            waiting = phase.states.get(tp)
            merged = state._replace(is_new=True) if waiting is not None and waiting.is_new else state
            phase.states[tp] = merged
            if topic_id != ZERO_UUID:
                phase.topic_ids[tp.topic] = topic_id
            used[id(phase)] = phase
        for phase in used.values():
            phase.encoded = {}
            phase.decisions = _with(phase.decisions, self._decision)
            phase.live_leaders.update((leader.id, leader) for leader in request.live_leaders)

    def _put_first_states(self, request: LeaderAndIsrRequest, ids: dict[str, UUID], now_s: float) -> None:
        """Nothing to merge with, as usual: all brokers share the encoded states."""
        phase = self._new_phase(now_s)
        phase.states = {state.partition: state for state in request.partitions}
        phase.topic_ids = {topic: topic_id for topic, topic_id in ids.items() if topic_id != ZERO_UUID}
        phase.live_leaders = {leader.id: leader for leader in request.live_leaders}
        phase.encoded = request.encoded

    def _phase_for_state(self, tp: TopicPartition, topic_id: UUID) -> _Phase | None:
        """Return a waiting LeaderAndIsr that precedes neither another request of this partition nor a waiting
        UpdateMetadata."""
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
            earlier = self._drop_all(tp) if stop.delete else None
            phase = self._phase_for_stop(tp, stop.delete) or self._new_phase(now_s)
            phase.stops[tp] = _merged_stop(earlier or phase.stops.get(tp), stop)
            phase.decisions = _with(phase.decisions, self._decision)

    def _phase_for_stop(self, tp: TopicPartition, delete: bool) -> _Phase | None:
        found = None
        for phase in reversed(self._phases):
            same_kind = bool(phase.stops) and (self._stop_flags or next(iter(phase.stops.values())).delete == delete)
            if same_kind:
                found = phase
            if tp in phase.states or tp in phase.stops:
                break
        return found

    def _drop_waiting_stop(self, tp: TopicPartition) -> None:
        """Drop the last waiting request for the partition if it only stops: the new state supersedes it."""
        for phase in reversed(self._phases):
            if tp in phase.states or tp in phase.stops:
                stop = phase.stops.get(tp)
                if stop is not None and not stop.delete:
                    self._drop(phase, tp)
                return

    def _drop_other_incarnations(self, tp: TopicPartition, topic_id: UUID) -> None:
        """Drop states of an earlier topic of this name: it is gone, possibly not deleted by the controller."""
        for phase in [phase for phase in self._phases if tp in phase.states]:
            if phase.topic_ids.get(tp.topic, topic_id) != topic_id:
                self._drop(phase, tp)

    def _drop_all(self, tp: TopicPartition) -> StopReplicaPartition | None:
        """Drop everything that waits for the partition; returns the deletion among it."""
        deletion = None
        for phase in [phase for phase in self._phases if tp in phase.states or tp in phase.stops]:
            stop = phase.stops.get(tp)
            deletion = stop if stop is not None and stop.delete else deletion
            self._drop(phase, tp)
        return deletion

    def _drop(self, phase: _Phase, tp: TopicPartition) -> None:
        phase.states.pop(tp, None)
        phase.stops.pop(tp, None)
        if not phase.states and not phase.stops:
            self._phases.remove(phase)

    def _new_phase(self, now_s: float) -> _Phase:
        phase = _Phase(self._number, now_s, behind_update=self._update is not None)
        phase.decisions = _with((), self._decision)
        self._phases.append(phase)
        return phase
