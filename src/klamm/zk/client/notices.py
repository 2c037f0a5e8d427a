"""Notices of changes: sequential children of one znode, which every broker reads in order and one removes later."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from klamm.zk.model import paths
from klamm.zk.model.ops import ConnectionLoss, Delete, NoNode

if TYPE_CHECKING:
    from klamm.zk.client.zk_session import ZkSession

EXPIRATION_MS: Final = 15 * 60 * 1000
"""Retention of notices, for brokers that read them slowly."""


async def watched(zk: ZkSession, parent: str) -> list[str]:
    """Return the names of the notices in order; arms the watch for the next one."""
    try:
        names = await zk.get_children(parent, watch=True)
    except NoNode:
        return []
    return sorted((name for name in names if number(name) >= 0), key=number)


async def purge(zk: ZkSession, parent: str, now_ms: int) -> None:
    """Remove notices that every broker has had time to read."""
    names = [f"{parent}/{name}" for name in await zk.get_children(parent)]
    for path, answer in zip(names, await zk.read_many(names), strict=True):
        if answer is not None and now_ms - answer[1].ctime > EXPIRATION_MS:
            with contextlib.suppress(NoNode, ConnectionLoss):
                await zk.delete(Delete(path))


def number(name: str) -> int:
    """Return the number of a notice; -1 if the name has none."""
    try:
        return paths.sequence_number(name)
    except ValueError:
        return -1


def newest(names: Sequence[str]) -> int:
    return number(names[-1]) if names else -1
