"""The chroot of `zookeeper.connect`: a prefix that is added to every path sent and removed from every path received.

New znodes get their access rules here too, because these follow from the path without the chroot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from klamm.zk.model.nodes import is_valid_path
from klamm.zk.model.ops import OPEN_ACL, Acl, Create, CreateResult, MultiResult, ReadOp, WriteOp

Op = TypeVar("Op", bound=ReadOp | WriteOp)


def split_hosts(connect: str) -> tuple[str, str]:
    """Split `host:port,host:port/chroot` into its two parts. Raises ValueError if the chroot is not a path."""
    hosts, slash, chroot = connect.partition("/")
    prefix = (slash + chroot).rstrip("/")
    if not hosts.strip(" ,") or (prefix and not is_valid_path(prefix)):
        raise ValueError(f"zookeeper.connect {connect!r}: host:port[,host:port...][/chroot] is expected")
    return hosts, prefix


class Chroot:
    def __init__(self, prefix: str, acl_of: Callable[[str], tuple[Acl, ...]] = lambda _: OPEN_ACL) -> None:
        self.prefix = prefix
        self.acl_of = acl_of

    def levels(self) -> list[str]:
        """Return the chroot and its parents, from the top. They must exist before any other znode."""
        parts = self.prefix.split("/")[1:]
        return ["/" + "/".join(parts[: n + 1]) for n in range(len(parts))]

    def full(self, path: str) -> str:
        return (self.prefix + path if path != "/" else self.prefix) if self.prefix else path

    def leave(self, full_path: str) -> str:
        return (full_path[len(self.prefix) :] or "/") if self.prefix else full_path

    def enter(self, op: Op) -> Op:
        """Return the operation as it is sent. A znode without rules of its own gets those of its path."""
        changes: dict[str, Any] = {"path": self.full(op.path)} if self.prefix else {}
        if isinstance(op, Create) and op.acl is OPEN_ACL and (acl := self.acl_of(op.path)) is not OPEN_ACL:
            changes["acl"] = acl
        return replace(op, **changes) if changes else op

    def leave_result(self, result: MultiResult) -> MultiResult:
        return replace(result, path=self.leave(result.path)) if isinstance(result, CreateResult) else result
