"""A chroot: the prefix of `zookeeper.connect` that every path gets on the way out and loses on the way in."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from klamm.zk.model.nodes import is_valid_path
from klamm.zk.model.ops import CreateResult, MultiResult, ReadOp, WriteOp

Op = TypeVar("Op", bound=ReadOp | WriteOp)


def split_hosts(connect: str) -> tuple[str, str]:
    """`host:port,host:port/chroot` as its two parts. Raises ValueError for a chroot that is not a path."""
    hosts, slash, chroot = connect.partition("/")
    prefix = (slash + chroot).rstrip("/")
    if not hosts.strip(" ,") or (prefix and not is_valid_path(prefix)):
        raise ValueError(f"zookeeper.connect {connect!r}: host:port[,host:port...][/chroot] is expected")
    return hosts, prefix


class Chroot:
    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def levels(self) -> list[str]:
        """The chroot and its parents, from the top: what must exist before anything else can."""
        parts = self.prefix.split("/")[1:]
        return ["/" + "/".join(parts[: n + 1]) for n in range(len(parts))]

    def full(self, path: str) -> str:
        return (self.prefix + path if path != "/" else self.prefix) if self.prefix else path

    def leave(self, full_path: str) -> str:
        return (full_path[len(self.prefix) :] or "/") if self.prefix else full_path

    def enter(self, op: Op) -> Op:
        return replace(op, path=self.full(op.path)) if self.prefix else op

    def leave_result(self, result: MultiResult) -> MultiResult:
        return replace(result, path=self.leave(result.path)) if isinstance(result, CreateResult) else result
