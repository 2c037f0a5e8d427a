"""OpenZnodes: closes znodes with secrets that everybody may read, at a start with `zookeeper.set.acl`.

The setting gives rules to new znodes. The znodes of a cluster that ran without it are older, and stay open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Final

from klamm.zk.client.zk_session import ZkSession
from klamm.zk.model import paths
from klamm.zk.model.default_acls import SENSITIVE_ACL, SENSITIVE_ROOTS
from klamm.zk.model.ops import Acl, BadVersion, ConnectionLoss, InvalidAcl, NoAuth, NoNode, SetAcl, ZkError

log = logging.getLogger(__name__)

MAX_IN_FLIGHT: Final = 10
_SHOWN: Final = 10


class OpenZnodes:
    """Withdraws the rights of everybody on credentials and on settings with secrets. Rules for others stay."""

    def __init__(self, zk: ZkSession) -> None:
        self._zk = zk
        self._closed: list[str] = []
        self._left: dict[str, ZkError] = {}

    async def close(self) -> None:
        """Log the znodes that were open, and those that this broker may not change. Raises SessionExpired."""
        level = list(SENSITIVE_ROOTS)
        while level:
            waiting, below = iter(level), list[str]()
            await asyncio.gather(*(self._close_some(waiting, below) for _ in range(MAX_IN_FLIGHT)))
            level = below
        if self._closed:
            log.warning(
                "zookeeper.set.acl: %d znodes with credentials or secrets were open to everybody and are closed now: "
                "%s. If strangers could reach ZooKeeper, replace the passwords%s",
                len(self._closed),
                _names(self._closed),
                f" and {paths.PEER_SECRET}" if paths.PEER_SECRET in self._closed else "",
            )
        if self._left:
            log.warning(
                "zookeeper.set.acl: %d znodes with credentials or secrets stay open to everybody: %s (%s). Close them "
                "with zkCli.sh as an identity that may administer them: setAcl PATH auth::cdrwa",
                len(self._left),
                _names(list(self._left)),
                next(iter(self._left.values())),
            )

    async def _close_some(self, waiting: Iterator[str], below: list[str]) -> None:
        for path in waiting:
            try:
                below += await self._close_one(path)
            except NoNode:
                continue

    async def _close_one(self, path: str) -> list[str]:
        """Close a znode if it is open; return its children."""
        while True:
            try:
                rules, stat = await self._zk.access_rules(path)
            except NoAuth:  # It is not open, and its rules are those of others.
                return []
            if is_open(rules):
                try:
                    await self._zk.set_access_rules(SetAcl(path, closed_acl(rules), stat.aversion))
                    self._closed.append(path)
                except (BadVersion, ConnectionLoss):
                    continue
                except (NoAuth, InvalidAcl) as error:
                    self._left[path] = error
            if not stat.num_children:
                return []
            try:
                return [f"{path}/{name}" for name in await self._zk.get_children(path)]
            except NoAuth:
                return []


def is_open(rules: tuple[Acl, ...]) -> bool:
    return not rules or any(rule.scheme == "world" for rule in rules)


def closed_acl(rules: tuple[Acl, ...]) -> tuple[Acl, ...]:
    """Return the rules without those for everybody, and with one for this broker."""
    return (*SENSITIVE_ACL, *(rule for rule in rules if rule.scheme != "world"))


def _names(found: list[str]) -> str:
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"{', '.join(sorted(found)[:_SHOWN])}{more}"
