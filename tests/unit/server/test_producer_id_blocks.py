"""A broker of an old protocol version takes blocks of producer ids from ZooKeeper until they are used up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from klamm.controller.config import BLOCK_SIZE
from klamm.controller.producer_ids import MAX_PRODUCER_ID
from klamm.errors import ErrorCode
from klamm.replica import producer_ids
from klamm.server.producer_id_blocks import AllocatedBlock, take_from_zookeeper
from klamm.zk.client.zk_session import ZkSession
from klamm.zk.model import paths
from klamm.zk.model.ops import Delete, GetData, SetData
from klamm.zk.model.znodes import ProducerIdBlock, decode_producer_id_block, encode_producer_id_block
from klamm.zk.server.server import EmbeddedZooKeeper

LAST_START = MAX_PRODUCER_ID - BLOCK_SIZE


async def taken_after(block_end: int, directory: Path) -> tuple[list[AllocatedBlock], ProducerIdBlock | None]:
    """Take two blocks when another broker has the ids up to `block_end`; return them and the stored block."""
    server = await EmbeddedZooKeeper(directory, fsync=False).start()
    zk = await ZkSession(server.address, 30_000).start()
    try:
        await zk.ensure_paths([paths.PRODUCER_ID_BLOCK])
        await zk.set(SetData(paths.PRODUCER_ID_BLOCK, encode_producer_id_block(ProducerIdBlock(7, 0, block_end))))
        blocks = [await take_from_zookeeper(zk, 1) for _ in range(2)]
        return blocks, decode_producer_id_block((await zk.read(GetData(paths.PRODUCER_ID_BLOCK))).data)
    finally:
        await zk.close()
        await server.stop()


def test_the_last_block_is_given_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocks, stored = asyncio.run(taken_after(LAST_START - 1, tmp_path))
    last = AllocatedBlock(ErrorCode.NONE, LAST_START, BLOCK_SIZE)
    assert blocks == [last, AllocatedBlock(ErrorCode.UNKNOWN_SERVER_ERROR)]
    assert stored == ProducerIdBlock(1, LAST_START, MAX_PRODUCER_ID - 1)
    assert "all are used up" in caplog.text


def test_a_part_of_a_block_is_not_given(tmp_path: Path) -> None:
    blocks, stored = asyncio.run(taken_after(LAST_START, tmp_path))
    assert blocks == [AllocatedBlock(ErrorCode.UNKNOWN_SERVER_ERROR)] * 2
    assert stored == ProducerIdBlock(7, 0, LAST_START)


def test_producers_get_all_ids_of_the_last_block_and_then_an_error() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        blocks = [AllocatedBlock(ErrorCode.NONE, LAST_START, BLOCK_SIZE)]

        def allocate() -> asyncio.Future[producer_ids.ProducerIdBlock]:
            answer: asyncio.Future[producer_ids.ProducerIdBlock] = loop.create_future()
            answer.set_result(blocks.pop() if blocks else AllocatedBlock(ErrorCode.UNKNOWN_SERVER_ERROR))
            return answer

        ids = producer_ids.ProducerIdManager(loop, allocate)
        given = [await it if isinstance(it := ids.generate(), asyncio.Future) else it for _ in range(BLOCK_SIZE)]
        assert given == list(range(LAST_START, MAX_PRODUCER_ID))
        refused = ids.generate()
        assert isinstance(refused, asyncio.Future)
        assert await refused is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    asyncio.run(run())


def test_no_block_is_taken_from_an_emptied_znode(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> AllocatedBlock:
        server = await EmbeddedZooKeeper(tmp_path, fsync=False).start()
        zk = await ZkSession(server.address, 30_000).start()
        try:
            await zk.ensure_paths([paths.PRODUCER_ID_BLOCK])
            assert await take_from_zookeeper(zk, 1) == AllocatedBlock(ErrorCode.NONE, 0, BLOCK_SIZE)
            await zk.set(SetData(paths.PRODUCER_ID_BLOCK, b""))
            return await take_from_zookeeper(zk, 1)
        finally:
            await zk.close()
            await server.stop()

    assert asyncio.run(run()) == AllocatedBlock(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert "it was emptied (version 2)" in caplog.text


def test_no_block_is_taken_from_a_znode_that_was_created_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> tuple[AllocatedBlock, AllocatedBlock]:
        server = await EmbeddedZooKeeper(tmp_path, fsync=False).start()
        zk = await ZkSession(server.address, 30_000).start()
        try:
            await zk.ensure_paths([paths.PRODUCER_ID_BLOCK])
            await zk.ensure_paths([paths.CONTROLLER_EPOCH])
            first = await take_from_zookeeper(zk, 1)
            await zk.delete(Delete(paths.PRODUCER_ID_BLOCK))
            await zk.ensure_paths([paths.PRODUCER_ID_BLOCK])
            return first, await take_from_zookeeper(zk, 1)
        finally:
            await zk.close()
            await server.stop()

    first, second = asyncio.run(run())
    assert first == AllocatedBlock(ErrorCode.NONE, 0, BLOCK_SIZE)
    assert second == AllocatedBlock(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert "it was deleted and created again" in caplog.text
