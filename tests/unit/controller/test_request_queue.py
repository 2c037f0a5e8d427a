"""Coalescing: whatever is merged, the broker ends in the state that plain delivery leads to."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.controller.request_queue import RequestQueue
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
from klamm.model import BrokerEndPoints, LeaderAndIsr, TopicPartition
from klamm.sim.broker_model import BrokerModel, Disk

HEAD = RequestHead(1, 1, 1)
TOPICS = {"a": UUID(int=11), "b": UUID(int=12)}
PARTITIONS = [TopicPartition(topic, p) for topic in TOPICS for p in range(2)]


class Controller:
    """Makes sequences of requests as a controller would: epochs grow, leaders are told of before they lead."""

    def __init__(self) -> None:
        self.epochs = dict.fromkeys(PARTITIONS, 0)
        self.live = [1, 2]

    def make(self, kind: str, chosen: list[TopicPartition], step: int) -> ControlRequest:
        if kind == "broker joins":
            self.live.append(len(self.live) + 1)
        if kind in ("update", "delete metadata", "broker joins"):
            return self._update(chosen, deleted=kind == "delete metadata", step=step)
        if kind in ("stop", "stop and delete"):
            stops = tuple(StopReplicaPartition(tp, self.epochs[tp], kind != "stop") for tp in chosen)
            return StopReplicaRequest(HEAD, stops)
        states = []
        for tp in chosen:
            self.epochs[tp] += kind == "new epoch"
            state = LeaderAndIsr(self.live[-1], self.epochs[tp], (self.live[-1],), step)
            states.append(LeaderAndIsrPartition(tp, state, 1, (1, *self.live[-1:])))
        return LeaderAndIsrRequest(HEAD, tuple(states), tuple(TOPICS.items()))

    def _update(self, chosen: list[TopicPartition], *, deleted: bool, step: int) -> UpdateMetadataRequest:
        states = tuple(
            UpdateMetadataPartition(tp, 1, -2 if deleted else self.live[-1], self.epochs[tp], (1,), step, (1,))
            for tp in chosen
        )
        live = tuple(BrokerEndPoints(broker, ()) for broker in self.live)
        return UpdateMetadataRequest(HEAD, UpdateMetadataBody(states, tuple(TOPICS.items()), live))


class Broker:
    """A model of a broker that starts with an update, as every channel does."""

    def __init__(self) -> None:
        self.model = BrokerModel(1, Disk(), lambda *_: None)
        self.model.broker_epoch = 1

    def handle(self, request: ControlRequest) -> None:
        if isinstance(request, LeaderAndIsrRequest):
            unknown = [s.partition for s in request.partitions if s.leader_and_isr.leader not in self.model.live]
            assert not unknown, f"the leaders of {unknown} are not known to live"
        self.model.handle(request)

    def state(self) -> object:
        model = self.model
        hosted = {tp: (it.leader, it.leader_epoch, it.isr) for tp, it in model.hosted.items()}
        return hosted, model.cache, model.live, model.disk.logs, model.controller_epoch


KINDS = ["update", "delete metadata", "broker joins", "new epoch", "same epoch", "stop", "stop and delete"]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(KINDS), st.lists(st.sampled_from(PARTITIONS), min_size=1, unique=True), st.integers(0, 3)
    ),
    max_size=25,
)


@settings(max_examples=300, deadline=None)
@given(STEPS, st.booleans())
def test_coalesced_delivery_ends_as_plain_delivery(
    steps: list[tuple[str, list[TopicPartition], int]], flags: bool
) -> None:
    controller, plain, coalesced = Controller(), Broker(), Broker()
    queue = RequestQueue(stop_flags=flags)
    first = controller.make("update", PARTITIONS, 0)
    for broker in (plain, coalesced):
        broker.handle(first)
    for number, (kind, chosen, takes) in enumerate(steps):
        request = controller.make(kind, chosen, number)
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


@given(STEPS)
def test_the_queue_is_bounded_by_the_cluster_and_not_by_time(
    steps: list[tuple[str, list[TopicPartition], int]],
) -> None:
    controller, queue = Controller(), RequestQueue()
    safe = [step for step in steps if "stop" not in step[0] and "delete" not in step[0]]
    for number, (kind, chosen, _) in enumerate(safe * 10):
        queue.put(controller.make(kind, chosen, number), float(number))
    assert len(queue) <= 3


def test_a_request_that_waits_alone_is_sent_as_it_is() -> None:
    queue, request = RequestQueue(), Controller().make("update", PARTITIONS, 0)
    queue.put(request, 1.0)
    assert queue.oldest_s == 1.0
    item = queue.take()
    assert item.request is request and item.enqueue_s == 1.0
    with pytest.raises(IndexError):
        queue.take()


def test_the_end_of_a_topic_is_told_before_its_name_comes_back() -> None:
    queue, controller = RequestQueue(), Controller()
    for number, kind in enumerate(["update", "delete metadata", "delete metadata", "update", "update"]):
        queue.put(controller.make(kind, PARTITIONS[:1], number), 0.0)
    told = [queue.take().request for _ in range(len(queue))]
    assert [[s.leader for s in request.body.partitions] for request in told] == [[-2], [2]]  # type: ignore[union-attr]


def test_another_incarnation_is_never_merged() -> None:
    queue = RequestQueue()
    for broker_epoch in (1, 1, 2, 2):
        head = RequestHead(1, 1, broker_epoch)
        queue.put(UpdateMetadataRequest(head, UpdateMetadataBody((), (), ())), 0.0)
    assert [queue.take().request.head.broker_epoch for _ in range(len(queue))] == [1, 2]
    assert queue.coalesced == 2
