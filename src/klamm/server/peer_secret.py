"""The cluster's own secret, by which its brokers prove to each other that they belong to it."""

from __future__ import annotations

import base64
from collections.abc import Callable
from uuid import UUID

from klamm.security.secret import Secret
from klamm.zk.client.zk_session import ZkSession
from klamm.zk.model import paths
from klamm.zk.model.ops import Create, GetData, NodeExists, NoNode


async def peer_secret(zk: ZkSession, new_uuid: Callable[[], UUID]) -> Secret[str]:
    """Return the secret in ZooKeeper; the first klamm broker of a cluster generates it.

    A reader of the secret can act as a broker. A writer of ZooKeeper can do that without it.
    """
    while True:
        try:
            data = (await zk.read(GetData(paths.PEER_SECRET))).data
            return Secret((data or b"").decode("ascii"))
        except NoNode:
            proposed = base64.urlsafe_b64encode(new_uuid().bytes + new_uuid().bytes)
            await zk.ensure_paths([paths.PEER_SECRET.rpartition("/")[0]])
        try:
            await zk.create(Create(paths.PEER_SECRET, proposed))
        except NodeExists:
            continue
