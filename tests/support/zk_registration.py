"""Registers a broker in ZooKeeper over a session, without a controller."""

from __future__ import annotations

from typing import cast

from klamm.zk.client.zk_session import ZkSession
from klamm.zk.model.ops import Create, Delete, Exists, MultiFailed, NodeExists, SetData, SetDataResult, Stat


async def register_ephemeral(zk: ZkSession, path: str, data: bytes) -> Stat:
    """Create an ephemeral znode as Kafka's brokers do: its data version becomes 1, and its czxid is the epoch.

    A znode of this session is kept, one of this client's previous session is replaced, and one of another session
    raises NodeExists.
    """
    while True:
        try:
            results = await zk.multi([Create(path, None, ephemeral=True), SetData(path, data, 0)])
        except MultiFailed as failed:
            if not isinstance(failed.error, NodeExists):
                raise failed.error from None
        else:
            return cast(SetDataResult, results[1]).stat
        stat = (await zk.read(Exists(path))).stat
        if stat is not None and stat.ephemeral_owner == zk.session_id:
            return stat
        if stat is not None:
            if stat.ephemeral_owner != zk.previous_session_id or not zk.previous_session_id:
                raise NodeExists(path, f"{path} belongs to the session {stat.ephemeral_owner:#x} of another broker")
            await zk.delete(Delete(path))
