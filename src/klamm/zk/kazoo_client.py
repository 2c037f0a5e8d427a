"""Where klamm touches kazoo, which has no types: requests it lacks, results without locks, watches that survive.

Three things differ from kazoo's own client. Results and watch events are handed over on kazoo's connection thread in
the order of the wire, so a watch event is known before the reply of any later read. Requests are ours where kazoo has
none (multiRead, setWatches) or a slow one (multi). On a reconnect the watches are set again, which kazoo leaves out.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import (
    Create2,
    Delete,
    Exists,
    GetChildren2,
    GetData,
    SetData,
)
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import ACL, OPEN_ACL_UNSAFE, Id

from klamm.zk import jute, ops
from klamm.zk.jute import OpCode
from klamm.zk.ops import Code, EventType, MultiResult, Stat, WatchEvent, ZkError

_STAT: Final = struct.Struct(">qqqqiiiqiiq")
_MULTI_HEADER: Final = struct.Struct(">i?i")
_MULTI_END: Final = _MULTI_HEADER.pack(-1, True, -1)
_INT: Final = struct.Struct(">i")
_OPEN_ACL_BYTES: Final = struct.pack(">iii5si6s", 1, 31, 5, b"world", 6, b"anyone")
_EVENTS: Final = {
    "CREATED": EventType.CREATED,
    "DELETED": EventType.DELETED,
    "CHANGED": EventType.DATA_CHANGED,
    "CHILD": EventType.CHILDREN_CHANGED,
}
CONNECTED: Final[str] = KazooState.CONNECTED
SUSPENDED: Final[str] = KazooState.SUSPENDED


class Result(Protocol):
    """Where a reply goes. Both are called on kazoo's thread."""

    def set(self, value: Any) -> None: ...
    def set_exception(self, exception: BaseException) -> None: ...


class Connection(Protocol):
    """What a session needs of its client: `KazooConnection`, or a simulator's."""

    @property
    def session_id(self) -> int: ...
    @property
    def password(self) -> bytes: ...
    @property
    def has_expired(self) -> bool: ...
    def start(self) -> None: ...
    def stop(self) -> bool: ...
    def submit(self, request: Any, result: Result) -> None: ...
    def fail_pending(self) -> None: ...
    def drop_connection(self) -> None: ...
    def watch_data(self, paths: Sequence[str], on_data: Callable[[Any], None]) -> None: ...
    def restore_watches(
        self,
        data: Sequence[str],
        exist: Sequence[str],
        child: Sequence[str],
        on_data: Callable[[Any], None],
        on_child: Callable[[Any], None],
    ) -> None: ...


Connect = Callable[[str, int, Callable[[str], None]], Connection]
"""Makes the client of a session out of hosts, timeout in ms, and who hears of its state."""


class Multi:
    """A transaction; its reply is a list with one result an operation."""

    type = OpCode.MULTI

    def __init__(self, operations: Sequence[ops.WriteOp]) -> None:
        self.operations = operations

    def serialize(self) -> bytes:
        return b"".join(map(_multi_op_bytes, self.operations)) + _MULTI_END

    @staticmethod
    def deserialize(buffer: bytes, offset: int) -> list[MultiResult]:
        results: list[MultiResult] = []
        while True:
            code, done, _ = _MULTI_HEADER.unpack_from(buffer, offset)
            if done:
                return results
            result, offset = _multi_result(code, buffer, offset + 9)
            results.append(result)


def _multi_op_bytes(op: ops.WriteOp) -> bytes:
    path = jute.string_bytes(op.path)
    if isinstance(op, ops.Create):
        flags = _INT.pack(op.ephemeral | op.sequential << 1)
        return _header(OpCode.CREATE) + path + jute.buffer_bytes(op.data) + _acl_bytes(op.acl) + flags
    version = _INT.pack(op.version)
    if isinstance(op, ops.SetData):
        return _header(OpCode.SET_DATA) + path + jute.buffer_bytes(op.data) + version
    return _header(OpCode.DELETE if isinstance(op, ops.Delete) else OpCode.CHECK) + path + version


def _header(code: int) -> bytes:
    return _MULTI_HEADER.pack(code, False, -1)


def _acl_bytes(acl: Sequence[ops.Acl]) -> bytes:
    if acl is ops.OPEN_ACL:
        return _OPEN_ACL_BYTES
    rules = (_INT.pack(a.perms) + jute.string_bytes(a.scheme) + jute.string_bytes(a.id) for a in acl)
    return _INT.pack(len(acl)) + b"".join(rules)


def _multi_result(code: int, buffer: bytes, offset: int) -> tuple[MultiResult, int]:
    if code == OpCode.CREATE:
        path, offset = jute.read_string(buffer, offset)
        return ops.CreateResult(path), offset
    if code == OpCode.SET_DATA:
        return ops.SetDataResult(Stat._make(_STAT.unpack_from(buffer, offset))), offset + _STAT.size
    if code == OpCode.ERROR:
        return ops.ErrorResult(_known(_INT.unpack_from(buffer, offset)[0])), offset + 4
    return (ops.DeleteResult() if code == OpCode.DELETE else ops.CheckResult()), offset


def _known(code: int) -> Code:
    return Code(code) if code in Code._value2member_map_ else Code.SYSTEM_ERROR


class MultiRead:
    """Data and stat of many znodes in one reply (servers from 3.6 on): (data, stat), or the code of its error."""

    type = OpCode.MULTI_READ

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = paths

    def serialize(self) -> bytes:
        header = _header(OpCode.GET_DATA)
        return b"".join([header + jute.string_bytes(path) + b"\0" for path in self.paths]) + _MULTI_END

    @staticmethod
    def deserialize(buffer: bytes, offset: int) -> list[tuple[bytes | None, Stat] | Code]:
        results: list[tuple[bytes | None, Stat] | Code] = []
        unpack_header, unpack_int, unpack_stat = _MULTI_HEADER.unpack_from, _INT.unpack_from, _STAT.unpack_from
        while True:
            code, done, _ = unpack_header(buffer, offset)
            if done:
                return results
            length = unpack_int(buffer, offset + 9)[0]
            offset += 13
            if code == OpCode.ERROR:
                results.append(_known(length))
                continue
            data = None if length < 0 else buffer[offset : offset + length]
            offset += max(length, 0)
            results.append((data, Stat._make(unpack_stat(buffer, offset))))
            offset += _STAT.size


class SetWatches:
    type = OpCode.SET_WATCHES

    def __init__(self, zxid: int, data: Sequence[str], exist: Sequence[str], child: Sequence[str]) -> None:
        self.wanted = zxid, data, exist, child

    def serialize(self) -> bytes:
        zxid, *lists = self.wanted
        return struct.pack(">q", zxid) + b"".join(map(jute.strings_bytes, lists))

    @staticmethod
    def deserialize(buffer: bytes, offset: int) -> bool:
        return True


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
            return Create2(path, data, _acl_of(acl), ephemeral | sequential << 1)
        case ops.SetData(path, data, version):
            return SetData(path, data, version)
        case ops.Delete(path, version):
            return Delete(path, version)
    raise TypeError(f"{op!r} cannot be sent alone")


def _acl_of(acl: Sequence[ops.Acl]) -> list[Any]:
    if acl is ops.OPEN_ACL:
        return list(OPEN_ACL_UNSAFE)
    return [ACL(a.perms, Id(a.scheme, a.id)) for a in acl]


def error_of(exception: BaseException, path: str = "") -> ZkError:
    """kazoo's exception as ours. What kazoo raises without a code means that the answer was lost."""
    code = getattr(exception, "code", None)
    if isinstance(exception, KazooException) and isinstance(code, int):
        return ops.error_for(code, path)
    return ops.ConnectionLoss(path, f"no answer from ZooKeeper for {path or 'a request'}: {exception}")


def event_of(event: Any) -> WatchEvent | None:
    """None for kazoo's own notices about the connection."""
    kind = _EVENTS.get(event.type)
    return None if kind is None else WatchEvent(kind, event.path)


class _DirectHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """Runs watch callbacks where they are read, in the order of the wire."""

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)


class KazooConnection:
    """A session's kazoo client. `on_state` runs on kazoo's thread; while it runs, no new session is made."""

    def __init__(self, hosts: str, timeout_ms: int, on_state: Callable[[str], None]) -> None:
        handler = _DirectHandler()
        retry = KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=1.0, sleep_func=handler.sleep_func)
        self._client = KazooClient(hosts, timeout=timeout_ms / 1_000, handler=handler, connection_retry=retry)
        self._client.add_listener(on_state)

    @property
    def session_id(self) -> int:
        return self._client._session_id or 0

    @property
    def password(self) -> bytes:
        return bytes(self._client._session_passwd or b"")

    @property
    def last_zxid(self) -> int:
        return int(self._client.last_zxid)

    @property
    def has_expired(self) -> bool:
        return bool(self._client._state == KeeperState.EXPIRED_SESSION)

    def start(self) -> None:
        self._client.start_async()

    def stop(self) -> bool:
        """Ends the session; blocks until kazoo's threads are gone. Whether a server confirmed that it has ended."""
        client = self._client
        was_connected, seen = bool(client.connected), list[str]()
        client.add_listener(seen.append)
        client.stop()
        client.close()
        return was_connected and SUSPENDED not in seen

    def submit(self, request: Any, result: Result) -> None:
        self._client._call(request, result)

    def fail_pending(self) -> None:
        """Answers everything that is under way with the error of the present state."""
        self._client._notify_pending(self._client._state)

    def watch_data(self, paths: Sequence[str], on_data: Callable[[Any], None]) -> None:
        """Who hears of changes of these paths, which the server watches already. Called on kazoo's thread."""
        for path in paths:
            self._client._data_watchers[path].add(on_data)

    def restore_watches(
        self,
        data: Sequence[str],
        exist: Sequence[str],
        child: Sequence[str],
        on_data: Callable[[Any], None],
        on_child: Callable[[Any], None],
    ) -> None:
        """Sets watches again on a new connection, ahead of every queued request. Called while `on_state` runs."""
        client = self._client
        for path in (*data, *exist):
            client._data_watchers[path].add(on_data)
        for path in child:
            client._child_watchers[path].add(on_child)
        for message in _set_watches_messages(self.last_zxid, data, exist, child):
            client._queue.appendleft((message, None))
            client._connection._write_sock.send(b"\0")

    def drop_connection(self) -> None:
        """Cuts the TCP connection, as a network fault would; the session goes on. For tests."""
        socket = self._client._connection._socket
        if socket is not None:
            socket.shutdown(2)


def _set_watches_messages(
    zxid: int, data: Sequence[str], exist: Sequence[str], child: Sequence[str], limit: int = 1_000
) -> list[SetWatches]:
    """In pieces that stay far below the size limit of a request."""
    longest = max(len(data), len(exist), len(child))
    pieces = [slice(start, start + limit) for start in range(0, longest, limit)]
    return [SetWatches(zxid, data[piece], exist[piece], child[piece]) for piece in pieces]
