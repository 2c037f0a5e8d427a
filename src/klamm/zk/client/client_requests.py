"""Encodes ZooKeeper's requests and decodes their replies, without I/O.

A truncated reply raises struct.error or MarshallingError, and the connection is closed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, Protocol

from klamm.zk.model import jute, ops
from klamm.zk.model.jute import OpCode
from klamm.zk.model.ops import Code, MultiResult, Stat, WatchEvent

_STAT: Final = struct.Struct(">qqqqiiiqiiq")
_MULTI_HEADER: Final = struct.Struct(">i?i")
_MULTI_END: Final = _MULTI_HEADER.pack(-1, True, -1)
_INT: Final = struct.Struct(">i")
_OPEN_ACL_BYTES: Final = struct.pack(">iii5si6s", 1, 31, 5, b"world", 6, b"anyone")
_WATCHES_BYTES: Final = 200_000

Watcher = Callable[[WatchEvent], None]


class Request(Protocol):
    @property
    def type(self) -> int: ...
    def serialize(self) -> bytes: ...
    def deserialize(self, buffer: bytes, offset: int) -> Any: ...


class Read:
    """One read.

    Its reply is (data, stat), (children, stat), or for Exists the stat, None if the znode does not exist.
    """

    __slots__ = ("op", "type", "watcher")
    _TYPES: ClassVar = {ops.GetData: OpCode.GET_DATA, ops.Exists: OpCode.EXISTS, ops.GetChildren: OpCode.GET_CHILDREN2}

    def __init__(self, op: ops.ReadOp, watcher: Watcher | None = None) -> None:
        self.op = op
        self.watcher = watcher
        self.type: int = self._TYPES[type(op)]

    def serialize(self) -> bytes:
        return jute.string_bytes(self.op.path) + (b"\0" if self.watcher is None else b"\1")

    def deserialize(self, buffer: bytes, offset: int) -> Any:
        if self.type == OpCode.EXISTS:
            return _stat(buffer, offset)
        if self.type == OpCode.GET_DATA:
            data, offset = jute.read_buffer(buffer, offset)
            return data, _stat(buffer, offset)
        children, offset = jute.read_strings(buffer, offset)
        return children, _stat(buffer, offset)


class Write:
    """One write. Its reply is (path, stat) for a Create, the stat for a SetData, and None for a Delete."""

    __slots__ = ("op", "type")
    _TYPES: ClassVar = {ops.Create: OpCode.CREATE2, ops.SetData: OpCode.SET_DATA, ops.Delete: OpCode.DELETE}

    def __init__(self, op: ops.Create | ops.SetData | ops.Delete) -> None:
        self.op = op
        self.type: int = self._TYPES[type(op)]

    def serialize(self) -> bytes:
        return _write_bytes(self.op)

    def deserialize(self, buffer: bytes, offset: int) -> Any:
        if self.type == OpCode.CREATE2:
            path, offset = jute.read_string(buffer, offset)
            return path, _stat(buffer, offset)
        return _stat(buffer, offset) if self.type == OpCode.SET_DATA else None


class Multi:
    """A transaction. Its reply is a list with one result per operation."""

    type = OpCode.MULTI

    def __init__(self, operations: Sequence[ops.WriteOp]) -> None:
        self.operations = operations

    def serialize(self) -> bytes:
        return b"".join([_header(_MULTI_TYPES[type(op)]) + _write_bytes(op) for op in self.operations]) + _MULTI_END

    @staticmethod
    def deserialize(buffer: bytes, offset: int) -> list[MultiResult]:
        results: list[MultiResult] = []
        while True:
            code, done, _ = _MULTI_HEADER.unpack_from(buffer, offset)
            if done:
                return results
            result, offset = _multi_result(code, buffer, offset + 9)
            results.append(result)


_MULTI_TYPES: Final = {
    ops.Create: OpCode.CREATE,
    ops.SetData: OpCode.SET_DATA,
    ops.Delete: OpCode.DELETE,
    ops.Check: OpCode.CHECK,
}


def _write_bytes(op: ops.WriteOp) -> bytes:
    path = jute.string_bytes(op.path)
    if isinstance(op, ops.Create):
        return path + jute.buffer_bytes(op.data) + _acl_bytes(op.acl) + _INT.pack(op.ephemeral | op.sequential << 1)
    if isinstance(op, ops.SetData):
        return path + jute.buffer_bytes(op.data) + _INT.pack(op.version)
    return path + _INT.pack(op.version)


def _header(code: int) -> bytes:
    return _MULTI_HEADER.pack(code, False, -1)


def _acl_bytes(acl: Sequence[ops.Acl]) -> bytes:
    if acl is ops.OPEN_ACL:
        return _OPEN_ACL_BYTES
    rules = (_INT.pack(a.perms) + jute.string_bytes(a.scheme) + jute.string_bytes(a.id) for a in acl)
    return _INT.pack(len(acl)) + b"".join(rules)


def _stat(buffer: bytes, offset: int) -> Stat:
    return Stat._make(_STAT.unpack_from(buffer, offset))


def _multi_result(code: int, buffer: bytes, offset: int) -> tuple[MultiResult, int]:
    if code == OpCode.CREATE:
        path, offset = jute.read_string(buffer, offset)
        return ops.CreateResult(path), offset
    if code == OpCode.SET_DATA:
        return ops.SetDataResult(_stat(buffer, offset)), offset + _STAT.size
    if code == OpCode.ERROR:
        return ops.ErrorResult(_known(_INT.unpack_from(buffer, offset)[0])), offset + 4
    return (ops.DeleteResult() if code == OpCode.DELETE else ops.CheckResult()), offset


def _known(code: int) -> Code:
    return Code(code) if code in Code._value2member_map_ else Code.SYSTEM_ERROR


class MultiRead:
    """Reads many znodes at once (servers from 3.6 on). Each result is (data, stat) or an error code."""

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


class ReadRules:
    """Reads the access rules of a znode. Its reply is (rules, stat)."""

    type = OpCode.GET_ACL

    def __init__(self, path: str) -> None:
        self.path = path

    def serialize(self) -> bytes:
        return jute.string_bytes(self.path)

    @staticmethod
    def deserialize(buffer: bytes, offset: int) -> tuple[tuple[ops.Acl, ...], Stat]:
        rules, offset = jute.read_rules(buffer, offset)
        return rules, _stat(buffer, offset)


class WriteRules:
    """Sets the access rules of a znode. Its reply is the stat."""

    type = OpCode.SET_ACL

    def __init__(self, op: ops.SetAcl) -> None:
        self.op = op

    def serialize(self) -> bytes:
        return jute.set_acl_bytes(self.op)

    @staticmethod
    def deserialize(buffer: bytes, offset: int) -> Stat:
        return _stat(buffer, offset)


class SetWatches:
    type = OpCode.SET_WATCHES

    def __init__(self, zxid: int, data: Sequence[str], exist: Sequence[str], child: Sequence[str]) -> None:
        self.wanted = zxid, data, exist, child

    def serialize(self) -> bytes:
        zxid, *lists = self.wanted
        return struct.pack(">q", zxid) + b"".join(map(jute.strings_bytes, lists))

    @staticmethod
    def deserialize(buffer: bytes, offset: int) -> None:
        return None


def set_watches(zxid: int, data: Sequence[str], exist: Sequence[str], child: Sequence[str]) -> list[SetWatches]:
    """Split the watches into requests far below the size limit, unless a single path exceeds it."""
    pieces: list[SetWatches] = []
    lists: tuple[list[str], list[str], list[str]] = ([], [], [])
    size = _WATCHES_BYTES
    for kind, paths in enumerate((data, exist, child)):
        for path in paths:
            if size >= _WATCHES_BYTES:
                lists = ([], [], [])
                pieces.append(SetWatches(zxid, *lists))
                size = 0
            lists[kind].append(path)
            size += 4 * len(path)
    return pieces


class Sync:
    """Makes the server catch up with the leader of its ensemble before it answers later requests."""

    type = OpCode.SYNC

    def __init__(self, path: str) -> None:
        self.path = path

    def serialize(self) -> bytes:
        return jute.string_bytes(self.path)

    @staticmethod
    def deserialize(buffer: bytes, offset: int) -> None:
        return None


class Close:
    type = OpCode.CLOSE_SESSION

    @staticmethod
    def serialize() -> bytes:
        return b""

    @staticmethod
    def deserialize(buffer: bytes, offset: int) -> None:
        return None
