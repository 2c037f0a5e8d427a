"""Coalescing: whatever is merged, the broker ends in the state that plain delivery leads to."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.control_log.records import MAX_LISTED, Decision
from klamm.controller.config import InterBrokerProtocol
from klamm.controller.requests import (
    ControlRequest,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    RequestHead,
    StopReplicaPartition,
    StopReplicaRequest,
    UpdateMetadataBody,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
)
from klamm.controller.send_queue import SendQueue
from klamm.metadata.snapshot import MetadataSnapshot
from klamm.metadata.update import MetadataUpdate
from klamm.model import EPOCH_DURING_DELETE, BrokerEndPoints, LeaderAndIsr, TopicPartition
from klamm.protocol.messages import request_class
from klamm.protocol.messages.update_metadata import UpdateMetadataRequest as WireUpdateMetadata
from klamm.protocol.wire import decode
from klamm.sim.broker_model import BrokerModel, Disk
from tests.support.control_requests import encode_request, to_update

HEAD = RequestHead(1, 1, 1)
TOPICS = ("a", "b")
PARTITIONS = [TopicPartition(topic, p) for topic in TOPICS for p in range(2)]
KINDS = ["update", "delete metadata", "broker joins", "new epoch", "same epoch", "stop", "stop and delete"]


class Controller:
    """Makes sequences of requests as a controller would: epochs grow, leaders are announced before they lead.

    A leader epoch has one leader. A topic that was deleted comes back with another id, and its epochs begin again.
    """

    def __init__(self) -> None:
        self.epochs = dict.fromkeys(PARTITIONS, 0)
        self.leaders = dict.fromkeys(PARTITIONS, 2)
        self.live = [1, 2]
        self.ids = {topic: UUID(int=11 + i) for i, topic in enumerate(TOPICS)}
        self.gone: set[str] = set()

    def steps(self, kind: str, chosen: list[TopicPartition], step: int) -> list[ControlRequest]:
        """The requests of one deletion: the replicas of a topic are deleted together with its end."""
        requests = [self.make(kind, chosen, step)]
        if kind == "delete metadata":
            topics = {tp.topic for tp in chosen}
            doomed = [tp for tp in PARTITIONS if tp.topic in topics]
            stops = tuple(StopReplicaPartition(tp, EPOCH_DURING_DELETE, True) for tp in doomed)
            requests.append(StopReplicaRequest(HEAD, stops))
        return requests

    def make(self, kind: str, chosen: list[TopicPartition], step: int) -> ControlRequest:
        if kind == "broker joins":
            self.live.append(len(self.live) + 1)
        if kind == "delete metadata":
            return self._delete({tp.topic for tp in chosen})
        if kind in ("stop", "stop and delete"):
            stops = tuple(StopReplicaPartition(tp, self.epochs[tp], kind != "stop") for tp in chosen)
            return StopReplicaRequest(HEAD, stops)
        for topic in {tp.topic for tp in chosen} & self.gone:
            self._recreate(topic, step)
        if kind in ("update", "broker joins"):
            return self._update(chosen, step)
        if kind == "new epoch":
            for tp in chosen:
                self.epochs[tp] += 1
                self.leaders[tp] = self.live[-1]
        return self._states(chosen, step)

    def _recreate(self, topic: str, step: int) -> None:
        self.gone.discard(topic)
        self.ids[topic] = UUID(int=1000 + step)
        for tp in PARTITIONS:
            if tp.topic == topic:
                self.epochs[tp], self.leaders[tp] = 0, self.live[-1]

    def _topic_ids(self, tps: list[TopicPartition]) -> tuple[tuple[str, UUID], ...]:
        return tuple((topic, self.ids[topic]) for topic in TOPICS if any(tp.topic == topic for tp in tps))

    def _states(self, chosen: list[TopicPartition], step: int) -> LeaderAndIsrRequest:
        states = []
        for tp in chosen:
            leader = self.leaders[tp]
            state = LeaderAndIsr(leader, self.epochs[tp], (leader,), step)
            states.append(LeaderAndIsrPartition(tp, state, 1, (1, leader)))
        return LeaderAndIsrRequest(HEAD, tuple(states), self._topic_ids(chosen))

    def _update(self, chosen: list[TopicPartition], step: int) -> UpdateMetadataRequest:
        states = [UpdateMetadataPartition(tp, 1, self.leaders[tp], self.epochs[tp], (1,), step, (1,)) for tp in chosen]
        return self._request(states)

    def _delete(self, topics: set[str]) -> UpdateMetadataRequest:
        self.gone |= topics
        ended = [tp for tp in PARTITIONS if tp.topic in topics]
        return self._request([UpdateMetadataPartition(tp, 1, -2, 0, (1,), 0, (1,)) for tp in ended])

    def _request(self, states: list[UpdateMetadataPartition]) -> UpdateMetadataRequest:
        live = tuple(BrokerEndPoints(broker, ()) for broker in self.live)
        ids = self._topic_ids([state.partition for state in states])
        return UpdateMetadataRequest(HEAD, UpdateMetadataBody(tuple(states), ids, live))


class Broker:
    """A model of a broker that starts with an update, as every channel does, and the real metadata cache."""

    def __init__(self) -> None:
        self.model = BrokerModel(1, Disk(), lambda *_: None)
        self.model.broker_epoch = 1
        self.metadata = MetadataSnapshot()

    def handle(self, request: ControlRequest) -> None:
        if isinstance(request, LeaderAndIsrRequest):
            unknown = [s.partition for s in request.partitions if s.leader_and_isr.leader not in self.model.live]
            assert not unknown, f"the leaders of {unknown} are not known to live"
        if isinstance(request, UpdateMetadataRequest):
            self.metadata, _ = self.metadata.apply(as_received(request))
        self.model.handle(request)

    def state(self) -> object:
        model = self.model
        hosted = {tp: (it.leader, it.leader_epoch, it.isr) for tp, it in model.hosted.items()}
        topics = {t.name: (t.topic_id, t.sorted_partitions()) for t in self.metadata.sorted_topics()}
        return hosted, model.cache, model.live, model.disk.logs, model.controller_epoch, topics, self.metadata.brokers


def as_received(request: UpdateMetadataRequest) -> MetadataUpdate:
    api_key, version, parts = encode_request(request, InterBrokerProtocol.parse("3.9"))
    message, _ = decode(request_class(api_key), version, b"".join(bytes(part) for part in parts))
    assert isinstance(message, WireUpdateMetadata)
    return to_update(version, message)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(KINDS), st.lists(st.sampled_from(PARTITIONS), min_size=1, unique=True), st.integers(0, 3)
    ),
    max_size=25,
)


@settings(max_examples=300, deadline=None)
@given(STEPS, st.booleans(), st.sampled_from([1, 2, 1_000]))
def test_coalesced_delivery_ends_as_plain_delivery(
    steps: list[tuple[str, list[TopicPartition], int]], flags: bool, limit: int
) -> None:
    controller, plain, coalesced = Controller(), Broker(), Broker()
    queue = SendQueue(stop_flags=flags, max_partitions=limit)
    first = controller.make("update", PARTITIONS, 0)
    for broker in (plain, coalesced):
        broker.handle(first)
    for number, (kind, chosen, takes) in enumerate(steps, start=1):
        for request in controller.steps(kind, chosen, number):
            plain.handle(request)
            queue.put(request, float(number))
        for _ in range(min(takes - 1, len(queue))):
            coalesced.handle(queue.take().request)
    while len(queue):
        item = queue.take().request
        if not flags and isinstance(item, StopReplicaRequest):
            assert len({state.delete for state in item.partitions}) == 1
        coalesced.handle(item)
    assert coalesced.state() == plain.state()


@settings(deadline=None)
@given(STEPS, st.booleans())
def test_the_queue_is_bounded_by_the_cluster_and_not_by_time(
    steps: list[tuple[str, list[TopicPartition], int]], flags: bool
) -> None:
    controller, queue = Controller(), SendQueue(stop_flags=flags)
    for number, (kind, chosen, _) in enumerate(steps * 10):
        queue.put(controller.make(kind, chosen, number), float(number))
        assert (queue.oldest_s is not None) == (len(queue) > 0)
    assert len(queue) <= 4 * len(PARTITIONS) + 2


@pytest.mark.parametrize(
    ("cycle", "length"),
    [
        (["new epoch", "stop"], 2),
        (["new epoch", "stop and delete"], 1),
        (["delete metadata", "new epoch"], 2),
        (["update", "new epoch", "delete metadata", "stop and delete"], 3),
        (["delete metadata", "stop and delete", "update", "new epoch"], 4),
    ],
)
def test_a_repeated_change_waits_once(cycle: list[str], length: int) -> None:
    controller, queue = Controller(), SendQueue()
    for number, kind in enumerate(cycle * 1_000):
        queue.put(controller.make(kind, PARTITIONS[:2], number), float(number))
    assert len(queue) == length


def test_a_request_that_waits_alone_is_sent_as_it_is() -> None:
    queue, request = SendQueue(), Controller().make("update", PARTITIONS, 0)
    queue.put(request, 1.0)
    assert queue.oldest_s == 1.0
    item = queue.take()
    assert item.request is request and item.enqueue_s == 1.0
    with pytest.raises(IndexError):
        queue.take()


@pytest.mark.parametrize("kind", ["update", "new epoch", "stop"])
def test_very_many_partitions_leave_in_slices(kind: str) -> None:
    queue, request = SendQueue(max_partitions=3), Controller().make(kind, PARTITIONS, 1)
    queue.put(request, 1.0)
    first = queue.take()
    queue.put(Controller().make("same epoch", PARTITIONS[:1], 2), 2.0)
    second = queue.take()
    assert [len(partitions_of(item.request)) for item in (first, second)] == [3, 1]
    assert (*partitions_of(first.request), *partitions_of(second.request)) == partitions_of(request)
    assert first.enqueue_s == second.enqueue_s == 1.0


@pytest.mark.parametrize(("limit", "lengths"), [(2, [2, 2, 0]), (4, [4, 0]), (5, [4])])
def test_the_last_slice_of_an_update_is_never_full(limit: int, lengths: list[int]) -> None:
    queue = SendQueue(max_partitions=limit)
    queue.put(Controller().make("update", PARTITIONS, 1), 1.0)
    taken = []
    while queue:
        taken.append(queue.take().request)
    assert [len(partitions_of(request)) for request in taken] == lengths
    assert all(isinstance(request, UpdateMetadataRequest) and request.body.live_brokers for request in taken)


def test_brokers_share_the_slices_of_a_common_update() -> None:
    request = Controller().make("update", PARTITIONS, 1)
    queues = [SendQueue(max_partitions=3) for _ in range(2)]
    for queue in queues:
        queue.put(request, 1.0)
    one, other = [[queue.take().request for _ in range(2)] for queue in queues]
    for mine, theirs in zip(one, other, strict=True):
        assert isinstance(mine, UpdateMetadataRequest) and isinstance(theirs, UpdateMetadataRequest)
        assert mine.body is theirs.body


def test_a_request_is_encoded_once_unless_it_was_merged() -> None:
    controller, queue = Controller(), SendQueue()
    first, second = (controller.make("new epoch", PARTITIONS, step) for step in (1, 2))
    assert isinstance(first, LeaderAndIsrRequest)
    queue.put(first, 1.0)
    alone = queue.take().request
    assert isinstance(alone, LeaderAndIsrRequest) and alone.encoded is first.encoded
    queue.put(first, 1.0)
    queue.put(second, 1.0)
    merged = queue.take().request
    assert isinstance(merged, LeaderAndIsrRequest) and merged.encoded is not first.encoded


def partitions_of(request: ControlRequest) -> tuple[object, ...]:
    return request.body.partitions if isinstance(request, UpdateMetadataRequest) else request.partitions


def test_the_end_of_a_topic_is_sent_before_its_name_returns() -> None:
    queue, controller = SendQueue(), Controller()
    for number, kind in enumerate(["update", "delete metadata", "delete metadata", "update", "update"]):
        queue.put(controller.make(kind, PARTITIONS[:1], number), 0.0)
    reported = [queue.take().request for _ in range(len(queue))]
    assert [[s.leader for s in request.body.partitions] for request in reported] == [[-2, -2], [2]]  # type: ignore[union-attr]


def decisions(*numbers: int) -> tuple[Decision, ...]:
    return tuple(Decision("BrokerChange", number, 2, "BrokerChange") for number in numbers)


def test_a_request_knows_the_decisions_that_were_merged_into_it() -> None:
    queue, controller = SendQueue(), Controller()
    for number, kind in enumerate(("new epoch", "update", "new epoch", "new epoch", "stop", "update"), 1):
        queue.put(controller.make(kind, PARTITIONS, number), 0.0, *decisions(number))
    taken = [(type(item.request).__name__, item.decisions) for item in (queue.take() for _ in range(len(queue)))]
    assert taken == [
        ("LeaderAndIsrRequest", decisions(1)),
        ("UpdateMetadataRequest", decisions(2, 6)),
        ("LeaderAndIsrRequest", decisions(3, 4)),
        ("StopReplicaRequest", decisions(5)),
    ]


def test_the_list_of_merged_decisions_is_bounded() -> None:
    queue, controller = SendQueue(), Controller()
    for number in range(100):
        queue.put(controller.make("update", PARTITIONS, number), 0.0, *decisions(number))
        queue.put(controller.make("update", PARTITIONS, number), 0.0, *decisions(number))
    assert queue.take().decisions == decisions(*range(100 - MAX_LISTED, 100))


def test_another_incarnation_is_never_merged() -> None:
    queue = SendQueue()
    for broker_epoch in (1, 1, 2, 2):
        head = RequestHead(1, 1, broker_epoch)
        queue.put(UpdateMetadataRequest(head, UpdateMetadataBody((), (), ())), 0.0)
    assert [queue.take().request.head.broker_epoch for _ in range(len(queue))] == [1, 2]
    assert queue.coalesced == 2
