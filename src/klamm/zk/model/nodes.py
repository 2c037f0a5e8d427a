"""The content of a tree: znodes and sessions. Only their owner, the `ZnodeTree`, changes them."""

from __future__ import annotations

import re
from typing import Final

from klamm.zk.model.ops import OPEN_ACL, Acl, Stat

_INVALID: Final = re.compile(
    "^[^/]|//|/\\.{1,2}(?:/|\\Z)|./\\Z|[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]"
)


def is_valid_path(path: str) -> bool:
    """ZooKeeper's rule: absolute, no empty, `.` or `..` part, no slash at the end, no control or private characters."""
    return bool(path) and _INVALID.search(path) is None


class Znode:
    """One znode. `creations` counts all children ever created: the next sequential number, and half of `cversion`."""

    __slots__ = (
        "acl",
        "aversion",
        "children",
        "creations",
        "ctime",
        "czxid",
        "data",
        "ephemeral_owner",
        "mtime",
        "mzxid",
        "pzxid",
        "version",
    )

    def __init__(
        self,
        data: bytes | None,
        acl: tuple[Acl, ...] = OPEN_ACL,
        *,
        czxid: int = 0,
        now_ms: int = 0,
        ephemeral_owner: int = 0,
        children: dict[str, None] | None = None,
    ) -> None:
        self.data = data
        self.acl = acl
        self.czxid = self.mzxid = self.pzxid = czxid
        self.ctime = self.mtime = now_ms
        self.version = self.aversion = self.creations = 0
        self.ephemeral_owner = ephemeral_owner
        self.children = children

    def stat(self) -> Stat:
        data, children = self.data, self.children
        num_children = 0 if children is None else len(children)
        return Stat(
            self.czxid,
            self.mzxid,
            self.ctime,
            self.mtime,
            self.version,
            self.creations * 2 - num_children,
            self.aversion,
            self.ephemeral_owner,
            0 if data is None else len(data),
            num_children,
            self.pzxid,
        )


class Session:
    """A client's session. It survives its connections; its ephemeral znodes end with it."""

    __slots__ = ("deadline_ms", "ephemerals", "id", "password", "timeout_ms")

    def __init__(self, session_id: int, timeout_ms: int, password: bytes) -> None:
        self.id = session_id
        self.timeout_ms = timeout_ms
        self.password = password
        self.deadline_ms = 0
        self.ephemerals: dict[str, None] = {}
