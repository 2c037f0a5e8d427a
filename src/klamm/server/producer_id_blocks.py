"""Blocks of producer ids for this broker: requested from the controller, or taken from ZooKeeper by old protocol
versions."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

from klamm.broker import Registration
from klamm.controller.config import BLOCK_SIZE
from klamm.controller.producer_ids import MAX_PRODUCER_ID
from klamm.errors import ErrorCode
from klamm.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from klamm.replica.producer_ids import ProducerIdBlock
from klamm.server.controller_channel import ControllerChannel
from klamm.zk.client.zk_session import ZkSession
from klamm.zk.model import paths
from klamm.zk.model.ops import BadVersion, Exists, GetData, SetData, ZkError
from klamm.zk.model.znodes import ProducerIdBlock as ProducerIdBlockZnode
from klamm.zk.model.znodes import ZnodeFormatError, decode_producer_id_block, encode_producer_id_block

_VERSION: Final = 0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AllocatedBlock:
    error: ErrorCode
    start: int = -1
    length: int = 0


class ProducerIdBlocks:
    """The source of blocks for one broker; lives on the broker loop. Without a `channel` it is ZooKeeper."""

    def __init__(
        self, broker_id: int, registration: Registration, zk: ZkSession, channel: ControllerChannel | None
    ) -> None:
        self._broker_id = broker_id
        self._registration = registration
        self._zk = zk
        self._channel = channel

    def allocate(self) -> asyncio.Future[ProducerIdBlock]:
        steps = take_from_zookeeper(self._zk, self._broker_id) if self._channel is None else self._ask(self._channel)
        return asyncio.get_running_loop().create_task(steps, name="producer-id-block")

    async def _ask(self, controller: ControllerChannel) -> AllocatedBlock:
        request = AllocateProducerIdsRequest(broker_id=self._broker_id, broker_epoch=self._registration.epoch)
        try:
            response: AllocateProducerIdsResponse = await controller.send(request, _VERSION)
        except OSError:
            return AllocatedBlock(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return AllocatedBlock(ErrorCode.of(response.error_code), response.producer_id_start, response.producer_id_len)

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()


async def take_from_zookeeper(zk: ZkSession, broker_id: int) -> AllocatedBlock:
    """Compare and set until it succeeds; a lost block is harmless."""
    while True:
        try:
            found = await zk.read(GetData(paths.PRODUCER_ID_BLOCK))
            epoch_czxid = await _czxid(zk, paths.CONTROLLER_EPOCH)
            last = decode_producer_id_block(
                found.data, found.stat.version, czxid=found.stat.czxid, epoch_czxid=epoch_czxid
            )
            start = 0 if last is None else last.block_end + 1
            if start > MAX_PRODUCER_ID - BLOCK_SIZE:
                _log.warning("no block of producer ids can be taken from %s: all are used up", paths.PRODUCER_ID_BLOCK)
                return AllocatedBlock(ErrorCode.UNKNOWN_SERVER_ERROR)
            block = ProducerIdBlockZnode(broker_id, start, start + BLOCK_SIZE - 1)
            await zk.set(SetData(paths.PRODUCER_ID_BLOCK, encode_producer_id_block(block), found.stat.version))
        except BadVersion:
            continue
        except ZnodeFormatError as error:
            _log.warning(
                "no block of producer ids can be taken: %s. Restore the last block; a higher one is safe", error
            )
            return AllocatedBlock(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        except ZkError:
            return AllocatedBlock(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return AllocatedBlock(ErrorCode.NONE, start, BLOCK_SIZE)


async def _czxid(zk: ZkSession, path: str) -> int | None:
    """Return the zxid of a znode's creation; None if it does not exist."""
    stat = (await zk.read(Exists(path))).stat
    return None if stat is None else stat.czxid
