"""States with Kafka's values and timers; every event has a state and an answer for a caller that is refused."""

from __future__ import annotations

from typing import get_args
from uuid import UUID

import pytest

from klamm.controller import events as e
from klamm.controller.config import InterBrokerProtocol
from klamm.controller.replies import LARGE, ControlledShutdownResult, LazyResults, TopicResult, TopicResults, made
from klamm.controller.states import ControllerState
from klamm.controller.watches import event_of
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.zk.model.ops import EventType, WatchEvent


def test_there_are_18_states_and_15_timers() -> None:
    """No event updates features, so a timer of that state would always be 0."""
    assert [state.value for state in ControllerState] == list(range(18))
    names = {state.timer_name for state in ControllerState if state.timer_name}
    assert len(names) == 15 and "UpdateFeaturesRateAndTimeMs" not in names
    assert ControllerState.BROKER_CHANGE.timer_name == "LeaderElectionRateAndTimeMs"
    assert ControllerState.ALTER_PARTITION_REASSIGNMENT.timer_name == "PartitionReassignmentRateAndTimeMs"
    assert ControllerState.ISR_CHANGE.timer_name == "IsrChangeRateAndTimeMs"


def test_every_event_has_a_state() -> None:
    kinds = get_args(e.ControllerEvent)
    assert len(kinds) == 33
    assert all(isinstance(kind.STATE, ControllerState) for kind in kinds)


def test_refusals_answer_in_the_callers_own_words() -> None:
    created = e.CreateTopics((e.CreatableTopic("a"), e.CreatableTopic("b"))).refusal()
    assert isinstance(created, TopicResults) and created.error is ErrorCode.NOT_CONTROLLER
    assert [t.error for t in created.topics] == [ErrorCode.NOT_CONTROLLER] * 2
    stopped = e.ControlledShutdown(1, 5).refusal()
    assert stopped == ControlledShutdownResult(ErrorCode.STALE_CONTROLLER_EPOCH)


ELECTION = e.ReplicaLeaderElection(None, e.ElectionType.PREFERRED, e.ElectionTrigger.ZK)


@pytest.mark.parametrize(
    ("kind", "path", "event"),
    [
        (EventType.DELETED, "/controller", e.Reelect()),
        (EventType.CREATED, "/controller", e.ControllerChange()),
        (EventType.CHILDREN_CHANGED, "/brokers/ids", e.BrokerChange()),
        (EventType.DATA_CHANGED, "/brokers/ids/7", e.BrokerModifications(7)),
        (EventType.DELETED, "/brokers/ids/7", e.RegistrationDeleted(7)),
        (EventType.CHILDREN_CHANGED, "/brokers/topics", e.TopicChange()),
        (EventType.DATA_CHANGED, "/brokers/topics/t", e.PartitionModifications("t")),
        (
            EventType.DATA_CHANGED,
            "/brokers/topics/t/partitions/3/state",
            e.PartitionReassignmentIsrChange(TopicPartition("t", 3)),
        ),
        (EventType.CREATED, "/admin/reassign_partitions", e.ZkPartitionReassignment()),
        (EventType.DELETED, "/admin/reassign_partitions", e.ZkPartitionReassignment()),
        (EventType.DATA_CHANGED, "/admin/reassign_partitions", e.ZkPartitionReassignment()),
        (EventType.DELETED, "/admin/preferred_replica_election", ELECTION),
        (EventType.DATA_CHANGED, "/admin/preferred_replica_election", ELECTION),
        (EventType.CHILDREN_CHANGED, "/config/changes", None),
    ],
)
def test_notifications_become_events(kind: EventType, path: str, event: e.ControllerEvent | None) -> None:
    assert event_of(WatchEvent(kind, path)) == event


@pytest.mark.parametrize(
    ("text", "versions"),
    [
        ("2.4-IV0", (3, 5, 1)),
        ("2.4", (4, 6, 2)),
        ("2.5", (4, 6, 2)),
        ("2.6", (4, 6, 3)),
        ("2.7", (4, 6, 3)),
        ("2.8-IV0", (4, 6, 3)),
        ("2.8", (5, 7, 3)),
        ("3.1", (5, 7, 3)),
        ("3.2", (6, 7, 3)),
        ("3.3.1", (6, 7, 3)),
        ("3.4-IV0", (7, 8, 4)),
        ("3.9", (7, 8, 4)),
    ],
)
def test_the_protocol_version_fixes_the_versions_of_requests(text: str, versions: tuple[int, int, int]) -> None:
    protocol = InterBrokerProtocol.parse(text)
    assert (
        protocol.leader_and_isr_version,
        protocol.update_metadata_version,
        protocol.stop_replica_version,
    ) == versions


@pytest.mark.parametrize("text", ["2.3", "4.0", "three", "3.9.1.1"])
def test_protocol_versions_that_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"inter\.broker\.protocol\.version"):
        InterBrokerProtocol.parse(text)


def test_the_refusal_of_a_large_event_is_made_when_it_is_read() -> None:
    """Made at once it would hold the broker loop, which refuses an event that takes too long."""
    names = tuple(f"t{number}" for number in range(LARGE + 1))
    tps = tuple(TopicPartition("t", number) for number in range(LARGE + 1))
    error = ErrorCode.REQUEST_TIMED_OUT
    for event in (
        e.CreateTopics(tuple(map(e.CreatableTopic, names))),
        e.DeleteTopics(names, (UUID(int=7),)),
    ):
        refused = event.refusal(error)
        assert isinstance(refused.topics, LazyResults) and refused.error is error and not made(refused.topics)
        assert [topic.name for topic in refused.topics][: len(names)] == list(names)
        assert {topic.error for topic in refused.topics} == {error}
    assert refused.topics[-1].topic_id == UUID(int=7) and len(refused.topics[-2:]) == 2
    for moved in (e.ReplicaLeaderElection(tps), e.ApiPartitionReassignment(tuple((tp, None) for tp in tps))):
        results = moved.refusal(error)
        assert isinstance(results.partitions, LazyResults) and results.error is error
        assert [result.partition for result in results.partitions] == list(tps)
    small = e.CreateTopics((e.CreatableTopic("a"),)).refusal(error)
    assert small == TopicResults((TopicResult("a", error),), error) and made(small.topics) == small.topics
