"""A client that is not ours: kazoo, with its replies in the order of the wire and requests that it lacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import Create2, Delete, Exists, GetChildren2, GetData, SetData
from kazoo.security import ACL, Id

from klamm.zk.model import ops


def request(op: ops.ReadOp | ops.WriteOp, watcher: Callable[[Any], None] | None) -> Any:
    """kazoo's request for a single operation."""
    match op:
        case ops.GetData(path):
            return GetData(path, watcher)
        case ops.Exists(path):
            return Exists(path, watcher)
        case ops.GetChildren(path):
            return GetChildren2(path, watcher)
        case ops.Create(path, data, ephemeral, sequential, acl):
            rules = [ACL(a.perms, Id(a.scheme, a.id)) for a in acl]
            return Create2(path, data, rules, ephemeral | sequential << 1)
        case ops.SetData(path, data, version):
            return SetData(path, data, version)
        case ops.Delete(path, version):
            return Delete(path, version)
    raise TypeError(f"{op!r} cannot be sent alone")


class _DirectHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """Runs watch callbacks where they are read, in the order of the wire."""

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)


class KazooConnection:
    """`on_state` runs on kazoo's thread, and so does `on_event` for every watch event, undecoded."""

    def __init__(
        self, hosts: str, timeout_ms: int, on_state: Callable[[str], None], on_event: Callable[[bytes, int], None]
    ) -> None:
        self._client = KazooClient(hosts, timeout=timeout_ms / 1_000, handler=_DirectHandler())
        self._client._connection._read_watch_event = on_event
        self._client.add_listener(on_state)

    @property
    def session_id(self) -> int:
        return self._client._session_id or 0

    @property
    def last_zxid(self) -> int:
        return int(self._client.last_zxid)

    def start(self) -> None:
        self._client.start_async()

    def stop(self) -> None:
        self._client.stop()
        self._client.close()

    def submit(self, message: Any, result: Any) -> None:
        self._client._call(message, result)
