"""Writes that ZooKeeper does not take, for their size or for another reason, end with an error and not in a loop."""

from __future__ import annotations

import pytest

from klamm.controller.events import (
    AllocateProducerIds,
    ApiPartitionReassignment,
    ControllerEvent,
    CreatablePartitions,
    CreatableTopic,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
)
from klamm.controller.replies import PartitionResults, ProducerIdsBlock, TopicResults
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.zk.client.request_limit import MAX_REQUEST_BYTES
from klamm.zk.model import paths
from klamm.zk.model.ops import Create, NoAuth, request_size
from tests.unit.controller.core import Core

LONG = "t" * 249


def errors(reply: object) -> list[ErrorCode]:
    assert isinstance(reply, TopicResults)
    return [topic.error for topic in reply.topics]


def largest(core: Core) -> int:
    return max(sum(map(request_size, ops)) for ops in core.multis)


@pytest.mark.parametrize(
    "event",
    [
        CreateTopics((CreatableTopic("t", 100_000, 1),)),
        CreateTopics((CreatableTopic("t", assignments=tuple((p, (1, 2)) for p in range(80_000))),)),
        CreateTopics((CreatableTopic("t", 100_000, 1),), validate_only=True),
        CreatePartitions((CreatablePartitions("small", 100_000),)),
    ],
)
def test_a_topic_whose_znode_does_not_fit_into_a_request_is_refused(event: ControllerEvent) -> None:
    core = Core("brokers 2", "controller 1", "create small 1,2")
    reply = core.ask(event)
    assert errors(reply) == [ErrorCode.INVALID_PARTITIONS]
    assert isinstance(reply, TopicResults) and "bytes in ZooKeeper" in str(reply.topics[0].message)
    assert largest(core) < MAX_REQUEST_BYTES


def test_a_configuration_that_does_not_fit_is_refused_and_large_ones_are_written_one_by_one() -> None:
    core = Core("controller 1")
    topics = [CreatableTopic(f"t{i}", 1, 1, configs=(("a", "x" * 400_000),)) for i in range(4)]
    huge = CreatableTopic("huge", 1, 1, configs=(("a", "x" * 1_000_000),))
    assert errors(core.ask(CreateTopics((*topics, huge)))) == [ErrorCode.NONE] * 4 + [ErrorCode.INVALID_CONFIG]
    assert largest(core) < MAX_REQUEST_BYTES


def test_long_names_and_many_partitions_stay_below_the_limit_of_a_request() -> None:
    core = Core("brokers 2", "controller 1")
    assert errors(core.ask(CreateTopics((CreatableTopic(LONG, 3_000, 2),)))) == [ErrorCode.NONE]
    core.run("dies 2")
    assert largest(core) < MAX_REQUEST_BYTES
    assert core.controller is not None
    assert all(
        tp in core.controller.context.states.leadership for tp in core.controller.context.topics.partitions_of(LONG)
    )


def test_a_move_that_would_make_the_znode_too_large_is_refused() -> None:
    many = tuple(range(10**8, 10**8 + 30))
    core = Core("brokers " + " ".join(map(str, many)), "controller 1")
    plan = tuple((p, (1,)) for p in range(2_000))
    assert errors(core.ask(CreateTopics((CreatableTopic("t", assignments=plan),)))) == [ErrorCode.NONE]
    moves = tuple((TopicPartition("t", p), many) for p in range(2_000))
    reply = core.ask(ApiPartitionReassignment(moves))
    assert isinstance(reply, PartitionResults)
    assert {result.error for result in reply.partitions} == {ErrorCode.INVALID_REPLICA_ASSIGNMENT}
    assert largest(core) < MAX_REQUEST_BYTES


# ---- refused for another reason --------------------------------------------------------------------------------------


def refusing(core: Core, path: str) -> Core:
    core.refused[path] = NoAuth(path)
    return core


def test_a_state_that_cannot_be_written_costs_its_own_partition() -> None:
    core = Core("brokers 2", "controller 1", "create a 2,1", "create b 2,1")
    lines = refusing(core, paths.partition_state_path("a", 0)).run("dies 2")
    assert core.controller is not None and core.is_active()
    leadership = core.controller.context.states.leadership
    assert leadership[TopicPartition("b", 0)].leader_and_isr.leader == 1
    assert leadership[TopicPartition("a", 0)].leader_and_isr.leader == 2
    assert any("cannot be written" in line for line in lines)


def test_a_state_that_cannot_be_created_costs_its_own_partition() -> None:
    core = refusing(Core("controller 1"), paths.partition_path("t", 1))
    core.run("tool-creates t 1 1 1")
    assert core.controller is not None and core.is_active()
    created = [
        tp.partition
        for tp in core.controller.context.topics.partitions_of("t")
        if tp in core.controller.context.states.leadership
    ]
    assert created == [0, 2]


def test_a_topic_that_cannot_be_rewritten_is_neither_grown_nor_moved() -> None:
    core = refusing(Core("brokers 2", "controller 1", "create t 1"), paths.topic_path("t"))
    grown = core.ask(CreatePartitions((CreatablePartitions("t", 3),)))
    assert errors(grown) == [ErrorCode.UNKNOWN_SERVER_ERROR]
    core.run("reassign t-0 2")
    assert core.controller is not None and core.is_active()
    assert core.controller.context.topics.assignment(TopicPartition("t", 0)).replicas == (1,)
    assert not core.controller.context.topics.reassigning


def test_other_znodes_that_cannot_be_written() -> None:
    core = refusing(Core(), paths.FEATURE)
    core.run("controller 1")
    assert core.controller is not None and core.is_active()
    refusing(core, paths.PRODUCER_ID_BLOCK)
    block = core.ask(AllocateProducerIds(1, core.controller.context.broker_epoch))
    assert block == ProducerIdsBlock(ErrorCode.UNKNOWN_SERVER_ERROR)
    refusing(core, paths.REASSIGN_PARTITIONS)
    core.tool_writes(
        paths.REASSIGN_PARTITIONS, b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1]}]}'
    )
    core.drain()
    assert core.is_active()


def test_a_topic_whose_znodes_cannot_be_deleted_disturbs_no_other() -> None:
    core = Core("controller 1", "create a 1", "create b 1", "create c 1")
    refusing(core, paths.partition_path("b", 0))
    assert errors(core.ask(DeleteTopics(("a", "b", "c")))) == [ErrorCode.NONE] * 3
    lines = core.run("stop-replicas-answered")
    assert core.controller is not None and core.is_active()
    assert list(core.controller.context.topics) == ["b"]
    assert any("/brokers/topics/b/partitions/0 cannot be deleted" in line for line in lines)
    left = [path for path in core.tree.nodes if path.endswith(("/a", "/b", "/c"))]
    assert paths.topic_path("b") in left and paths.delete_topic_path("b") in left
    assert not any(path.endswith(("/a", "/c")) for path in left)


def test_a_deletion_that_cannot_be_queued_is_refused() -> None:
    core = refusing(Core("controller 1", "create a 1", "create b 1"), paths.delete_topic_path("a"))
    assert errors(core.ask(DeleteTopics(("a", "b")))) == [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NONE]
    core.run("stop-replicas-answered")
    assert core.controller is not None and core.is_active()
    assert list(core.controller.context.topics) == ["a"]


def test_a_note_that_cannot_be_deleted_is_left() -> None:
    core = Core("controller 1", "create a 1")
    note = paths.isr_change_path("0000000000")
    refusing(core, note)
    core.tool_writes(note, b'{"version":1,"partitions":[{"topic":"a","partition":0}]}')
    core.drain()
    assert core.is_active() and note in core.tree.nodes


def test_a_topic_with_more_znodes_than_kafka_writes_is_deleted_with_all_of_them() -> None:
    core = Core("controller 1", "create a 1", "create b 1")
    for path in (
        f"{paths.partition_path('a', 0)}/x",
        f"{paths.partition_path('a', 0)}/x/y",
        f"{paths.topic_path('a')}/z",
    ):
        core.tool_writes(path, b"")
    core.ask(DeleteTopics(("a", "b")))
    core.tool_writes(f"{paths.delete_topic_path('a')}/note", b"")
    core.run("stop-replicas-answered")
    assert core.controller is not None and core.is_active()
    assert not core.controller.context.topics
    assert not [path for path in core.tree.nodes if "/a" in path.removeprefix("/admin")]
    assert paths.delete_topic_path("a") not in core.tree.nodes


def test_a_topic_that_grows_for_ever_stays_queued() -> None:
    core = Core("controller 1", "create a 1", "create b 1")
    count = iter(range(1_000))
    core.before_multi = lambda _: core.tool_writes(f"{paths.topic_path('a')}/x{next(count)}", b"")
    core.ask(DeleteTopics(("a", "b")))
    core.run("stop-replicas-answered")
    assert core.controller is not None and core.is_active()
    assert list(core.controller.context.topics) == ["a"]
    assert paths.delete_topic_path("a") in core.tree.nodes


def test_an_entry_with_children_in_the_queue_of_deletions_does_not_cost_the_controller_its_role() -> None:
    core = Core("controller 1", "create a 1")
    entry = paths.delete_topic_path("nobody")
    core.tree.write(core.tools, Create(entry, b""), 0)
    core.tree.write(core.tools, Create(f"{entry}/child", b""), 0)
    core.drain()
    assert core.is_active() and entry in core.tree.nodes


def test_a_request_for_elections_that_cannot_be_deleted_is_not_carried_out_for_ever() -> None:
    core = refusing(Core("brokers 2", "controller 1", "create a 1,2"), paths.PREFERRED_REPLICA_ELECTION)
    core.tool_writes(paths.PREFERRED_REPLICA_ELECTION, b'{"version":1,"partitions":[{"topic":"a","partition":0}]}')
    core.drain()
    assert core.is_active()
