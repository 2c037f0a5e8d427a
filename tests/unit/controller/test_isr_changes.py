"""AlterPartition: changes that a leader may propose, and refusals that do not affect other partitions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from klamm.controller.events import (
    AlterPartition,
    AlterPartitionItem,
    CreatableTopic,
    CreateTopics,
    LeaderAndIsrResponseReceived,
    LogDirEventNotification,
)
from klamm.controller.replies import AlterPartitionResults
from klamm.controller.requests import LeaderAndIsrRequest, UpdateMetadataRequest
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.zk.model import paths
from klamm.zk.model.ops import Create
from klamm.zk.model.znodes import encode_log_dir_event, encode_partition_state
from tests.unit.controller.core import Core


def ask(core: Core, *isrs: tuple[int, ...], epochs: tuple[int, ...] = ()) -> list[ErrorCode]:
    """The leader of t-0 asks for these ISRs in one request."""
    assert core.controller is not None
    context = core.controller.context
    state = context.states.leadership[TopicPartition("t", 0)].leader_and_isr
    items = tuple(
        AlterPartitionItem(0, state.leader_epoch, isr, state.partition_epoch, topic="t", isr_broker_epochs=epochs)
        for isr in isrs
    )
    reply = core.ask(AlterPartition(state.leader, context.brokers.live_or_shutting_down[state.leader].epoch, items))
    assert isinstance(reply, AlterPartitionResults) and reply.error is ErrorCode.NONE
    assert core.is_active()
    return [result.error for result in reply.partitions]


def isr(core: Core) -> tuple[int, ...]:
    assert core.controller is not None
    return core.controller.context.states.leadership[TopicPartition("t", 0)].leader_and_isr.isr


def test_a_partition_given_twice_is_changed_once() -> None:
    core = Core("brokers 2 3", "controller 1", "create t 1,2,3")
    assert ask(core, (1, 2), (1, 3)) == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    assert isr(core) == (1, 2)


@pytest.mark.parametrize("asked", [(1, 1), (1, 2, 2), (2, 3), ()])
def test_an_isr_without_the_leader_or_with_a_member_twice_is_refused(asked: tuple[int, ...]) -> None:
    core = Core("brokers 2 3", "controller 1", "create t 1,2,3")
    assert ask(core, asked) == [ErrorCode.INVALID_REQUEST]
    assert isr(core) == (1, 2, 3)


def test_broker_epochs_of_another_number_than_members_are_refused() -> None:
    core = Core("brokers 2 3", "controller 1", "create t 1,2,3")
    assert ask(core, (1, 2), epochs=(-1,)) == [ErrorCode.INVALID_REQUEST]


def test_an_incarnation_that_is_over_does_not_join() -> None:
    """Its successor may have less in its log: it joins when it has caught up itself."""
    core = Core("brokers 2 3", "controller 1", "create t 1,2,3")
    assert core.controller is not None
    epoch = core.controller.context.brokers.live_or_shutting_down[3].epoch
    assert ask(core, (1, 2)) == [ErrorCode.NONE]
    assert ask(core, (1, 2, 3), epochs=(-1, -1, epoch - 1)) == [ErrorCode.INELIGIBLE_REPLICA]
    assert isr(core) == (1, 2)
    assert ask(core, (1, 2, 3), epochs=(-1, -1, epoch)) == [ErrorCode.NONE]


def test_a_replica_that_is_being_added_is_asked_for_after_a_directory_failed() -> None:
    """It is NEW until it is in sync. Its broker must receive it again: otherwise nobody learns that its log is gone."""
    core = Core("brokers 2 3", "controller 1", "create t 1,2", "reassign t-0 1,3")
    core.sent.clear()
    note = Create(paths.log_dir_event_path(), encode_log_dir_event(3), sequential=True)
    core.tree.write(core.tools, note, 0)
    core.queue.append(LogDirEventNotification())
    core.drain()
    reported = [request for broker, request in core.sent if broker == 3 and isinstance(request, LeaderAndIsrRequest)]
    assert [state.partition for request in reported for state in request.partitions] == [TopicPartition("t", 0)]
    lost = ((TopicPartition("t", 0), ErrorCode.KAFKA_STORAGE_ERROR),)
    core.queue.append(LeaderAndIsrResponseReceived(3, reported[0].head, ErrorCode.NONE, lost))
    core.drain()
    assert core.controller is not None
    assert core.controller.context.brokers.offline_logs == {3: {TopicPartition("t", 0)}}


def test_a_replica_whose_directory_failed_does_not_join() -> None:
    """The leader may have asked before it, and be heard after it."""
    core = Core("brokers 2 3", "controller 1", "create t 1,2,3")
    assert ask(core, (1, 2)) == [ErrorCode.NONE]
    core.sent.clear()
    core.tree.write(core.tools, Create(paths.log_dir_event_path(), encode_log_dir_event(3), sequential=True), 0)
    core.queue.append(LogDirEventNotification())
    core.drain()
    reported = [request for broker, request in core.sent if broker == 3 and isinstance(request, LeaderAndIsrRequest)]
    lost = ((TopicPartition("t", 0), ErrorCode.KAFKA_STORAGE_ERROR),)
    core.queue.append(LeaderAndIsrResponseReceived(3, reported[0].head, ErrorCode.NONE, lost))
    core.drain()
    assert ask(core, (1, 2, 3)) == [ErrorCode.INELIGIBLE_REPLICA]
    assert isr(core) == (1, 2)


def test_a_partition_gets_its_leader_back_when_a_directory_works_again() -> None:
    """A full disk that has room again: the broker leaves the same note, and answers that its replicas are well."""
    core = Core("brokers 2 3", "controller 1", "create t 3")
    tp = TopicPartition("t", 0)

    def notify(error: ErrorCode) -> None:
        core.sent.clear()
        core.tree.write(core.tools, Create(paths.log_dir_event_path(), encode_log_dir_event(3), sequential=True), 0)
        core.queue.append(LogDirEventNotification())
        core.drain()
        reported = [
            request for broker, request in core.sent if broker == 3 and isinstance(request, LeaderAndIsrRequest)
        ]
        core.queue.append(LeaderAndIsrResponseReceived(3, reported[-1].head, ErrorCode.NONE, ((tp, error),)))
        core.drain()

    notify(ErrorCode.KAFKA_STORAGE_ERROR)
    assert core.controller is not None
    context = core.controller.context
    assert context.states.leadership[tp].leader_and_isr.leader == -1 and context.brokers.offline_logs == {3: {tp}}
    notify(ErrorCode.NONE)
    assert context.states.leadership[tp].leader_and_isr.leader == 3 and context.brokers.offline_logs == {}
    updates = [r for broker, r in core.sent if broker == 2 and isinstance(r, UpdateMetadataRequest)]
    assert updates[-1].body.partitions[0].offline_replicas == ()


def test_an_answer_of_another_life_or_term_is_not_believed() -> None:
    """The broker said that its log was gone, and came back with a new disk before the controller read the answer."""
    core = Core("brokers 2 3", "controller 1", "create t 1,2")
    reported = next(
        request for broker, request in core.sent if broker == 2 and isinstance(request, LeaderAndIsrRequest)
    )
    core.run("bounces 2")
    lost = ((TopicPartition("t", 0), ErrorCode.KAFKA_STORAGE_ERROR),)
    assert core.controller is not None
    head, epoch = reported.head, core.controller.context.brokers.live_or_shutting_down[2].epoch
    for stale in (head, replace(head, broker_epoch=epoch, controller_epoch=head.controller_epoch - 1)):
        core.queue.append(LeaderAndIsrResponseReceived(2, stale, ErrorCode.NONE, lost))
        core.drain()
        assert core.controller.context.brokers.offline_logs == {}


def test_an_isr_that_the_leader_wrote_without_notice_decides_whether_an_unclean_election_is_needed() -> None:
    """Under an old protocol the leader takes 3 out of the ISR and dies before the controller learns of it."""
    core = Core("protocol 2.5", "brokers 2 3", "controller 1")
    topic = CreatableTopic("t", assignments=((0, (2, 3)),), configs=(("unclean.leader.election.enable", "true"),))
    core.ask(CreateTopics((topic,)))
    tp = TopicPartition("t", 0)
    assert core.controller is not None
    leadership = core.controller.context.states.leadership
    shrunk = replace(leadership[tp], leader_and_isr=replace(leadership[tp].leader_and_isr, isr=(2,)))
    core.tool_writes(paths.partition_state_path(*tp), encode_partition_state(shrunk))
    core.run("dies 2")
    state = leadership[tp].leader_and_isr
    assert (state.leader, state.isr, state.leader_epoch) == (3, (3,), 1)
    assert core.controller.context.unclean_elections == 1
