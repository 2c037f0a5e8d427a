"""Requests to the controller about topics, and defaults that change while it runs."""

from __future__ import annotations

from uuid import UUID

from klamm.controller.effects import Note, Send
from klamm.controller.events import (
    CreatablePartitions,
    CreatableTopic,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    UncleanLeaderElectionEnable,
)
from klamm.controller.replies import TopicResult, TopicResults
from klamm.controller.request_batch import ControllerBrokerRequestBatch
from klamm.controller.requests import UpdateMetadataRequest
from klamm.controller.topics import MANY_TOPICS
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.zk.model import paths
from tests.unit.controller.core import Core


def topics(reply: object) -> list[TopicResult]:
    assert isinstance(reply, TopicResults)
    return list(reply.topics)


def test_an_id_does_not_delete_a_topic_that_took_the_name() -> None:
    core = Core("controller 1", "create t 1", "create u 1")
    assert core.controller is not None
    mine = core.controller.context.topics.ids["t"]
    by_name, by_id, unknown = topics(core.ask(DeleteTopics(("u",), (mine, UUID(int=5)))))
    assert (by_name.name, by_name.error) == ("u", ErrorCode.NONE)
    assert (by_id.name, by_id.topic_id, by_id.error) == ("t", mine, ErrorCode.NONE)
    assert (unknown.topic_id, unknown.error) == (UUID(int=5), ErrorCode.UNKNOWN_TOPIC_ID)
    core.run("stop-replicas-answered")
    assert paths.topic_path("t") not in core.tree.nodes
    core.run("create t 1")
    (again,) = topics(core.ask(DeleteTopics((), (mine,))))
    assert again.error is ErrorCode.UNKNOWN_TOPIC_ID and paths.topic_path("t") in core.tree.nodes


def test_a_refusal_answers_names_and_ids() -> None:
    refused = topics(DeleteTopics(("t",), (UUID(int=5),)).refusal())
    assert [(r.name, r.topic_id.int, r.error) for r in refused] == [
        ("t", 0, ErrorCode.NOT_CONTROLLER),
        ("", 5, ErrorCode.NOT_CONTROLLER),
    ]


def test_the_default_of_unclean_elections_changes_while_the_controller_runs() -> None:
    core = Core("brokers 2", "controller 1", "create t 2,1", "isr t-0 2", "dies 2")
    assert core.controller is not None
    tp = TopicPartition("t", 0)
    core.queue.append(UncleanLeaderElectionEnable(False))
    core.drain()
    assert core.controller.context.states.leadership[tp].leader_and_isr.leader != 1
    core.queue.append(UncleanLeaderElectionEnable())
    core.drain()
    assert core.controller.context.states.leadership[tp].leader_and_isr.leader == 1
    core.run("starts 2")
    core.run("create u 2,1")
    core.run("isr u-0 2")
    core.queue.append(UncleanLeaderElectionEnable(False))
    core.run("dies 2")
    assert core.controller.context.states.leadership[TopicPartition("u", 0)].leader_and_isr.leader != 1


def test_a_broker_that_is_not_active_remembers_the_default() -> None:
    core = Core("controller 1")
    assert core.controller is not None
    core.tool_deletes(paths.CONTROLLER)
    core.tree.take_events()
    core.drive(UncleanLeaderElectionEnable(), core.controller._resign())
    core.queue.append(UncleanLeaderElectionEnable())
    core.drain()
    assert not core.is_active() and core.controller.context.config.unclean_leader_election_enable


def test_very_many_topics_are_not_listed_for_each_that_is_created() -> None:
    core = Core("controller 1")
    many = tuple(CreatableTopic(f"t{i}", assignments=((0, (1,)),)) for i in range(MANY_TOPICS))
    core.ask(CreateTopics(many))
    core.clock.seconds += 100
    core.ask(CreateTopics((CreatableTopic("a", 1, 1),)))
    assert not any("schedule TopicChange" in line for line in core.lines)
    core.ask(CreateTopics((CreatableTopic("b", 1, 1),)))
    assert any("schedule TopicChange" in line for line in core.lines)


def test_a_request_does_not_create_more_partitions_in_all_than_a_topic_may_have() -> None:
    core = Core("controller 1")
    many = [CreatableTopic(f"t{n}", 60_000, 1) for n in range(50)]
    asked = CreateTopics((*many, CreatableTopic("huge", 2**31 - 1, 1), CreatableTopic("small", 1, 1)), True)
    first, *rest, huge, small = topics(core.ask(asked))
    assert {result.error for result in rest} == {ErrorCode.POLICY_VIOLATION}
    assert first.error is not ErrorCode.POLICY_VIOLATION
    assert (huge.error, small.error) == (ErrorCode.INVALID_PARTITIONS, ErrorCode.NONE)


def test_a_request_does_not_add_more_partitions_in_all_than_a_topic_may_have() -> None:
    core = Core("controller 1", "create t 1", "create u 1", "create v 1")
    asked = [CreatablePartitions(name, 60_000) for name in "tuw"] + [CreatablePartitions("v", 2)]
    first, second, unknown, small = topics(core.ask(CreatePartitions(tuple(asked), True)))
    assert (first.error, second.error) == (ErrorCode.NONE, ErrorCode.POLICY_VIOLATION)
    assert (unknown.error, small.error) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE)


def test_update_metadata_skips_partitions_that_have_no_leader_yet() -> None:
    core = Core("brokers 2", "controller 1", "create t 1")
    assert core.controller is not None
    led, new = TopicPartition("t", 0), TopicPartition("new", 0)
    note, *sends = ControllerBrokerRequestBatch.build(core.controller.context, update_metadata=[led, new]).send()
    assert note == Note("UpdateMetadata skips 1 partitions that have no leader yet: new-0")
    assert [send.broker_id for send in sends if isinstance(send, Send)] == [1, 2]
    for send in sends:
        assert isinstance(send, Send) and isinstance(send.request, UpdateMetadataRequest)
        assert [state.partition for state in send.request.body.partitions] == [led]
