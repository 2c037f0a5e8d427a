"""Blocks of producer ids for brokers: each id is allocated once."""

from __future__ import annotations

from typing import Final

from klamm.controller.context import ControllerContext
from klamm.controller.effects import Note, Reply, Steps
from klamm.controller.events import AllocateProducerIds
from klamm.controller.replies import ProducerIdsBlock
from klamm.controller.store import fenced, may_be_tried_again, read_data
from klamm.errors import ErrorCode
from klamm.zk.model import paths
from klamm.zk.model.ops import ConnectionLoss, MultiFailed, SetData
from klamm.zk.model.znodes import ProducerIdBlock, ZnodeFormatError, decode_producer_id_block, encode_producer_id_block

MAX_PRODUCER_ID: Final = 2**63 - 1
_REMEDY: Final = "Restore the last block of producer ids; a higher one is safe"


def on_allocate_producer_ids(ctx: ControllerContext, event: AllocateProducerIds) -> Steps[None]:
    broker = ctx.brokers.live_or_shutting_down.get(event.broker_id)
    if broker is None:
        yield Reply(ProducerIdsBlock(ErrorCode.BROKER_ID_NOT_REGISTERED))
    elif broker.epoch != event.broker_epoch:
        yield Reply(ProducerIdsBlock(ErrorCode.STALE_BROKER_EPOCH))
    else:
        yield Reply((yield from _claim(ctx, event.broker_id)))


def _claim(ctx: ControllerContext, broker_id: int) -> Steps[ProducerIdsBlock]:
    """Compare and swap; after a lost answer a block may be skipped, which is harmless."""
    size = ctx.config.producer_ids_per_block
    while True:
        result, epoch = yield from read_data([paths.PRODUCER_ID_BLOCK, paths.CONTROLLER_EPOCH])
        if result is None:
            yield Note(f"no block of producer ids can be given: {paths.PRODUCER_ID_BLOCK} was deleted. {_REMEDY}", True)
            return ProducerIdsBlock(ErrorCode.UNKNOWN_SERVER_ERROR)
        try:
            epoch_czxid = None if epoch is None else epoch.stat.czxid
            stat = result.stat
            last = decode_producer_id_block(result.data, stat.version, czxid=stat.czxid, epoch_czxid=epoch_czxid)
        except ZnodeFormatError as error:
            yield Note(f"{error}. {_REMEDY}", True)
            return ProducerIdsBlock(ErrorCode.UNKNOWN_SERVER_ERROR)
        start = 0 if last is None else last.block_end + 1
        if start > MAX_PRODUCER_ID - size:
            yield Note("no block of producer ids can be given: all are used up", True)
            return ProducerIdsBlock(ErrorCode.UNKNOWN_SERVER_ERROR)
        block = ProducerIdBlock(broker_id, start, start + size - 1)
        try:
            data = encode_producer_id_block(block)
            yield from fenced(ctx, [SetData(paths.PRODUCER_ID_BLOCK, data, result.stat.version)])
        except ConnectionLoss:
            continue
        except MultiFailed as failed:
            if may_be_tried_again(failed):
                continue
            yield Note(f"no block of producer ids can be given: {failed}")
            return ProducerIdsBlock(ErrorCode.UNKNOWN_SERVER_ERROR)
        return ProducerIdsBlock(start=start, length=size)
