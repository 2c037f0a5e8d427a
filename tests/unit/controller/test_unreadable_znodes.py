"""A znode with invalid contents affects only the object that it describes."""

from __future__ import annotations

from itertools import pairwise

import pytest

from klamm.controller.controller import LONGEST_PAUSE_S
from klamm.controller.events import AllocateProducerIds, CreatableTopic, CreateTopics, Reelect
from klamm.controller.replies import ProducerIdsBlock, TopicResults
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.zk.model import paths
from klamm.zk.model.znodes import encode_controller_epoch
from tests.unit.controller.core import Core


def test_an_unreadable_topic_config_keeps_only_that_topic_offline() -> None:
    core = Core("brokers 2", "controller 1", "create a 2", "create b 2,1")
    core.tool_writes(paths.config_entity_path("topics", "a"), b"{nonsense")
    lines = core.run("dies 2")
    assert core.controller is not None and core.is_active()
    context = core.controller.context
    assert context.states.leadership[TopicPartition("b", 0)].leader_and_isr.leader == 1
    assert context.states.leadership[TopicPartition("a", 0)].leader_and_isr.leader != 1
    assert any("/config/topics/a" in line and "note" in line for line in lines)


def test_an_unreadable_config_does_not_allow_an_unclean_election() -> None:
    core = Core("brokers 2", "controller 1", "create a 2,1", "isr a-0 2")
    core.tool_writes(paths.config_entity_path("topics", "a"), b'"unclean"')
    core.run("dies 2")
    assert core.controller is not None
    assert core.controller.context.states.leadership[TopicPartition("a", 0)].leader_and_isr.leader != 1


def test_an_unreadable_block_of_producer_ids_answers_with_an_error() -> None:
    core = Core("controller 1")
    assert core.controller is not None
    epoch = core.controller.context.broker_epoch
    core.tool_writes(paths.PRODUCER_ID_BLOCK, b"[]")
    assert core.ask(AllocateProducerIds(1, epoch)) == ProducerIdsBlock(ErrorCode.UNKNOWN_SERVER_ERROR)
    assert core.is_active()
    created = core.ask(CreateTopics((CreatableTopic("t", 1, 1),)))
    assert isinstance(created, TopicResults) and created.topics[0].error is ErrorCode.NONE


def test_a_role_that_was_given_up_is_won_back_after_longer_and_longer_pauses() -> None:
    core = Core("controller 1")
    assert core.controller is not None
    pauses: list[float] = []
    for _ in range(12):
        assert core.is_active()
        core.drive(Reelect(), core.controller.abandon(Reelect()))
        core.run("protocol 3.9")
        assert not core.is_active() and paths.CONTROLLER not in core.tree.nodes
        before = core.clock.seconds
        while not core.is_active():
            core.clock.seconds += 0.05
            core.queue.append(Reelect())
            core.drain()
        pauses.append(core.clock.seconds - before)
    assert pauses[0] < 0.2 and pauses[-1] >= LONGEST_PAUSE_S * 0.99
    assert all(later > earlier - 0.1 for earlier, later in pairwise(pauses))
    core.clock.seconds += 10 * LONGEST_PAUSE_S
    core.drive(Reelect(), core.controller.abandon(Reelect()))
    core.clock.seconds += 0.2
    core.queue.append(Reelect())
    core.drain()
    assert core.is_active()


def test_an_unreadable_controller_epoch_names_the_remedy_and_is_looked_at_again() -> None:
    core = Core("controller 1")
    core.tool_writes(paths.CONTROLLER_EPOCH, b"garbage")
    core.tool_deletes(paths.CONTROLLER)
    core.lines = []
    core.drain()
    assert not core.is_active()
    assert any("no controller can be elected: znode /controller_epoch" in line for line in core.lines)
    assert any("at least the last controller epoch" in line for line in core.lines)
    assert any("schedule" in line and "Reelect" in line for line in core.lines)
    core.tool_writes(paths.CONTROLLER_EPOCH, b"7")
    core.queue.append(Reelect())
    core.drain()
    assert core.is_active() and core.controller is not None and core.controller.context.epoch == 8


def test_an_unreadable_controller_znode_is_not_fought_over() -> None:
    """The harness fails after a thousand attempts: a broker that does not know the owner must not claim the role."""
    core = Core("controller 1")
    before = len(core.multis)
    core.tool_writes(paths.CONTROLLER, b"{garbage")
    core.lines = []
    core.queue.append(Reelect())
    core.drain()
    assert not core.is_active() and len(core.multis) == before
    assert any("Delete /controller: the brokers elect a controller then" in line for line in core.lines)
    core.tool_deletes(paths.CONTROLLER)
    core.drain()
    assert core.is_active()


@pytest.mark.parametrize(
    "broken", [b"[" * 50_000, b'{"partitions":{"0":[1e999]}}', b'{"partitions":{"99999999999":[1]}}']
)
def test_a_topic_that_no_message_could_carry_does_not_cost_the_controller(broken: bytes) -> None:
    core = Core("brokers 2", "controller 1", "create a 2,1")
    core.tool_writes(paths.topic_path("broken"), broken)
    core.drain()
    assert core.controller is not None and core.is_active()
    assert set(core.controller.context.topics) == {"a"}
    core.tool_deletes(paths.CONTROLLER)
    core.drain()
    assert core.is_active()


@pytest.mark.parametrize("name", ["99999999999999", "9" * 5000, "0001", "\u0663"])
def test_a_registration_whose_name_is_not_a_broker_id_is_not_a_broker(name: str) -> None:
    core = Core("brokers 2", "controller 1")
    core.tool_writes(f"{paths.BROKER_IDS}/{name}", b'{"version":1,"host":"h","port":1}')
    core.drain()
    assert core.controller is not None and core.is_active()
    assert set(core.controller.context.brokers.live_or_shutting_down) == {1, 2}
    core.tool_deletes(f"{paths.BROKER_IDS}/{name}")
    core.drain()
    assert core.is_active()


def test_a_controller_epoch_that_was_set_too_low_is_raised_at_once() -> None:
    core = Core("brokers 2", "controller 1", "create a 2,1")
    core.tool_writes(paths.CONTROLLER_EPOCH, encode_controller_epoch(70))
    core.tool_deletes(paths.CONTROLLER)
    core.drain()
    core.run("create b 2,1")
    assert core.is_active() and core.controller is not None and core.controller.context.epoch == 71
    core.tool_writes(paths.CONTROLLER_EPOCH, encode_controller_epoch(3))
    core.tool_deletes(paths.CONTROLLER)
    core.lines = []
    core.drain()
    assert core.is_active() and core.controller.context.epoch == 72
    assert core.tree.nodes[paths.CONTROLLER_EPOCH].data == encode_controller_epoch(72)
    sent = [line for line in core.lines if "LeaderAndIsr" in line or "UpdateMetadata" in line]
    assert sent and not any("epoch 4" in line for line in sent)
    core.run("dies 2")
    assert core.is_active()
    assert core.controller.context.states.leadership[TopicPartition("b", 0)].leader_and_isr.leader == 1


def test_an_absurd_controller_epoch_in_a_partition_state_is_not_adopted() -> None:
    core = Core("brokers 2", "controller 1", "create a 2,1")
    path = paths.partition_state_path("a", 0)
    state = core.tree.nodes[path].data
    assert state is not None
    core.tool_writes(path, state.replace(b'"controller_epoch":1', b'"controller_epoch":2147483647'))
    core.tool_deletes(paths.CONTROLLER)
    core.drain()
    assert core.tree.nodes[paths.CONTROLLER_EPOCH].data == encode_controller_epoch(2)
