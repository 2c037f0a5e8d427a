"""Blocks of producer ids for this broker: requested from the controller, or taken from ZooKeeper by old protocol
versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from klamm.broker import Broker
from klamm.controller.producer_ids import BLOCK_SIZE, MAX_PRODUCER_ID
from klamm.errors import ErrorCode
from klamm.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from klamm.server.controller_channel import ControllerChannel
from klamm.zk.model import paths
from klamm.zk.model.ops import BadVersion, GetData, SetData, ZkError
from klamm.zk.model.znodes import ProducerIdBlock as ProducerIdBlockZnode
from klamm.zk.model.znodes import ZnodeFormatError, decode_producer_id_block, encode_producer_id_block

_VERSION: Final = 0


@dataclass(frozen=True, slots=True)
class AllocatedBlock:
    error: ErrorCode
    start: int = -1
    length: int = 0


async def ask_controller(broker: Broker, channel: ControllerChannel) -> AllocatedBlock:
    request = AllocateProducerIdsRequest(broker_id=broker.id, broker_epoch=broker.broker_epoch)
    try:
        response: AllocateProducerIdsResponse = await channel.send(request, _VERSION)
    except OSError:
        return AllocatedBlock(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return AllocatedBlock(ErrorCode.of(response.error_code), response.producer_id_start, response.producer_id_len)


async def take_from_zookeeper(zk: Any, broker_id: int) -> AllocatedBlock:
    """Compare and set until it succeeds; a lost block is harmless."""
    while True:
        try:
            found = await zk.read(GetData(paths.PRODUCER_ID_BLOCK))
            last = decode_producer_id_block(found.data)
            start = 0 if last is None else last.block_end + 1
            if start > MAX_PRODUCER_ID - BLOCK_SIZE:
                return AllocatedBlock(ErrorCode.UNKNOWN_SERVER_ERROR)
            block = ProducerIdBlockZnode(broker_id, start, start + BLOCK_SIZE - 1)
            await zk.set(SetData(paths.PRODUCER_ID_BLOCK, encode_producer_id_block(block), found.stat.version))
        except BadVersion:
            continue
        except (ZkError, ZnodeFormatError):
            return AllocatedBlock(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return AllocatedBlock(ErrorCode.NONE, start, BLOCK_SIZE)
