"""The controller gives blocks of producer ids until they are used up."""

from __future__ import annotations

import pytest

from klamm.controller.config import BLOCK_SIZE
from klamm.controller.events import AllocateProducerIds
from klamm.controller.producer_ids import MAX_PRODUCER_ID
from klamm.controller.replies import ProducerIdsBlock
from klamm.errors import ErrorCode
from klamm.zk.model import paths
from klamm.zk.model.znodes import ProducerIdBlock, decode_producer_id_block, encode_producer_id_block
from tests.unit.controller.core import Core

LAST_START = MAX_PRODUCER_ID - BLOCK_SIZE


def asked_after(block_end: int) -> tuple[Core, object]:
    """Ask a controller for a block when another broker was given the ids up to `block_end`."""
    core = Core("controller 1")
    assert core.controller is not None
    core.tool_writes(paths.PRODUCER_ID_BLOCK, encode_producer_id_block(ProducerIdBlock(7, 0, block_end)))
    return core, core.ask(AllocateProducerIds(1, core.controller.context.broker_epoch))


def stored(core: Core) -> ProducerIdBlock | None:
    return decode_producer_id_block(core.tree.nodes[paths.PRODUCER_ID_BLOCK].data)


def test_the_last_block_ends_before_the_largest_id() -> None:
    core, reply = asked_after(LAST_START - 1)
    assert reply == ProducerIdsBlock(start=LAST_START, length=BLOCK_SIZE)
    assert stored(core) == ProducerIdBlock(1, LAST_START, MAX_PRODUCER_ID - 1)


def test_used_up_ids_are_refused_and_reported() -> None:
    for block_end in (LAST_START, MAX_PRODUCER_ID - 1, MAX_PRODUCER_ID):
        core, reply = asked_after(block_end)
        assert reply == ProducerIdsBlock(ErrorCode.UNKNOWN_SERVER_ERROR)
        assert stored(core) == ProducerIdBlock(7, 0, block_end)
        assert core.is_active()
        assert any("no block of producer ids can be given: all are used up" in line for line in core.lines)


def test_an_emptied_block_is_refused_and_reported() -> None:
    """The znode is created empty. If it was emptied later, ids from 0 on have been given before."""
    core = Core("controller 1")
    assert core.controller is not None
    ask = AllocateProducerIds(1, core.controller.context.broker_epoch)
    assert core.ask(ask) == ProducerIdsBlock(start=0, length=BLOCK_SIZE)
    core.tool_writes(paths.PRODUCER_ID_BLOCK, b"")
    assert core.ask(ask) == ProducerIdsBlock(ErrorCode.UNKNOWN_SERVER_ERROR)
    assert any("it was emptied (version 2)" in line and "Restore the last block" in line for line in core.lines)
    core.tool_writes(paths.PRODUCER_ID_BLOCK, encode_producer_id_block(ProducerIdBlock(1, 0, 4999)))
    assert core.ask(ask) == ProducerIdsBlock(start=5000, length=BLOCK_SIZE)


@pytest.mark.parametrize("is_used", [False, True])
def test_a_block_that_was_deleted_is_refused_and_reported(*, is_used: bool) -> None:
    """The next broker that starts creates it again, empty and with version 0, as if it had never been used."""
    core = Core("controller 1")
    assert core.controller is not None
    ask = AllocateProducerIds(1, core.controller.context.broker_epoch)
    if is_used:
        assert core.ask(ask) == ProducerIdsBlock(start=0, length=BLOCK_SIZE)
    core.tool_deletes(paths.PRODUCER_ID_BLOCK)
    assert core.ask(ask) == ProducerIdsBlock(ErrorCode.UNKNOWN_SERVER_ERROR)
    assert any("was deleted. Restore the last block" in line for line in core.lines)
    core.tool_writes(paths.PRODUCER_ID_BLOCK, b"")
    assert core.ask(ask) == ProducerIdsBlock(ErrorCode.UNKNOWN_SERVER_ERROR)
    assert any("it was deleted and created again" in line and "Restore the last block" in line for line in core.lines)
    core.tool_writes(paths.PRODUCER_ID_BLOCK, encode_producer_id_block(ProducerIdBlock(1, 0, 4999)))
    assert core.ask(ask) == ProducerIdsBlock(start=5000, length=BLOCK_SIZE)
