"""A controlled shutdown may be requested only by the broker whose registration the controller knows."""

from __future__ import annotations

from klamm.controller.events import ControlledShutdown
from klamm.controller.replies import ControlledShutdownResult
from klamm.errors import ErrorCode
from klamm.zk.model.paths import broker_path
from tests.unit.controller.core import Core


def error(core: Core, broker_epoch: int, broker_id: int = 2) -> ErrorCode:
    reply = core.ask(ControlledShutdown(broker_id, broker_epoch))
    assert isinstance(reply, ControlledShutdownResult)
    return reply.error


def test_the_epoch_must_be_that_of_the_registration() -> None:
    core = Core("brokers 2", "controller 1", "create t 1,2")
    epoch = core.tree.nodes[broker_path(2)].czxid
    assert error(core, epoch - 1) is ErrorCode.STALE_BROKER_EPOCH
    assert error(core, epoch + 1) is ErrorCode.STALE_BROKER_EPOCH
    assert error(core, epoch) is ErrorCode.NONE
    assert error(core, -1) is ErrorCode.NONE, "versions before 2 carry no epoch"
    assert error(core, 5, broker_id=9) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert error(core, -1, broker_id=9) is ErrorCode.BROKER_NOT_AVAILABLE
