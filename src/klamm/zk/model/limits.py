"""Limits of the embedded server on requests of one client, and the errors for requests beyond them.

ZooKeeper has most of these bounds only through its heap. They are far above the needs of Kafka's and klamm's brokers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from klamm.zk.model.ops import (
    BadArguments,
    Create,
    GetChildrenResult,
    GetDataResult,
    Id,
    InvalidAcl,
    MarshallingError,
    SetAcl,
    ThrottledOp,
)

MAX_CONNECTIONS: Final = 4_000
"""Maximum connections of all hosts, unless the process has fewer file descriptors."""
MAX_CONNECT_BYTES: Final = 1_024
"""Size of the first frame of a connection: a real one has 45 bytes."""
MAX_CREDENTIALS: Final = 32
MAX_CREDENTIAL_BYTES: Final = 4_096
"""Maximum size of all identities of a connection together. Every record of the log contains them."""
MAX_PATH_BYTES: Final = 8_192
MAX_ACL_ENTRIES: Final = 64
"""Maximum number of access rules, after `auth` was replaced by the identities of the connection."""
MAX_ANSWER_BYTES: Final = 16 << 20
MAX_OPERATIONS: Final = 5_000
"""Maximum operations of a multi or multiRead: one request is executed in one step, and the smallest operations have 15
bytes.
"""
MAX_RESTORED_WATCHES: Final = 25_000
"""Paths of a setWatches. ZooKeeper's own client sends at most 128 KiB of them at once."""
MAX_SESSIONS: Final = 20_000
MAX_EPHEMERALS_PER_SESSION: Final = 20_000
"""Maximum ephemeral znodes of a session: all of them are removed in one step when it ends."""
MAX_WATCHES_PER_CONNECTION: Final = 250_000
MAX_WATCHES: Final = 1_000_000
MAX_WATCH_BYTES_PER_CONNECTION: Final = 32 << 20
MAX_WATCH_BYTES: Final = 128 << 20
"""Maximum size of all watched paths together."""


class AnswerTooLarge(MarshallingError):
    """The answer would exceed `MAX_ANSWER_BYTES`: ask for less at once."""


def path_bytes(path: str) -> int:
    return len(path) if path.isascii() else len(path.encode())


def check_path(path: str) -> int:
    """Return the size of a path. Raises BadArguments if it is too long."""
    size = path_bytes(path)
    if size > MAX_PATH_BYTES:
        raise BadArguments(path[:64], f"a path of {size} bytes exceeds the limit of {MAX_PATH_BYTES}")
    return size


def check_write(op: Create | SetAcl, auth: Sequence[Id]) -> None:
    """Refuse a path or an access list that would take more memory than its request suggests."""
    if isinstance(op, Create):
        check_path(op.path)
    if isinstance(op, Create | SetAcl) and len(op.acl) > 1:
        _check_acl(op, auth)


def _check_acl(op: Create | SetAcl, auth: Sequence[Id]) -> None:
    entries = sum(len(auth) if entry.scheme == "auth" else 1 for entry in op.acl)
    if entries > MAX_ACL_ENTRIES:
        raise InvalidAcl(op.path, f"{entries} access rules exceed the limit of {MAX_ACL_ENTRIES}")


def check_ephemerals(count: int) -> None:
    if count > MAX_EPHEMERALS_PER_SESSION:
        raise ThrottledOp(message=f"{count} ephemeral znodes of a session exceed {MAX_EPHEMERALS_PER_SESSION}")


def answer_bytes(result: GetDataResult | GetChildrenResult) -> int:
    """Return a lower bound for the size of an answer."""
    if isinstance(result, GetDataResult):
        return len(result.data or b"")
    return sum(map(len, result.children)) + 4 * len(result.children)


def check_answer(size: int) -> None:
    if size > MAX_ANSWER_BYTES:
        raise AnswerTooLarge(message=f"an answer of {size} bytes or more exceeds the limit of {MAX_ANSWER_BYTES}")


class WatchBudget:
    """Counts watches and the bytes of their paths, per watcher and in total."""

    __slots__ = ("_held", "count", "size_bytes")

    def __init__(self) -> None:
        self.count = self.size_bytes = 0
        self._held: dict[int, tuple[int, int]] = {}

    def check(self, watcher: int, paths: Sequence[str]) -> None:
        """Raise ThrottledOp if the watcher would exceed its limit, BadArguments if a path is too long."""
        self._check(watcher, len(paths), sum(map(check_path, paths)))

    def take(self, watcher: int, path: str) -> None:
        """Count one more watch, or raise as `check` does."""
        size = check_path(path)
        count, held = self._check(watcher, 1, size)
        self._held[watcher] = count + 1, held + size
        self.count += 1
        self.size_bytes += size

    def _check(self, watcher: int, more: int, more_bytes: int) -> tuple[int, int]:
        """Return the number and the bytes of the watcher's watches."""
        count, size = held = self._held.get(watcher, (0, 0))
        if (
            count + more > MAX_WATCHES_PER_CONNECTION
            or size + more_bytes > MAX_WATCH_BYTES_PER_CONNECTION
            or self.count + more > MAX_WATCHES
            or self.size_bytes + more_bytes > MAX_WATCH_BYTES
        ):
            raise ThrottledOp(message=f"{more} more watches exceed the limits: {count} are set, {self.count} in all")
        return held

    def release(self, watcher: int, count: int, size_bytes: int) -> None:
        held, size = self._held.get(watcher, (0, 0))
        if held > count:
            self._held[watcher] = held - count, size - size_bytes
        else:
            self._held.pop(watcher, None)
        self.count -= count
        self.size_bytes -= size_bytes

    def drop(self, watcher: int) -> None:
        self.release(watcher, *self._held.get(watcher, (0, 0)))
