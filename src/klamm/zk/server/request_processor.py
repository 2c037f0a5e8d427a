"""Executes one request body on a tree: decodes, executes, encodes the answer. Recovery repeats logged writes with it.

The result depends only on the tree, the body, the time and the identities, so a logged request repeats exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from klamm.zk.model import jute, limits
from klamm.zk.model.jute import OpCode
from klamm.zk.model.limits import answer_bytes, check_answer, check_ephemerals, check_write
from klamm.zk.model.ops import (
    Check,
    Code,
    Create,
    CreateResult,
    Delete,
    ErrorResult,
    Exists,
    GetAcl,
    GetChildren,
    GetChildrenResult,
    GetData,
    GetDataResult,
    Id,
    NoNode,
    SetAcl,
    SetData,
    SetDataResult,
    Unimplemented,
    WriteOp,
    WriteResult,
    ZkError,
)
from klamm.zk.model.tree import Journal, ZnodeTree

_WRITES: Final[dict[int, Callable[[bytes], tuple[Create | Delete | SetData | SetAcl | Check, int]]]] = {
    OpCode.CREATE: jute.read_create,
    OpCode.CREATE2: jute.read_create,
    OpCode.DELETE: jute.read_delete,
    OpCode.SET_DATA: jute.read_set_data,
    OpCode.SET_ACL: jute.read_set_acl,
    OpCode.CHECK: jute.read_check,
}
WRITES: Final = frozenset({*_WRITES, OpCode.MULTI})


class ReconfigDisabled(ZkError):
    code = Code.RECONFIG_DISABLED


def execute_write(
    tree: ZnodeTree, session_id: int, opcode: int, body: bytes, now_ms: int, auth: Sequence[Id], journal: Journal
) -> bytes:
    """Return the body of the answer.

    Raises the `ZkError` to answer with; a failed multi is an answer, not an error. The limits apply to new requests
    only: a request that was logged before a limit existed is repeated anyway.
    """
    if opcode == OpCode.MULTI:
        codes, ops = jute.read_multi(body, limits.MAX_OPERATIONS)
        _check_limits(tree, session_id, ops, auth)
        return jute.multi_bytes(codes, tree.multi(session_id, ops, now_ms, auth, journal))
    op, _ = _WRITES[opcode](body)
    _check_limits(tree, session_id, (op,), auth)
    result: WriteResult = tree.write(session_id, op, now_ms, auth, journal)
    if isinstance(result, CreateResult):
        assert result.stat is not None
        return jute.string_bytes(result.path) + (jute.stat_bytes(result.stat) if opcode == OpCode.CREATE2 else b"")
    return jute.stat_bytes(result.stat) if isinstance(result, SetDataResult) else b""


def _check_limits(tree: ZnodeTree, session_id: int, ops: Sequence[WriteOp | SetAcl], auth: Sequence[Id]) -> None:
    ephemerals = 0
    for op in ops:
        if isinstance(op, Create | SetAcl):
            check_write(op, auth)
            ephemerals += isinstance(op, Create) and op.ephemeral
    if ephemerals and (session := tree.sessions.get(session_id)) is not None:
        check_ephemerals(len(session.ephemerals) + ephemerals)


def repeat_write(tree: ZnodeTree, session_id: int, opcode: int, body: bytes, now_ms: int, auth: Sequence[Id]) -> None:
    """Repeat a logged write, without its answer."""
    if opcode == OpCode.MULTI:
        tree.multi(session_id, jute.read_multi(body)[1], now_ms, auth)
    else:
        tree.write(session_id, _WRITES[opcode](body)[0], now_ms, auth)


def execute_read(tree: ZnodeTree, opcode: int, body: bytes, watcher: int, auth: Sequence[Id]) -> bytes:
    """Return the body of the answer to a request that changes no znode. Raises the `ZkError` to answer with."""
    handler = _READS.get(opcode)
    if handler is None:
        raise Unimplemented(message=f"operation {opcode} is not implemented")
    return handler(tree, body, watcher, auth)


def _get_data(tree: ZnodeTree, body: bytes, watcher: int, auth: Sequence[Id]) -> bytes:
    path, watch, _ = jute.read_path_and_watch(body)
    result = tree.read(GetData(path, watch), watcher, auth)
    return jute.buffer_bytes(result.data) + jute.stat_bytes(result.stat)


def _exists(tree: ZnodeTree, body: bytes, watcher: int, auth: Sequence[Id]) -> bytes:
    path, watch, _ = jute.read_path_and_watch(body)
    stat = tree.read(Exists(path, watch), watcher, auth).stat
    if stat is None:
        raise NoNode(path)
    return jute.stat_bytes(stat)


def _get_children(tree: ZnodeTree, body: bytes, watcher: int, auth: Sequence[Id]) -> bytes:
    path, watch, _ = jute.read_path_and_watch(body)
    return jute.strings_bytes(_read_children(tree, path, watch, watcher, auth).children)


def _get_children2(tree: ZnodeTree, body: bytes, watcher: int, auth: Sequence[Id]) -> bytes:
    path, watch, _ = jute.read_path_and_watch(body)
    result = _read_children(tree, path, watch, watcher, auth)
    return jute.strings_bytes(result.children) + jute.stat_bytes(result.stat)


def _read_children(tree: ZnodeTree, path: str, watch: bool, watcher: int, auth: Sequence[Id]) -> GetChildrenResult:
    result = tree.read(GetChildren(path), None, auth)
    check_answer(answer_bytes(result))
    return tree.read(GetChildren(path, watch), watcher, auth) if watch else result


def _get_acl(tree: ZnodeTree, body: bytes, watcher: int, auth: Sequence[Id]) -> bytes:
    path, _ = jute.read_string(body, 0)
    return jute.acl_bytes(tree.get_acl(GetAcl(path), auth))


def _multi_read(tree: ZnodeTree, body: bytes, watcher: int, auth: Sequence[Id]) -> bytes:
    results: list[GetDataResult | GetChildrenResult | ErrorResult] = []
    size = 0
    for op in jute.read_multi_read(body, limits.MAX_OPERATIONS):
        try:
            result = tree.read(op, None, auth)
        except ZkError as error:
            results.append(ErrorResult(error.code))
        else:
            size += answer_bytes(result)
            check_answer(size)
            results.append(result)
    return jute.multi_read_bytes(results)


def _sync(tree: ZnodeTree, body: bytes, watcher: int, auth: Sequence[Id]) -> bytes:
    """Answer a sync: there is one server, so every read is up to date."""
    path, _ = jute.read_string(body, 0)
    return jute.string_bytes(path)


def _set_watches(tree: ZnodeTree, body: bytes, watcher: int, *, second: bool) -> bytes:
    wanted = jute.read_set_watches(body, second=second, max_paths=limits.MAX_RESTORED_WATCHES)
    if wanted.persistent:
        raise Unimplemented(message="persistent watches are not implemented")
    tree.set_watches(watcher, wanted.relative_zxid, wanted.data, wanted.exist, wanted.child)
    return b""


def _reconfig(tree: ZnodeTree, body: bytes, watcher: int, auth: Sequence[Id]) -> bytes:
    raise ReconfigDisabled


_READS: Final[dict[int, Callable[[ZnodeTree, bytes, int, Sequence[Id]], bytes]]] = {
    OpCode.EXISTS: _exists,
    OpCode.GET_DATA: _get_data,
    OpCode.GET_CHILDREN: _get_children,
    OpCode.GET_CHILDREN2: _get_children2,
    OpCode.GET_ACL: _get_acl,
    OpCode.MULTI_READ: _multi_read,
    OpCode.SYNC: _sync,
    OpCode.SET_WATCHES: lambda tree, body, watcher, _: _set_watches(tree, body, watcher, second=False),
    OpCode.SET_WATCHES2: lambda tree, body, watcher, _: _set_watches(tree, body, watcher, second=True),
    OpCode.RECONFIG: _reconfig,
}
