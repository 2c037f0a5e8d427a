"""Converts a tree to records and back: the zxid, the sessions, the znodes (parents first), and an end mark."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from klamm.zk.model import jute
from klamm.zk.model.nodes import Session, Znode
from klamm.zk.model.ops import OPEN_ACL, Acl
from klamm.zk.model.tree import ZnodeTree

_HEAD: Final = struct.Struct(">cqii")
_SESSION: Final = struct.Struct(">cqi")
_NODE: Final = struct.Struct(">cqqqqqiiiq")
_END: Final = b"E"


def dump_tree(tree: ZnodeTree) -> Iterator[bytes]:
    yield _HEAD.pack(b"H", tree.last_zxid, len(tree.sessions), len(tree.nodes))
    for session in tree.sessions.values():
        yield _SESSION.pack(b"S", session.id, session.timeout_ms) + session.password
    for path, node in tree.nodes.items():
        yield _dump_node(path, node)
    yield _END


def _dump_node(path: str, node: Znode) -> bytes:
    head = _NODE.pack(
        b"N",
        node.czxid,
        node.mzxid,
        node.pzxid,
        node.ctime,
        node.mtime,
        node.version,
        node.creations,
        node.aversion,
        node.ephemeral_owner,
    )
    acl = () if node.acl == OPEN_ACL else node.acl
    rules = b"".join(struct.pack(">i", a.perms) + jute.string_bytes(a.scheme) + jute.string_bytes(a.id) for a in acl)
    return head + jute.string_bytes(path) + jute.buffer_bytes(node.data) + struct.pack(">i", len(acl)) + rules


def load_tree(tree: ZnodeTree, records: Sequence[bytes]) -> None:
    """Fill an empty tree. Raises ValueError, KeyError, struct.error or MarshallingError if records are incomplete."""
    if not records or records[-1] != _END:
        raise ValueError("its end is missing")
    _, last_zxid, sessions, nodes = _HEAD.unpack(records[0])
    if len(records) != sessions + nodes + 2:
        raise ValueError("its record count differs from the count in its first record")
    for record in records[1 : 1 + sessions]:
        _, session_id, timeout_ms = _SESSION.unpack_from(record)
        tree.sessions[session_id] = Session(session_id, timeout_ms, record[_SESSION.size :])
    tree.nodes.clear()
    for record in records[1 + sessions : -1]:
        path, node = _load_node(record)
        _attach(tree, path, node)
    tree.last_zxid = last_zxid


def _load_node(record: bytes) -> tuple[str, Znode]:
    _, czxid, mzxid, pzxid, ctime, mtime, version, creations, aversion, owner = _NODE.unpack_from(record)
    path, pos = jute.read_string(record, _NODE.size)
    data, pos = jute.read_buffer(record, pos)
    count, pos = jute.read_int(record, pos)
    acl = []
    for _ in range(count):
        perms, pos = jute.read_int(record, pos)
        scheme, pos = jute.read_string(record, pos)
        who, pos = jute.read_string(record, pos)
        acl.append(Acl(perms, scheme, who))
    node = Znode(data, tuple(acl) or OPEN_ACL, ephemeral_owner=owner)
    node.czxid, node.mzxid, node.pzxid, node.ctime, node.mtime = czxid, mzxid, pzxid, ctime, mtime
    node.version, node.creations, node.aversion = version, creations, aversion
    return path, node


def _attach(tree: ZnodeTree, path: str, node: Znode) -> None:
    tree.nodes[path] = node
    if path == "/":
        return
    slash = path.rfind("/")
    parent = tree.nodes[path[:slash] or "/"]
    parent.children = {} if parent.children is None else parent.children
    parent.children[path[slash + 1 :]] = None
    if node.ephemeral_owner:
        tree.sessions[node.ephemeral_owner].ephemerals[path] = None
