"""Registration, the claim to the role, and what is left of a controller that lost it."""

from __future__ import annotations

from klamm.controller.events import Reelect, RegisterBrokerAndReelect
from klamm.controller.replies import BrokerRegistration
from klamm.errors import ErrorCode
from klamm.zk.model import paths
from klamm.zk.model.ops import ConnectionLoss, Create, Delete, SetData, WriteOp
from klamm.zk.model.znodes import encode_controller, encode_controller_epoch
from tests.unit.controller.core import Core


class Sessions(Core):
    """A core whose client library may have a new session already."""

    session = 0

    def session_id(self) -> int:
        return self.session or super().session_id()


def test_a_registration_of_the_last_session_is_not_taken_for_the_own() -> None:
    core = Sessions("controller 1")
    assert core.controller is not None
    epoch = core.controller.context.broker_epoch
    assert core.ask(RegisterBrokerAndReelect()) == BrokerRegistration(epoch)
    core.session = 77
    reply = core.ask(RegisterBrokerAndReelect())
    assert isinstance(reply, BrokerRegistration) and reply.error is ErrorCode.DUPLICATE_BROKER_REGISTRATION


def test_an_election_that_is_over_does_not_delete_the_claim_of_another() -> None:
    """It finds its own claim without being active; before its deletion arrives, broker 2 is elected."""
    core = Core("brokers 2 3")
    core.tree.create_session(2, 1 << 40, 0)
    core.tree.write(core.tools, Create(paths.CONTROLLER_EPOCH, encode_controller_epoch(1)), 0)
    core.tree.write(2, Create(paths.CONTROLLER, encode_controller(1, 0), ephemeral=True), 0)
    other = encode_controller(2, 0)

    def elect_another(ops: tuple[WriteOp, ...]) -> None:
        if any(isinstance(op, Delete) and op.path == paths.CONTROLLER for op in ops):
            core.tree.write(core.tools, Delete(paths.CONTROLLER), 0)
            core.tree.write(3, Create(paths.CONTROLLER, other, ephemeral=True), 0)
            core.tree.write(3, SetData(paths.CONTROLLER_EPOCH, encode_controller_epoch(2)), 0)

    core.before_multi = elect_another
    core.run("controller 1")
    assert core.tree.nodes[paths.CONTROLLER].data == other
    assert not core.is_active()


def test_a_controller_deposed_while_a_broker_bounces_keeps_no_channel() -> None:
    core = Core("brokers 2 3", "controller 1", "create t 2,1", "create u 3,2")
    assert core.channels == {1, 2, 3}
    core.before_multi = lambda _: core.tool_writes(paths.CONTROLLER_EPOCH, encode_controller_epoch(9))
    core.run("bounces 2")
    assert core.channels == set() and not core.is_active()
    core.before_multi = lambda _: None
    core.queue.append(Reelect())
    core.drain()
    assert core.channels == {1, 2, 3} and core.is_active()


def test_a_registration_whose_answer_was_lost_is_found_again() -> None:
    lost = [ConnectionLoss()]

    class Lossy(Core):
        def _multi(self, ops: tuple[WriteOp, ...]) -> object:
            result = super()._multi(ops)
            if lost:
                raise lost.pop()
            return result

    lossy = Lossy("controller 1")
    assert lossy.controller is not None and lossy.is_active()
    reply = lossy.replies[0]
    assert isinstance(reply, BrokerRegistration) and reply.error is ErrorCode.NONE
    assert reply.broker_epoch == lossy.controller.context.broker_epoch
