"""The controller's records in the control log: its events with their causes, its elections, its requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any

import pytest

from klamm.clock import SystemClock
from klamm.control_log import ControlLogBuffer
from klamm.control_log.records import (
    ControllerChanged,
    EventDone,
    EventQueued,
    LeadershipChange,
    ListedOperation,
    RequestAcknowledged,
    RequestCoalesced,
    RequestQueued,
    RequestSent,
    ZnodesWritten,
)
from klamm.controller.channel_manager import ControllerChannelManager
from klamm.controller.config import ControllerConfig
from klamm.controller.context import ControllerContext, replica
from klamm.controller.events import (
    AlterPartition,
    AlterPartitionItem,
    ApiPartitionReassignment,
    BrokerChange,
    ControllerEvent,
    CreatableTopic,
    CreateTopics,
    DeleteTopics,
    LeaderAndIsrResponseReceived,
    PartitionModifications,
    PartitionReassignmentIsrChange,
    ReplicaLeaderElection,
)
from klamm.controller.journal import ControllerJournal, summary_of, topics_of
from klamm.controller.requests import (
    RequestHead,
    StopReplicaPartition,
    StopReplicaRequest,
    UpdateMetadataBody,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
)
from klamm.errors import ErrorCode
from klamm.metrics import MetricsRegistry
from klamm.model import CONTROL_LOG_TOPIC, LeaderAndIsr, LeaderIsrAndControllerEpoch, TopicPartition
from klamm.zk.model.ops import BadVersion, Check, ConnectionLoss, MultiFailed, MultiFailure, SetData
from tests.unit.controller.fake_broker import FakeBroker, success

TP = TopicPartition("orders", 1)
HEAD = RequestHead(0, 3, 1)


def report(told: ControllerJournal, *changes: replica.LeadershipChange | None) -> None:
    told.leadership_changed(change for change in changes if change is not None)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test(), 60)

    asyncio.run(bounded())


def journal() -> tuple[ControllerJournal, ControlLogBuffer]:
    buffer = ControlLogBuffer("control", 1000, SystemClock())
    return ControllerJournal(buffer), buffer


def recorded(buffer: ControlLogBuffer) -> list[object]:
    return [entry.record for entry in buffer.take(1000)]


@pytest.mark.parametrize(
    ("event", "topics"),
    [
        (CreateTopics((CreatableTopic("a"), CreatableTopic("b"))), ("a", "b")),
        (DeleteTopics(("a",)), ("a",)),
        (PartitionModifications("a"), ("a",)),
        (PartitionReassignmentIsrChange(TP), ("orders",)),
        (ReplicaLeaderElection((TP, TopicPartition("orders", 2))), ("orders",)),
        (ReplicaLeaderElection(None), ()),
        (ApiPartitionReassignment(((TP, (1, 2)),)), ("orders",)),
        (
            AlterPartition(1, 2, (AlterPartitionItem(0, 1, (1,), 2, topic="a"), AlterPartitionItem(0, 1, (1,), 2))),
            ("a",),
        ),
        (LeaderAndIsrResponseReceived(1, HEAD, ErrorCode.NONE, ((TP, ErrorCode.NONE),)), ("orders",)),
        (BrokerChange(), ()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_events_name_their_topics(event: ControllerEvent, topics: Sequence[str]) -> None:
    assert topics_of(event) == topics


def test_an_attempt_to_create_the_logs_own_topic_is_not_told() -> None:
    told, buffer = journal()
    own = CreateTopics((CreatableTopic(CONTROL_LOG_TOPIC),))
    for event in (
        own,
        LeaderAndIsrResponseReceived(
            1, HEAD, ErrorCode.NONE, ((TopicPartition(CONTROL_LOG_TOPIC, 0), ErrorCode.NONE),)
        ),
    ):
        told.event_queued(event, 1, "request", 0)
        told.event_started(event, 1, 0.0)
        told.event_done(event, 1, 0.0, "done")
    assert recorded(buffer) == []
    told.event_queued(CreateTopics((CreatableTopic(CONTROL_LOG_TOPIC), CreatableTopic("a"))), 2, "request", 0)
    assert [type(record) for record in recorded(buffer)] == [EventQueued]


def test_a_change_of_the_logs_own_topic_is_told_once() -> None:
    told, buffer = journal()
    cache = ControllerContext(ControllerConfig(0), SystemClock(), Random(0))
    tp = TopicPartition(CONTROL_LOG_TOPIC, 0)
    state = LeaderIsrAndControllerEpoch(LeaderAndIsr(1, 0, (1, 2)), 3)
    report(told, cache.states.put_leadership(tp, state, "initial"), cache.states.put_leadership(tp, state))
    assert [record.KIND for record in recorded(buffer) if isinstance(record, LeadershipChange)] == ["election"]


def test_transactions_have_their_operations_and_the_znode_that_refused_them() -> None:
    log = ControlLogBuffer("control", 100, SystemClock())
    told = ControllerJournal(log)
    ops = (Check("/controller_epoch", 3), SetData("/brokers/topics/orders/partitions/1/state", b"{}", 7))
    told.event_started(BrokerChange(), 5, 0.0)
    told.znodes_written(ops, None, 2.5)
    refused = MultiFailed(MultiFailure(0, ops[0], BadVersion("/controller_epoch"), ()))
    told.znodes_written(ops, refused, 1.5)
    told.znodes_written(ops, ConnectionLoss(), 9.0)
    own = CreateTopics((CreatableTopic(CONTROL_LOG_TOPIC, 1, 1),))
    told.event_started(own, 6, 0.0)
    told.znodes_written(ops, None, 2.5)
    found = [entry.record for entry in log.take(100) if isinstance(entry.record, ZnodesWritten)]
    assert [(it.error, it.refused_path, it.number) for it in found] == [
        ("NONE", None, 5),
        ("BadVersion", "/controller_epoch", 5),
        ("ConnectionLoss", None, 5),
    ]
    assert found[0].operations == (
        ListedOperation("check", "/controller_epoch", 3),
        ListedOperation("set", "/brokers/topics/orders/partitions/1/state", 7),
    )


def test_states_that_are_read_are_no_changes() -> None:
    told, buffer = journal()
    cache = ControllerContext(ControllerConfig(0), SystemClock(), Random(0))
    told.event_started(BrokerChange(), 9, 0.1)
    recorded(buffer)
    report(
        told,
        cache.states.put_leadership(TP, LeaderIsrAndControllerEpoch(LeaderAndIsr(1, 0, (1, 2)), 3)),
        cache.states.put_leadership(TP, LeaderIsrAndControllerEpoch(LeaderAndIsr(1, 0, (1,), 1), 3)),
        cache.states.put_leadership(TP, LeaderIsrAndControllerEpoch(LeaderAndIsr(2, 1, (2,), 2), 3), "offline"),
    )
    first, second = recorded(buffer)
    assert isinstance(first, LeadershipChange) and isinstance(second, LeadershipChange)
    assert (first.KIND, first.event, first.number) == ("isr_change", "BrokerChange", 9)
    assert (first.state, first.state_name) == (2, "BrokerChange")
    assert (second.KIND, second.strategy, second.after.leader) == ("election", "offline", 2)


def test_the_controller_is_told_when_it_is_another() -> None:
    told, buffer = journal()
    for controller_id, epoch in ((1, 0), (1, 0), (2, 5), (2, 5), (-1, 0)):
        told.controller_changed(controller_id, epoch)
    assert recorded(buffer) == [ControllerChanged(0, 1), ControllerChanged(5, 2), ControllerChanged(0, -1)]


def test_stops_and_updates_in_few_words() -> None:
    stop = summary_of(3, StopReplicaRequest(HEAD, (StopReplicaPartition(TP, 4, True),)))
    assert (stop.api, stop.target, stop.partitions[0].leader, stop.partitions[0].leader_epoch) == (
        "StopReplica",
        3,
        -2,
        4,
    )
    states = tuple(UpdateMetadataPartition(TopicPartition("t", p), 3, 1, 0, (1,), 0, (1,)) for p in range(1000))
    update = summary_of(3, UpdateMetadataRequest(HEAD, UpdateMetadataBody(states, (), ())))
    assert (update.api, update.partition_count, len(update.partitions)) == ("UpdateMetadata", 1000, 16)


def test_requests_are_told_from_the_queue_to_the_answer() -> None:
    async def scenario() -> None:
        told, buffer = journal()
        clock = SystemClock()
        answered = asyncio.Event()
        channels = ControllerChannelManager(
            ControllerConfig(0),
            clock=clock,
            metrics=MetricsRegistry(clock),
            on_event=lambda _: answered.set(),
            journal=told,
        )
        async with FakeBroker(1) as broker:
            channels.add_broker(broker.endpoints)
            for _ in range(2):
                channels.send_request(1, UpdateMetadataRequest(HEAD, UpdateMetadataBody((), (), ())))
            await answered.wait()
            await channels.shutdown()
        kinds = [type(record) for record in recorded(buffer)]
        assert kinds == [RequestQueued, RequestQueued, RequestCoalesced, RequestSent, RequestAcknowledged]

    run(scenario)


def test_requests_have_the_correlation_ids_that_the_broker_received() -> None:
    """Also after a lost connection: the ids continue, so each names one attempt."""

    async def scenario() -> None:
        told, buffer = journal()
        clock = SystemClock()
        answered: asyncio.Queue[ControllerEvent] = asyncio.Queue()
        channels = ControllerChannelManager(
            ControllerConfig(0),
            clock=clock,
            metrics=MetricsRegistry(clock),
            on_event=answered.put_nowait,
            journal=told,
        )
        losses = [True]

        def answer(request: Any) -> Any:
            return None if losses and losses.pop() else success(request)

        async with FakeBroker(1, answer) as broker:
            channels.add_broker(broker.endpoints)
            for epoch in (3, 4):
                channels.send_request(
                    1, UpdateMetadataRequest(RequestHead(0, epoch, 1), UpdateMetadataBody((), (), ()))
                )
                await answered.get()
            await channels.shutdown()
        records = recorded(buffer)
        sent = [r.correlation_id for r in records if isinstance(r, RequestSent)]
        assert sent == broker.correlation_ids == [0, 1, 2]
        assert [r.correlation_id for r in records if isinstance(r, RequestAcknowledged)] == [1, 2]

    run(scenario)


def test_requests_name_the_events_that_were_merged_into_them() -> None:
    async def scenario() -> None:
        told, buffer = journal()
        clock = SystemClock()
        answered = asyncio.Event()
        channels = ControllerChannelManager(
            ControllerConfig(0),
            clock=clock,
            metrics=MetricsRegistry(clock),
            on_event=lambda _: answered.set(),
            journal=told,
        )
        async with FakeBroker(1) as broker:
            channels.add_broker(broker.endpoints)
            for number, event in ((7, BrokerChange()), (8, BrokerChange()), (9, DeleteTopics(("a",)))):
                told.event_started(event, number, 0.0)
                channels.send_request(1, UpdateMetadataRequest(HEAD, UpdateMetadataBody((), (), ())))
            told.event_started(CreateTopics(()), 10, 0.0)  # the sender's turn comes during a later event
            await answered.wait()
            await channels.shutdown()
        records = recorded(buffer)
        queued = [record.decision for record in records if isinstance(record, RequestQueued)]
        assert [(it.event, it.event_number, it.state_name) for it in queued] == [
            ("BrokerChange", 7, "BrokerChange"),
            ("BrokerChange", 8, "BrokerChange"),
            ("DeleteTopics", 9, "TopicDeletion"),
        ]
        coalesced = [record.decision.event_number for record in records if isinstance(record, RequestCoalesced)]
        assert coalesced == [8, 9]
        for kind in (RequestSent, RequestAcknowledged):
            (record,) = (record for record in records if isinstance(record, kind))
            assert record.event_numbers == (7, 8, 9) and record.decision == queued[-1]

    run(scenario)


def test_correlation_ids_continue_when_a_broker_returns() -> None:
    """With the same controller epoch, two requests to one broker never have the same id."""

    async def scenario() -> None:
        told, buffer = journal()
        clock = SystemClock()
        answered: asyncio.Queue[ControllerEvent] = asyncio.Queue()
        channels = ControllerChannelManager(
            ControllerConfig(0), clock=clock, metrics=MetricsRegistry(clock), on_event=answered.put_nowait, journal=told
        )
        async with FakeBroker(1) as broker:
            for _ in range(2):
                channels.add_broker(broker.endpoints)
                channels.send_request(1, UpdateMetadataRequest(HEAD, UpdateMetadataBody((), (), ())))
                await answered.get()
                channels.remove_broker(1)
            await channels.shutdown()
        sent = [record.correlation_id for record in recorded(buffer) if isinstance(record, RequestSent)]
        assert sent == broker.correlation_ids == [0, 1]

    run(scenario)


def test_an_event_that_is_refused_is_told_too() -> None:
    told, buffer = journal()
    told.event_queued(BrokerChange(), 1, "watch", 0)
    told.event_done(BrokerChange(), 1, 3.0, "refused")
    queued, done = recorded(buffer)
    assert isinstance(queued, EventQueued) and queued.cause == "watch"
    assert isinstance(done, EventDone) and done.outcome == "refused"
