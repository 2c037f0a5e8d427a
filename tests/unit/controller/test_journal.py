"""The controller's records in the control log: its events with their causes, its elections, its requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any
from uuid import UUID

import pytest

from klamm.clock import SystemClock
from klamm.control_log import ControlLogBuffer
from klamm.control_log.records import (
    ControllerChanged,
    EventDone,
    EventQueued,
    LeadershipChange,
    ListedOperation,
    ListedProposal,
    ProposalAnswered,
    RegistrationChanged,
    RequestAcknowledged,
    RequestCoalesced,
    RequestQueued,
    RequestSent,
    SessionChanged,
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
from klamm.controller.replies import AlterPartitionResult, AlterPartitionResults
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
from klamm.model import CONTROL_LOG_TOPIC, LeaderAndIsr, LeaderIsrAndControllerEpoch, SecurityProtocol, TopicPartition
from klamm.protocol.messages import update_metadata
from klamm.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from klamm.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from klamm.security.client_security import ClientSecurity
from klamm.security.outgoing import OutgoingSecurity
from klamm.security.sasl.client_mechanisms import SaslCredentials
from klamm.security.secret import Secret
from klamm.zk.model.ops import BadVersion, Check, ConnectionLoss, MultiFailed, MultiFailure, SetData
from tests.unit.controller.fake_broker import FakeBroker, success

TP = TopicPartition("orders", 1)
HEAD = RequestHead(0, 3, 1)


def report(reported: ControllerJournal, *changes: replica.LeadershipChange | None) -> None:
    reported.leadership_changed(change for change in changes if change is not None)


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


def test_an_attempt_to_create_the_logs_own_topic_is_not_recorded() -> None:
    reported, buffer = journal()
    own = CreateTopics((CreatableTopic(CONTROL_LOG_TOPIC),))
    for event in (
        own,
        LeaderAndIsrResponseReceived(
            1, HEAD, ErrorCode.NONE, ((TopicPartition(CONTROL_LOG_TOPIC, 0), ErrorCode.NONE),)
        ),
    ):
        reported.event_queued(event, 1, "request", 0)
        reported.event_started(event, 1, 0.0)
        reported.event_done(event, 1, 0.0, "done")
    assert recorded(buffer) == []
    reported.event_queued(CreateTopics((CreatableTopic(CONTROL_LOG_TOPIC), CreatableTopic("a"))), 2, "request", 0)
    assert [type(record) for record in recorded(buffer)] == [EventQueued]


def test_a_change_of_the_logs_own_topic_is_recorded_once() -> None:
    reported, buffer = journal()
    cache = ControllerContext(ControllerConfig(0), SystemClock(), Random(0))
    tp = TopicPartition(CONTROL_LOG_TOPIC, 0)
    state = LeaderIsrAndControllerEpoch(LeaderAndIsr(1, 0, (1, 2)), 3)
    report(reported, cache.states.put_leadership(tp, state, "initial"), cache.states.put_leadership(tp, state))
    assert [record.KIND for record in recorded(buffer) if isinstance(record, LeadershipChange)] == ["election"]


def test_transactions_have_their_operations_and_the_znode_that_refused_them() -> None:
    log = ControlLogBuffer("control", 100, SystemClock())
    reported = ControllerJournal(log)
    ops = (Check("/controller_epoch", 3), SetData("/brokers/topics/orders/partitions/1/state", b"{}", 7))
    reported.event_started(BrokerChange(), 5, 0.0)
    reported.znodes_written(ops, None, 2.5)
    refused = MultiFailed(MultiFailure(0, ops[0], BadVersion("/controller_epoch"), ()))
    reported.znodes_written(ops, refused, 1.5)
    reported.znodes_written(ops, ConnectionLoss(), 9.0)
    own = CreateTopics((CreatableTopic(CONTROL_LOG_TOPIC, 1, 1),))
    reported.event_started(own, 6, 0.0)
    reported.znodes_written(ops, None, 2.5)
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
    reported, buffer = journal()
    cache = ControllerContext(ControllerConfig(0), SystemClock(), Random(0))
    reported.event_started(BrokerChange(), 9, 0.1)
    recorded(buffer)
    report(
        reported,
        cache.states.put_leadership(TP, LeaderIsrAndControllerEpoch(LeaderAndIsr(1, 0, (1, 2)), 3)),
        cache.states.put_leadership(TP, LeaderIsrAndControllerEpoch(LeaderAndIsr(1, 0, (1,), 1), 3)),
        cache.states.put_leadership(TP, LeaderIsrAndControllerEpoch(LeaderAndIsr(2, 1, (2,), 2), 3), "offline"),
    )
    first, second = recorded(buffer)
    assert isinstance(first, LeadershipChange) and isinstance(second, LeadershipChange)
    assert (first.KIND, first.event, first.number) == ("isr_change", "BrokerChange", 9)
    assert (first.state, first.state_name) == (2, "BrokerChange")
    assert (second.KIND, second.strategy, second.after.leader) == ("election", "offline", 2)


def test_a_change_of_the_controller_is_recorded() -> None:
    reported, buffer = journal()
    for controller_id, epoch in ((1, 0), (1, 0), (2, 5), (2, 5), (-1, 0)):
        reported.controller_changed(controller_id, epoch)
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


def test_requests_are_recorded_from_the_queue_to_the_answer() -> None:
    async def scenario() -> None:
        reported, buffer = journal()
        clock = SystemClock()
        answered = asyncio.Event()
        channels = ControllerChannelManager(
            ControllerConfig(0),
            clock=clock,
            metrics=MetricsRegistry(clock),
            on_event=lambda _: answered.set(),
            journal=reported,
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
        reported, buffer = journal()
        clock = SystemClock()
        answered: asyncio.Queue[ControllerEvent] = asyncio.Queue()
        channels = ControllerChannelManager(
            ControllerConfig(0),
            clock=clock,
            metrics=MetricsRegistry(clock),
            on_event=answered.put_nowait,
            journal=reported,
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


def test_the_correlation_id_is_right_while_the_connection_authenticates_again() -> None:
    """A request that becomes due meanwhile has a later id than the requests of the authentication."""

    async def scenario() -> None:
        reported, buffer = journal()
        clock = SystemClock()
        answered: asyncio.Queue[ControllerEvent] = asyncio.Queue()
        login = ClientSecurity(
            SecurityProtocol.SASL_PLAINTEXT, sasl=SaslCredentials("PLAIN", "controller", Secret("secret"))
        )
        channels = ControllerChannelManager(
            ControllerConfig(0, outgoing=OutgoingSecurity({"PLAINTEXT": login})),
            clock=clock,
            metrics=MetricsRegistry(clock),
            on_event=answered.put_nowait,
            journal=reported,
        )
        update = UpdateMetadataRequest(HEAD, UpdateMetadataBody((), (), ()))
        lifetimes_ms = [0, 50]

        def answer(request: Any) -> Any:
            if isinstance(request, SaslHandshakeRequest):
                if len(lifetimes_ms) == 1:
                    channels.send_request(1, update)
                return SaslHandshakeResponse(error_code=0, mechanisms=["PLAIN"])
            if isinstance(request, SaslAuthenticateRequest):
                lifetime_ms = lifetimes_ms.pop()
                return SaslAuthenticateResponse(
                    error_code=0, error_message=None, auth_bytes=b"", session_lifetime_ms=lifetime_ms
                )
            return success(request)

        async with FakeBroker(1, answer) as broker:
            channels.add_broker(broker.endpoints)
            channels.send_request(1, update)
            for _ in range(2):
                await answered.get()
            await channels.shutdown()
        received = [
            number
            for number, request in zip(broker.correlation_ids, broker.requests, strict=True)
            if isinstance(request, update_metadata.UpdateMetadataRequest)
        ]
        records = recorded(buffer)
        assert [r.correlation_id for r in records if isinstance(r, RequestSent)] == received and len(received) == 2
        assert [r.correlation_id for r in records if isinstance(r, RequestAcknowledged)] == received

    run(scenario)


def test_requests_name_the_events_that_were_merged_into_them() -> None:
    async def scenario() -> None:
        reported, buffer = journal()
        clock = SystemClock()
        answered = asyncio.Event()
        channels = ControllerChannelManager(
            ControllerConfig(0),
            clock=clock,
            metrics=MetricsRegistry(clock),
            on_event=lambda _: answered.set(),
            journal=reported,
        )
        async with FakeBroker(1) as broker:
            channels.add_broker(broker.endpoints)
            for number, event in ((7, BrokerChange()), (8, BrokerChange()), (9, DeleteTopics(("a",)))):
                reported.event_started(event, number, 0.0)
                channels.send_request(1, UpdateMetadataRequest(HEAD, UpdateMetadataBody((), (), ())))
            reported.event_started(CreateTopics(()), 10, 0.0)  # the sender's turn comes during a later event
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
        reported, buffer = journal()
        clock = SystemClock()
        answered: asyncio.Queue[ControllerEvent] = asyncio.Queue()
        channels = ControllerChannelManager(
            ControllerConfig(0),
            clock=clock,
            metrics=MetricsRegistry(clock),
            on_event=answered.put_nowait,
            journal=reported,
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


def test_an_event_that_is_refused_is_recorded_too() -> None:
    reported, buffer = journal()
    reported.event_queued(BrokerChange(), 1, "watch", 0)
    reported.event_done(BrokerChange(), 1, 3.0, "refused")
    queued, done = recorded(buffer)
    assert isinstance(queued, EventQueued) and queued.cause == "watch"
    assert isinstance(done, EventDone) and done.outcome == "refused"


def test_answers_to_proposals_are_recorded_with_errors_and_epochs() -> None:
    reported, buffer = journal()
    reported.epoch = 3
    event = AlterPartition(1, 41, (AlterPartitionItem(0, 5, (1, 2), 9, topic="a"), AlterPartitionItem(1, 6, (1,), 7)))
    results = (
        AlterPartitionResult("a", UUID(int=1), 0, ErrorCode.NONE),
        AlterPartitionResult("b", UUID(int=2), 1, ErrorCode.FENCED_LEADER_EPOCH),
    )
    reported.replied(event, 12, AlterPartitionResults(partitions=results))
    reported.refused(event, 13, ErrorCode.NOT_CONTROLLER)
    reported.refused(BrokerChange(), 14, ErrorCode.NOT_CONTROLLER)
    own = AlterPartition(1, 41, (AlterPartitionItem(0, 5, (1,), 9, topic=CONTROL_LOG_TOPIC),))
    reported.replied(own, 15, AlterPartitionResults())
    answered, refused = recorded(buffer)
    assert isinstance(answered, ProposalAnswered) and isinstance(refused, ProposalAnswered)
    assert (answered.controller_epoch, answered.number, answered.target, answered.broker_epoch) == (3, 12, 1, 41)
    assert (answered.error, answered.partition_count, answered.failed_partition_count) == ("NONE", 2, 1)
    fenced = ListedProposal("b", 1, 6, 7, (1,), "FENCED_LEADER_EPOCH")
    assert answered.partitions == (ListedProposal("a", 0, 5, 9, (1, 2), "NONE"), fenced)
    assert (refused.error, refused.failed_partition_count) == ("NOT_CONTROLLER", 2)
    assert {it.error for it in refused.partitions} == {"NOT_CONTROLLER"}


def test_sessions_and_registrations_are_recorded() -> None:
    reported, buffer = journal()
    reported.session_changed("established", 0x1234)
    reported.epoch = 3
    reported.event_started(BrokerChange(), 15, 0.0)
    reported.registrations_changed(gone=((2, 40),), registered=((2, 44),))
    session, _, gone, registered = recorded(buffer)
    assert session == SessionChanged(0, "established", "0x1234")
    assert gone == RegistrationChanged(3, "BrokerChange", 15, 2, "gone", 40, *registered_state())
    assert registered == RegistrationChanged(3, "BrokerChange", 15, 2, "registered", 44, *registered_state())


def registered_state() -> tuple[int, str]:
    return BrokerChange.STATE.value, BrokerChange.STATE.label
