"""ZooKeeper's wire format: requests as the server reads them, replies as it writes them. Sans-IO.

Every length is checked against the available bytes. Decoders raise only `MarshallingError` (an unreadable request) and
`Unimplemented` (an unsupported kind of znode).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, assert_never

from klamm.zk.model.ops import (
    OPEN_ACL,
    Acl,
    Check,
    CheckResult,
    Create,
    CreateResult,
    Delete,
    DeleteResult,
    ErrorResult,
    GetAclResult,
    GetChildren,
    GetChildrenResult,
    GetData,
    GetDataResult,
    MarshallingError,
    MultiResult,
    RequestTooLarge,
    SetAcl,
    SetData,
    SetDataResult,
    Stat,
    Unimplemented,
    WatchEvent,
    WriteOp,
)


class OpCode(IntEnum):
    ERROR = -1
    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_ACL = 6
    SET_ACL = 7
    GET_CHILDREN = 8
    SYNC = 9
    PING = 11
    GET_CHILDREN2 = 12
    CHECK = 13
    MULTI = 14
    CREATE2 = 15
    RECONFIG = 16
    MULTI_READ = 22
    AUTH = 100
    SET_WATCHES = 101
    SASL = 102
    SET_WATCHES2 = 105
    CREATE_SESSION = -10
    CLOSE_SESSION = -11


NOTIFICATION_XID: Final = -1
PING_XID: Final = -2
_EPHEMERAL, _SEQUENTIAL = 1, 2
_SYNC_CONNECTED: Final = 3

_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_HEADER: Final = struct.Struct(">ii")
_REPLY: Final = struct.Struct(">iiqi")
_STAT: Final = struct.Struct(">qqqqiiiqiiq")
_MULTI_HEADER: Final = struct.Struct(">i?i")
_CONNECT_REQUEST: Final = struct.Struct(">iqiqi")
_CONNECT_RESPONSE: Final = struct.Struct(">iiiqi")
_NOTIFICATION: Final = struct.Struct(">iiqiiii")
_MULTI_END: Final = _MULTI_HEADER.pack(-1, True, -1)
_OPEN_ACL_BYTES: Final = struct.pack(">iii5si6s", 1, 31, 5, b"world", 6, b"anyone")


class ConnectRequest(NamedTuple):
    last_zxid_seen: int
    timeout_ms: int
    session_id: int
    password: bytes


class SetWatches(NamedTuple):
    relative_zxid: int
    data: list[str]
    exist: list[str]
    child: list[str]
    persistent: int
    """The number of persistent watches that the client requests; they are not supported."""


# --- primitives ------------------------------------------------------------------------------------------------------


def read_int(buf: bytes, pos: int) -> tuple[int, int]:
    if len(buf) < pos + 4:
        raise MarshallingError(message=f"an int is missing at byte {pos}")
    return _INT.unpack_from(buf, pos)[0], pos + 4


def read_long(buf: bytes, pos: int) -> tuple[int, int]:
    if len(buf) < pos + 8:
        raise MarshallingError(message=f"a long is missing at byte {pos}")
    return _LONG.unpack_from(buf, pos)[0], pos + 8


def read_buffer(buf: bytes, pos: int) -> tuple[bytes | None, int]:
    length, pos = read_int(buf, pos)
    if length == -1:
        return None, pos
    end = pos + length
    if length < 0 or end > len(buf):
        raise MarshallingError(message=f"a buffer of {length} bytes does not fit at byte {pos}")
    return buf[pos:end], end


def read_string(buf: bytes, pos: int) -> tuple[str, int]:
    """Read a string; null is read as empty, because no request distinguishes them."""
    raw, pos = read_buffer(buf, pos)
    try:
        return (raw or b"").decode(), pos
    except UnicodeDecodeError as error:
        raise MarshallingError(message=f"a string is not UTF-8 before byte {pos}") from error


def read_bool(buf: bytes, pos: int) -> tuple[bool, int]:
    if len(buf) <= pos:
        raise MarshallingError(message=f"a boolean is missing at byte {pos}")
    return buf[pos] != 0, pos + 1


def read_strings(buf: bytes, pos: int) -> tuple[list[str], int]:
    count, pos = read_int(buf, pos)
    if count * 4 > len(buf) - pos:
        raise MarshallingError(message=f"{count} strings do not fit at byte {pos}")
    values = []
    for _ in range(count):
        value, pos = read_string(buf, pos)
        values.append(value)
    return values, pos


def read_rules(buf: bytes, pos: int) -> tuple[tuple[Acl, ...], int]:
    if buf.startswith(_OPEN_ACL_BYTES, pos):
        return OPEN_ACL, pos + len(_OPEN_ACL_BYTES)
    count, pos = read_int(buf, pos)
    if count * 12 > len(buf) - pos:
        raise MarshallingError(message=f"{count} access rules do not fit at byte {pos}")
    rules = []
    for _ in range(count):
        perms, pos = read_int(buf, pos)
        scheme, pos = read_string(buf, pos)
        who, pos = read_string(buf, pos)
        rules.append(Acl(perms, scheme, who))
    return tuple(rules), pos


def buffer_bytes(value: bytes | None) -> bytes:
    return b"\xff\xff\xff\xff" if value is None else _INT.pack(len(value)) + value


def string_bytes(value: str) -> bytes:
    raw = value.encode()
    return _INT.pack(len(raw)) + raw


def strings_bytes(values: Sequence[str]) -> bytes:
    return _INT.pack(len(values)) + b"".join(map(string_bytes, values))


def stat_bytes(stat: Stat) -> bytes:
    return _STAT.pack(*stat)


# --- requests --------------------------------------------------------------------------------------------------------


def read_header(frame: bytes) -> tuple[int, int, bytes]:
    """Return xid, operation code and body of a request frame."""
    if len(frame) < 8:
        raise MarshallingError(message="a request is shorter than its header")
    xid, opcode = _HEADER.unpack_from(frame)
    return xid, opcode, frame[8:]


def read_connect(frame: bytes) -> ConnectRequest:
    if len(frame) < _CONNECT_REQUEST.size:
        raise MarshallingError(message="a connect request is too short")
    _, last_zxid, timeout_ms, session_id, _ = _CONNECT_REQUEST.unpack_from(frame)
    password, _ = read_buffer(frame, _CONNECT_REQUEST.size - 4)
    return ConnectRequest(last_zxid, timeout_ms, session_id, password or b"")


def read_create(buf: bytes, pos: int = 0) -> tuple[Create, int]:
    path, pos = read_string(buf, pos)
    data, pos = read_buffer(buf, pos)
    acl, pos = read_rules(buf, pos)
    flags, pos = read_int(buf, pos)
    if not 0 <= flags <= 3:
        raise Unimplemented(path, f"create mode {flags} of {path}: container and TTL znodes are not supported")
    return Create(path, data, bool(flags & _EPHEMERAL), bool(flags & _SEQUENTIAL), acl), pos


def read_set_data(buf: bytes, pos: int = 0) -> tuple[SetData, int]:
    path, pos = read_string(buf, pos)
    data, pos = read_buffer(buf, pos)
    version, pos = read_int(buf, pos)
    return SetData(path, data, version), pos


def read_delete(buf: bytes, pos: int = 0) -> tuple[Delete, int]:
    path, pos = read_string(buf, pos)
    version, pos = read_int(buf, pos)
    return Delete(path, version), pos


def read_check(buf: bytes, pos: int = 0) -> tuple[Check, int]:
    path, pos = read_string(buf, pos)
    version, pos = read_int(buf, pos)
    return Check(path, version), pos


def read_set_acl(buf: bytes, pos: int = 0) -> tuple[SetAcl, int]:
    path, pos = read_string(buf, pos)
    acl, pos = read_rules(buf, pos)
    version, pos = read_int(buf, pos)
    return SetAcl(path, acl, version), pos


def set_acl_bytes(op: SetAcl) -> bytes:
    return string_bytes(op.path) + _rules_bytes(op.acl) + _INT.pack(op.version)


def read_path_and_watch(buf: bytes, pos: int = 0) -> tuple[str, bool, int]:
    path, pos = read_string(buf, pos)
    watch, pos = read_bool(buf, pos)
    return path, watch, pos


def read_multi(buf: bytes, max_ops: int | None = None) -> tuple[list[int], list[WriteOp]]:
    """Return the operations of a multi and their codes: `create` and `create2` differ only in the answer.

    Raises RequestTooLarge for more than `max_ops` operations.
    """
    codes: list[int] = []
    ops: list[WriteOp] = []
    op: WriteOp
    pos = 0
    while (header := _multi_header(buf, pos)) is not None:
        code, pos = header
        match code:
            case OpCode.CREATE | OpCode.CREATE2:
                op, pos = read_create(buf, pos)
            case OpCode.SET_DATA:
                op, pos = read_set_data(buf, pos)
            case OpCode.DELETE:
                op, pos = read_delete(buf, pos)
            case OpCode.CHECK:
                op, pos = read_check(buf, pos)
            case _:
                raise MarshallingError(message=f"operation {code} has no place in a multi")
        codes.append(code)
        ops.append(op)
        _check_count(len(ops), max_ops)
    return codes, ops


def read_multi_read(buf: bytes, max_ops: int | None = None) -> list[GetData | GetChildren]:
    """Watch flags are dropped: ZooKeeper sets no watches in a multiRead either.

    Raises RequestTooLarge for more than `max_ops` operations.
    """
    ops: list[GetData | GetChildren] = []
    pos = 0
    while (header := _multi_header(buf, pos)) is not None:
        code, pos = header
        path, _, pos = read_path_and_watch(buf, pos)
        if code == OpCode.GET_DATA:
            ops.append(GetData(path))
        elif code == OpCode.GET_CHILDREN:
            ops.append(GetChildren(path))
        else:
            raise MarshallingError(message=f"operation {code} has no place in a multiRead")
        _check_count(len(ops), max_ops)
    return ops


def _check_count(count: int, limit: int | None) -> None:
    if limit is not None and count > limit:
        raise RequestTooLarge(message=f"more than {limit} operations or paths in one request")


def _multi_header(buf: bytes, pos: int) -> tuple[int, int] | None:
    if len(buf) < pos + 9:
        raise MarshallingError(message=f"the header of an operation is missing at byte {pos}")
    code, done, _ = _MULTI_HEADER.unpack_from(buf, pos)
    return None if done else (code, pos + 9)


def read_set_watches(buf: bytes, *, second: bool, max_paths: int | None = None) -> SetWatches:
    """Raises RequestTooLarge for more than `max_paths` in all."""
    zxid, pos = read_long(buf, 0)
    lists: list[list[str]] = []
    for _ in range(3):
        _check_count(sum(map(len, lists)) + read_int(buf, pos)[0], max_paths)
        paths, pos = read_strings(buf, pos)
        lists.append(paths)
    data, exist, child = lists
    persistent = 0
    if second:
        plain, pos = read_strings(buf, pos)
        recursive, pos = read_strings(buf, pos)
        persistent = len(plain) + len(recursive)
    return SetWatches(zxid, data, exist, child, persistent)


def read_auth(buf: bytes) -> tuple[str, bytes]:
    _, pos = read_int(buf, 0)
    scheme, pos = read_string(buf, pos)
    credential, _ = read_buffer(buf, pos)
    return scheme, credential or b""


# --- replies ---------------------------------------------------------------------------------------------------------


def reply(xid: int, zxid: int, error: int, body: bytes = b"") -> bytes:
    return _REPLY.pack(16 + len(body), xid, zxid, error) + body


def connect_response(timeout_ms: int, session_id: int, password: bytes) -> bytes:
    """Encode the answer to a handshake. A timeout of 0 means that the session is over."""
    return _CONNECT_RESPONSE.pack(21 + len(password), 0, timeout_ms, session_id, len(password)) + password + b"\0"


def notification(event: WatchEvent) -> bytes:
    path = event.path.encode()
    head = _NOTIFICATION.pack(28 + len(path), NOTIFICATION_XID, -1, 0, event.type, _SYNC_CONNECTED, len(path))
    return head + path


def acl_bytes(result: GetAclResult) -> bytes:
    return _rules_bytes(result.acl) + stat_bytes(result.stat)


def _rules_bytes(acl: Sequence[Acl]) -> bytes:
    rules = b"".join(_INT.pack(a.perms) + string_bytes(a.scheme) + string_bytes(a.id) for a in acl)
    return _INT.pack(len(acl)) + rules


def multi_bytes(codes: Sequence[int], results: Iterable[MultiResult]) -> bytes:
    parts: list[bytes] = []
    for code, result in zip(codes, results, strict=True):
        if isinstance(result, SetDataResult):
            parts += (_SET_DATA_HEADER, _STAT.pack(*result.stat))
        elif isinstance(result, ErrorResult):
            parts.append(_MULTI_HEADER.pack(OpCode.ERROR, False, result.code) + _INT.pack(result.code))
        else:
            parts.append(_MULTI_HEADER.pack(code, False, 0) + _write_result_bytes(code, result))
    parts.append(_MULTI_END)
    return b"".join(parts)


def _write_result_bytes(code: int, result: CreateResult | SetDataResult | DeleteResult | CheckResult) -> bytes:
    match result:
        case CreateResult(path, stat):
            assert stat is not None
            return string_bytes(path) + (stat_bytes(stat) if code == OpCode.CREATE2 else b"")
        case SetDataResult(stat):
            return stat_bytes(stat)
        case DeleteResult() | CheckResult():
            return b""
        case _:
            assert_never(result)


def multi_read_bytes(results: Iterable[GetDataResult | GetChildrenResult | ErrorResult]) -> bytes:
    parts: list[bytes] = []
    for result in results:
        if isinstance(result, GetDataResult):
            parts += (_GET_DATA_HEADER, buffer_bytes(result.data), _STAT.pack(*result.stat))
        elif isinstance(result, GetChildrenResult):
            parts += (_GET_CHILDREN_HEADER, strings_bytes(result.children))
        else:
            parts += (_MULTI_HEADER.pack(OpCode.ERROR, False, result.code), _INT.pack(result.code))
    parts.append(_MULTI_END)
    return b"".join(parts)


_SET_DATA_HEADER: Final = _MULTI_HEADER.pack(OpCode.SET_DATA, False, 0)
_GET_DATA_HEADER: Final = _MULTI_HEADER.pack(OpCode.GET_DATA, False, 0)
_GET_CHILDREN_HEADER: Final = _MULTI_HEADER.pack(OpCode.GET_CHILDREN, False, 0)
