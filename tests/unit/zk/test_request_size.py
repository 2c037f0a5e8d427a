"""A request larger than ZooKeeper takes is refused before it is sent: the server would only drop the connection."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from klamm.zk.client.request_limit import MAX_REQUEST_BYTES
from klamm.zk.client.zk_session import ZkSession
from klamm.zk.model.ops import Create, Exists, RequestTooLarge, SetData, request_size
from klamm.zk.server.server import EmbeddedZooKeeper


def test_a_request_that_is_too_large_is_not_sent(tmp_path: Path) -> None:
    async def scenario() -> None:
        zk = await EmbeddedZooKeeper(tmp_path, fsync=False).start()
        session = await ZkSession(zk.address, 30_000).start()
        half = b"x" * (MAX_REQUEST_BYTES // 2)
        with pytest.raises(RequestTooLarge, match=r"too large for ZooKeeper.*/b"):
            await session.multi([Create("/a", half), Create("/b", half + b"x")])
        with pytest.raises(RequestTooLarge):
            await session.set(SetData("/a", half * 2))
        assert (await session.read(Exists("/a"))).stat is None
        largest = Create("/a", b"x" * (MAX_REQUEST_BYTES - request_size(Create("/a"))))
        await session.multi([largest])
        assert (await session.read(Exists("/a"))).stat is not None
        await session.close()
        await zk.stop()

    asyncio.run(asyncio.wait_for(scenario(), 60))
