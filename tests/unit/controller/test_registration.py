"""A broker whose znode somebody deletes registers again, with a new epoch."""

from __future__ import annotations

from klamm.controller.effects import Steps, ZkMulti
from klamm.controller.events import RegistrationDeleted
from klamm.model import TopicPartition
from klamm.zk.model import paths
from klamm.zk.model.ops import Create, Delete
from tests.unit.controller.core import Core

ME = paths.broker_path(1)
TP = TopicPartition("t", 0)


def epoch(core: Core) -> int:
    assert core.controller is not None
    return core.controller.context.broker_epoch


def test_the_znode_is_made_again_at_once() -> None:
    core = Core("brokers 2", "controller 1", "create t 1,2")
    before = epoch(core)
    core.tool_deletes(ME)
    core.lines = []
    core.drain()
    assert core.tree.nodes[ME].czxid == epoch(core) > before
    assert core.tree.nodes[ME].ephemeral_owner == core.session_id()
    assert any("znode /brokers/ids/1 was deleted: registered again" in line for line in core.lines)
    assert core.is_active() and core.controller is not None
    live = core.controller.context.brokers.live_or_shutting_down
    assert live[1].epoch == epoch(core), "the controller knows the new registration"


def test_again_and_again() -> None:
    core = Core("controller 1")
    for _ in range(3):
        before = epoch(core)
        core.tool_deletes(ME)
        core.drain()
        assert core.tree.nodes[ME].czxid == epoch(core) > before


def test_a_deletion_without_a_notification_is_found_at_the_next_look() -> None:
    """Deleted before the watch was set."""
    core = Core("controller 1")
    core.tree.write(core.tools, Delete(ME), 0)
    core.tree.take_events()
    core.tool_deletes(paths.CONTROLLER)
    core.drain()
    assert ME in core.tree.nodes and core.is_active()


def test_a_znode_of_another_session_is_left_alone() -> None:
    core = Core("controller 1")
    before = epoch(core)
    core.tree.create_session(99, 1 << 40, 0)
    core.tool_deletes(ME)
    core.tree.write(99, Create(ME, b"{}", ephemeral=True), 0)
    core.lines = []
    core.drain()
    assert core.tree.nodes[ME].ephemeral_owner == 99 and epoch(core) == before
    assert any("this broker is not registered" in line for line in core.lines)
    assert any("schedule" in line and "RegistrationDeleted" in line for line in core.lines)


def test_znodes_of_other_brokers_are_theirs() -> None:
    core = Core("brokers 2", "controller 1")
    assert core.controller is not None
    steps: Steps[None] = core.controller.process(RegistrationDeleted(2))
    assert not any(isinstance(effect, ZkMulti) for effect in steps)
