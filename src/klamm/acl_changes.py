"""Access control entries in ZooKeeper: read at the start, followed through notices, changed with a notice.

A resource with entries has a znode (`klamm.security.acl.stored`). A change compares its version and writes it together
with a notice, in one transaction; every broker with an authorizer watches the notices, reads the named resources and
replaces the rules of its `AclAuthorizer`. A broker that loses its session reads everything again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from klamm.security.acl import stored
from klamm.security.acl.authorizer import AclAuthorizer
from klamm.security.acl.bindings import (
    ANY_PRINCIPAL,
    SUPPORTED,
    WILDCARD,
    AclEntry,
    AclOperation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
    of_name,
)
from klamm.security.acl.rules import AclRules, Entries
from klamm.zk.client import notices
from klamm.zk.model import paths
from klamm.zk.model.ops import (
    BadVersion,
    ConnectionLoss,
    Create,
    Delete,
    MultiFailed,
    NodeExists,
    NoNode,
    SetData,
    Stat,
    WatchEvent,
    WriteOp,
    ZkError,
)

if TYPE_CHECKING:
    from klamm.zk.client.zk_session import ZkSession

_ROOTS: Final = {PatternType.LITERAL: paths.ACL, PatternType.PREFIXED: paths.ACL_EXTENDED}
_NOTICES: Final = {PatternType.LITERAL: paths.ACL_CHANGES, PatternType.PREFIXED: paths.ACL_EXTENDED_CHANGES}
PERSISTENT_PATHS: Final = (
    *_NOTICES.values(),
    *(f"{root}/{kind.title}" for root in _ROOTS.values() for kind in SUPPORTED),
)
"""Znodes that a broker with an authorizer creates at its start, if they are missing."""
_AT_ONCE: Final = 200
"""Resources that are decoded and indexed in one turn of the loop."""
_DENY_ALL: Final = frozenset({AclEntry(ANY_PRINCIPAL, WILDCARD, AclOperation.ALL, Permission.DENY)})

log = logging.getLogger(__name__)


def path_of(resource: ResourcePattern) -> str:
    return f"{_ROOTS[resource.pattern]}/{resource.type.title}/{resource.name}"


async def change_entries(zk: ZkSession, resource: ResourcePattern, change: Callable[[Entries], Entries]) -> None:
    """Read, change and write the entries of one resource together with a notice.

    After a concurrent write, `change` is called again with the new entries. After a lost connection the znode shows
    whether the write took effect. Entries that cannot be decoded raise ValueError: they are not overwritten.
    """
    path = path_of(resource)
    while True:
        found = (await zk.read_many([path]))[0]
        before = frozenset[AclEntry]() if found is None else stored.decode_acl(found[0])
        after = change(before)
        if after == before:
            return
        try:
            await zk.multi(_write(path, resource, found, after))
        except ConnectionLoss:
            continue
        except MultiFailed as failed:
            if not isinstance(failed.error, BadVersion | NodeExists | NoNode):
                raise failed.error from None
            continue
        return


def _write(
    path: str, resource: ResourcePattern, found: tuple[bytes | None, Stat] | None, entries: Entries
) -> list[WriteOp]:
    notice = Create(
        f"{_NOTICES[resource.pattern]}/{paths.ACL_CHANGE_PREFIX}", stored.encode_acl_change(resource), sequential=True
    )
    if found is None:
        return [Create(path, stored.encode_acl(entries)), notice]
    version = found[1].version
    write: WriteOp = SetData(path, stored.encode_acl(entries), version) if entries else Delete(path, version)
    return [write, notice]


class AclChangeListener:
    """Keeps the rules of a broker's authorizer equal to ZooKeeper. Lives on the broker loop.

    One task at a time reads and replaces the rules, so that an older reading never replaces a newer one.
    """

    def __init__(self, zk: ZkSession, authorizer: AclAuthorizer) -> None:
        self._zk = zk
        self._authorizer = authorizer
        self._last_seen = dict.fromkeys(_NOTICES.values(), -1)
        self._must_load = True
        self._is_dirty = False
        self._wanted: dict[ResourcePattern, None] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self._runner: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read all entries, and follow their changes from then on."""
        from klamm.zk.client.zk_session import SessionListener

        await self._zk.ensure_paths(PERSISTENT_PATHS)
        for parent in self._last_seen:
            self._zk.on_children(parent, self._on_change)
        await self._load_all()
        self._must_load = False
        self._zk.add_listener(SessionListener(after_new_session=self._on_new_session))
        self._wake()

    async def stop(self) -> None:
        for parent in self._last_seen:
            self._zk.forget_children(parent)
        if self._runner is not None:
            self._runner.cancel()
            with contextlib.suppress(asyncio.CancelledError, ZkError):
                await self._runner
        self._release(self._waiting)

    def refresh(self, resources: Iterable[ResourcePattern]) -> asyncio.Future[None]:
        """Read these resources; done when the rules in force have them, or ZooKeeper cannot be reached."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wanted.update(dict.fromkeys(resources))
        self._waiting.append(done)
        self._wake()
        return done

    async def purge(self, now_ms: int) -> None:
        """Remove notices that every broker has had time to read."""
        for parent in self._last_seen:
            await notices.purge(self._zk, parent, now_ms)

    def _on_change(self, event: WatchEvent) -> None:
        self._is_dirty = True
        self._wake()

    async def _on_new_session(self) -> None:
        self._must_load = True
        self._wake()

    def _wake(self) -> None:
        if self._runner is None or self._runner.done():
            self._runner = asyncio.get_running_loop().create_task(self._run(), name="acl-changes")

    async def _run(self) -> None:
        waiting: list[asyncio.Future[None]] = []
        try:
            while self._must_load or self._is_dirty or self._wanted or self._waiting:
                waiting, self._waiting = self._waiting, []
                await self._catch_up()
                self._release(waiting)
        except ZkError as error:
            log.warning("reading access control entries failed: %s; the next session reads all", error)
            self._release(waiting)
        except Exception:
            log.exception("applying access control entries failed; the next change reads all")
            self._must_load = True
            self._release(waiting + self._waiting)
            self._waiting = []

    async def _catch_up(self) -> None:
        must_load, self._must_load = self._must_load, False
        self._is_dirty = False
        wanted, self._wanted = self._wanted, {}
        if must_load:
            await self._load_all()
            return
        for pattern, parent in _NOTICES.items():
            wanted.update(dict.fromkeys(await self._named_by_notices(pattern, parent)))
        if wanted:
            rules = self._authorizer.rules
            self._authorizer.replace_rules(await self._with_latest(rules, list(wanted)))

    def _release(self, waiting: list[asyncio.Future[None]]) -> None:
        for done in waiting:
            if not done.done():
                done.set_result(None)

    async def _named_by_notices(self, pattern: PatternType, parent: str) -> list[ResourcePattern]:
        names = await notices.watched(self._zk, parent)
        new = [f"{parent}/{name}" for name in names if notices.number(name) > self._last_seen[parent]]
        named = []
        for path, answer in zip(new, await self._zk.read_many(new), strict=True) if new else ():
            if answer is not None:
                try:
                    is_extended = pattern == PatternType.PREFIXED
                    named.append(stored.decode_acl_change(answer[0], is_extended=is_extended))
                except ValueError as error:
                    log.warning("ignoring the notice %s: %s", path, error)
        self._last_seen[parent] = max(self._last_seen[parent], notices.newest(names))
        return named

    async def _load_all(self) -> None:
        """Read everything. The watches are set before the reads, so no change in between is missed."""
        for parent in self._last_seen:
            self._last_seen[parent] = notices.newest(await notices.watched(self._zk, parent))
        resources: list[ResourcePattern] = []
        for pattern, root in _ROOTS.items():
            for title in await self._zk.get_children(root):
                kind = of_name(ResourceType, title)
                if kind not in SUPPORTED:
                    log.warning("ignoring the access control entries in %s/%s: unknown type", root, title)
                    continue
                names = await self._zk.get_children(f"{root}/{title}")
                resources += [ResourcePattern(kind, name, pattern) for name in names]
        self._authorizer.replace_rules(await self._with_latest(AclRules(), resources))

    async def _with_latest(self, rules: AclRules, resources: Sequence[ResourcePattern]) -> AclRules:
        """Return the rules with the entries of these resources as ZooKeeper has them."""
        for start in range(0, len(resources), _AT_ONCE):
            some = resources[start : start + _AT_ONCE]
            found = await self._zk.read_many([path_of(resource) for resource in some])
            rules = rules.changed(
                {
                    resource: frozenset() if answer is None else _decoded(resource, answer[0])
                    for resource, answer in zip(some, found, strict=True)
                }
            )
        return rules


def _decoded(resource: ResourcePattern, data: bytes | None) -> Entries:
    """Entries that cannot be decoded may deny something: until they are repaired, nothing is allowed there."""
    try:
        return stored.decode_acl(data, skip_unknown=True)
    except ValueError as error:
        log.error("denying all access to %s: its entries in ZooKeeper cannot be decoded: %s", resource, error)
        return _DENY_ALL
