"""ZnodeGuard: every znode of an embedded server with a shared secret carries an access rule for that secret.

Clients choose the rules of the znodes that they create, and `/` and `/zookeeper` are older than any client. So the
server itself completes the rules: those of all znodes when it starts, and those of a new znode or of a setAcl at once,
before it answers. Each change of rules is a logged setAcl like that of a client, except that it does not count in
`aversion`: the answer to the request has the version that ZooKeeper would return. A start therefore also guards a
directory that was used without a secret, and replaces the rules of an earlier secret.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from klamm.zk.model import jute
from klamm.zk.model.acl import SERVER, is_allowed
from klamm.zk.model.default_acls import is_sensitive
from klamm.zk.model.jute import OpCode
from klamm.zk.model.ops import OPEN_ACL, Acl, Id, Perms, SetAcl

if TYPE_CHECKING:
    from klamm.zk.model.tree import ZnodeTree
    from klamm.zk.server.database import LoggedTree

log = logging.getLogger(__name__)


def guarded_acl(path: str, acl: tuple[Acl, ...], owner: Id) -> tuple[Acl, ...]:
    """Return rules under which the owner may do all that anybody could, and others may at most read; no credentials."""
    rules = [Acl(_union(acl), owner.scheme, owner.id)]
    if is_allowed(acl, Perms.READ, ()) and not is_sensitive(path):
        rules.append(Acl(Perms.READ, "world", "anyone"))
    return tuple(rules)


def opened_acl(acl: tuple[Acl, ...], owner: Id) -> tuple[Acl, ...]:
    """Return the rules with everybody in place of the owner."""
    if not any((rule.scheme, rule.id) == owner for rule in acl):
        return acl
    opened = (Acl(_union(acl), "world", "anyone"),)
    return OPEN_ACL if opened == OPEN_ACL else opened


def _union(acl: tuple[Acl, ...]) -> int:
    return reduce(or_, (rule.perms for rule in acl or OPEN_ACL))  # ZooKeeper: without rules everything is allowed


class ZnodeGuard:
    """Completes the rules of a tree. Without `is_on` it does the opposite once, at the start: znodes are open again."""

    def __init__(self, tree: ZnodeTree, logged: LoggedTree, owner: Id, *, is_on: bool) -> None:
        self._tree = tree
        self._logged = logged
        self._owner = owner
        self._is_on = is_on
        self.unfinished: list[str] = []
        """New znodes, and those of a setAcl, whose rules are not complete."""

    def start(self, new_session: Callable[[], int], now_ms: int) -> None:
        """Set the rules of all znodes, in a session of the server's own that ends afterwards."""
        paths = [path for path in self._tree.nodes if not self._is_complete(path)]
        if paths:
            session_id = new_session()
            self._set_rules(paths, session_id, now_ms)
            self._logged.close_session(session_id, now_ms)
            verb = "guards" if self._is_on else "no longer guards"
            log.info("The embedded ZooKeeper %s %d znodes with a rule for its shared secret", verb, len(paths))
        if self._is_on:
            self._tree.on_rules = self._on_rules

    def finish(self, session_id: int, now_ms: int) -> None:
        """Complete the rules that the last request of this session has left incomplete."""
        paths, self.unfinished = self.unfinished, []
        self._set_rules(paths, session_id, now_ms)

    def _on_rules(self, path: str) -> None:
        has_survived = path in self._tree.nodes  # a multi may create a znode and delete it
        if has_survived and not self._is_complete(path):
            self.unfinished.append(path)

    def _set_rules(self, paths: list[str], session_id: int, now_ms: int) -> None:
        for path in paths:
            body = jute.set_acl_bytes(SetAcl(path, self._rules(path)))
            self._logged.write(session_id, OpCode.SET_ACL, body, now_ms, SERVER)

    def _is_complete(self, path: str) -> bool:
        return self._rules(path) == self._tree.nodes[path].acl

    def _rules(self, path: str) -> tuple[Acl, ...]:
        acl = self._tree.nodes[path].acl
        return guarded_acl(path, acl, self._owner) if self._is_on else opened_acl(acl, self._owner)
