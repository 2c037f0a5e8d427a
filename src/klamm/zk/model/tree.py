"""ZooKeeper's data model as a pure state machine: (state, request, now) -> (state, result, watch events).

No I/O, no clock, no randomness: the same requests give the same tree. The embedded server adds the wire protocol and a
log; the simulator uses it directly. Left out: container and TTL znodes, quotas, persistent watches.

Rules that are easy to get wrong, all of them ZooKeeper's:
- the number of a sequential znode is how many children its parent ever had, not a counter of its prefix;
- a parent's shown `cversion` counts creations and deletions of children, and starts below zero at `/`;
- a child's creation or deletion moves the parent's `pzxid`, nothing else of it;
- a multi has one zxid; in a failed one, operations before the failing one answer OK, later ones RUNTIME_INCONSISTENCY;
- a deleted znode notifies a watcher of both its data and its children once;
- a read of data or children sets no watch when the znode is missing, `Exists` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias, TypeVar, assert_never, overload

from klamm.zk.model.acl import READ_ACL_PERMS, SERVER, SUPER, check_acl, resolve_acl
from klamm.zk.model.nodes import Session, Znode, is_valid_path
from klamm.zk.model.ops import (
    Acl,
    BadArguments,
    BadVersion,
    Check,
    CheckResult,
    Code,
    Create,
    CreateResult,
    Delete,
    DeleteResult,
    ErrorResult,
    EventType,
    Exists,
    ExistsResult,
    GetAcl,
    GetAclResult,
    GetChildren,
    GetChildrenResult,
    GetData,
    GetDataResult,
    Id,
    MultiResult,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    NotLogged,
    Perms,
    ReadOp,
    ReadResult,
    SessionExpired,
    SetAcl,
    SetData,
    SetDataResult,
    Stat,
    WatchEvent,
    WriteOp,
    WriteResult,
    ZkError,
)
from klamm.zk.model.watch_manager import Watches

SPECIAL_PATHS: Final = frozenset({"/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"})
_READ_ONLY_ACL: Final = (Acl(Perms.READ, "world", "anyone"),)
T = TypeVar("T")
Journal: TypeAlias = Callable[[int], None]
"""Logs a valid change under its zxid before it takes effect; raises to prevent it."""


def _unlogged(zxid: int) -> None:
    """The journal of trees without a log: the simulator's, and a tree that is filled from the log."""


def _ignore_rules(path: str) -> None:
    """Do nothing: only a server that guards its znodes looks at their rules."""


class ZnodeTree:
    """Znodes, sessions and watches. `last_zxid` is the number of the last change that took effect.

    Methods that change something raise a `ZkError` and leave the tree as it was, or take effect whole. Watch events
    collect until `take_events()`: the owner of the tree delivers them before any later reply.
    """

    def __init__(self, *, tick_ms: int = 1) -> None:
        """`tick_ms`: sessions end at multiples of it, as ZooKeeper's do at its ticks."""
        self.nodes: dict[str, Znode] = {}
        self.sessions: dict[int, Session] = {}
        self.last_zxid = 0
        self.watches = Watches()
        self._tick_ms = tick_ms
        self._undo: list[Callable[[], object]] = []
        self._changes: list[tuple[EventType, str, Znode]] = []
        self._ruled: list[str] = []
        self.on_rules: Callable[[str], None] = _ignore_rules
        """Is called with the path of each znode that got access rules, by its creation or by a setAcl."""
        for path, children in (("/", ["zookeeper"]), ("/zookeeper", ["quota", "config"]), ("/zookeeper/quota", [])):
            self.nodes[path] = Znode(b"", children=dict.fromkeys(children))
        config = self.nodes["/zookeeper/config"] = Znode(b"", acl=_READ_ONLY_ACL)
        config.aversion = -1

    # --- sessions ----------------------------------------------------------------------------------------------------

    def create_session(
        self, session_id: int, timeout_ms: int, now_ms: int, password: bytes = b"", journal: Journal = _unlogged
    ) -> Session:
        assert session_id not in self.sessions, f"session {session_id:#x} exists"
        journal(self.last_zxid + 1)
        session = self.sessions[session_id] = Session(session_id, timeout_ms, password)
        self.last_zxid += 1
        self.touch_session(session_id, now_ms)
        return session

    def touch_session(self, session_id: int, now_ms: int, timeout_ms: int | None = None) -> bool:
        """Record that the session is alive. Returns False if there is no such session."""
        session = self.sessions.get(session_id)
        if session is None:
            return False
        if timeout_ms is not None:
            session.timeout_ms = timeout_ms
        deadline = now_ms + session.timeout_ms
        session.deadline_ms = deadline + -deadline % self._tick_ms
        return True

    def overdue_sessions(self, now_ms: int) -> list[int]:
        """Return the sessions whose timeout has passed, longest overdue first."""
        overdue = [s for s in self.sessions.values() if s.deadline_ms <= now_ms]
        return [s.id for s in sorted(overdue, key=lambda s: (s.deadline_ms, s.id))]

    def close_session(self, session_id: int, now_ms: int, journal: Journal = _unlogged) -> None:
        """End a session, by request or by expiry. Its ephemeral znodes are removed under one zxid."""

        def close(zxid: int) -> None:
            for path in list(self._session(session_id).ephemerals):
                self._remove(path, self.nodes[path], zxid)
            session = self.sessions.pop(session_id)
            self._undo.append(lambda: self.sessions.update({session_id: session}))

        self._commit(close, journal)

    def _session(self, session_id: int) -> Session:
        session = self.sessions.get(session_id)
        if session is None:
            raise SessionExpired(message=f"session {session_id:#x} has expired")
        return session

    # --- writes ------------------------------------------------------------------------------------------------------

    @overload
    def write(
        self, session_id: int, op: Create, now_ms: int, auth: Sequence[Id] = ..., journal: Journal = ...
    ) -> CreateResult: ...
    @overload
    def write(
        self, session_id: int, op: SetData | SetAcl, now_ms: int, auth: Sequence[Id] = ..., journal: Journal = ...
    ) -> SetDataResult: ...
    @overload
    def write(
        self, session_id: int, op: WriteOp | SetAcl, now_ms: int, auth: Sequence[Id] = ..., journal: Journal = ...
    ) -> WriteResult: ...
    def write(
        self,
        session_id: int,
        op: WriteOp | SetAcl,
        now_ms: int,
        auth: Sequence[Id] = SUPER,
        journal: Journal = _unlogged,
    ) -> WriteResult:
        """Execute one change, or raise the `ZkError` that refuses it."""
        return self._commit(lambda zxid: self._apply(self._session(session_id), op, zxid, now_ms, auth), journal)

    def multi(
        self,
        session_id: int,
        ops: Sequence[WriteOp],
        now_ms: int,
        auth: Sequence[Id] = SUPER,
        journal: Journal = _unlogged,
    ) -> tuple[MultiResult, ...]:
        """Execute all changes or none. Returns one result per operation; `multi_failure` finds the one that failed."""
        results: list[MultiResult] = []

        def apply_all(zxid: int) -> None:
            session = self._session(session_id)
            for op in ops:
                results.append(self._apply(session, op, zxid, now_ms, auth))

        try:
            self._commit(apply_all, journal)
        except (SessionExpired, NotLogged):
            raise
        except ZkError as error:
            before = [ErrorResult(Code.OK)] * len(results)
            after = [ErrorResult(Code.RUNTIME_INCONSISTENCY)] * (len(ops) - len(results) - 1)
            return (*before, ErrorResult(error.code), *after)
        return tuple(results)

    def _commit(self, change: Callable[[int], T], journal: Journal) -> T:
        """Run a change under the next zxid and log it. If either raises, all steps are undone."""
        zxid = self.last_zxid + 1
        try:
            result = change(zxid)
            journal(zxid)
        except BaseException:
            for undo in reversed(self._undo):
                undo()
            self._undo.clear()
            self._changes.clear()
            self._ruled.clear()
            raise
        self.last_zxid = zxid
        for event, path, node in self._changes:
            self.watches.fire(event, path, node, self.nodes)
        for path in self._ruled:
            self.on_rules(path)
        self._undo.clear()
        self._changes.clear()
        self._ruled.clear()
        return result

    def _apply(self, session: Session, op: WriteOp | SetAcl, zxid: int, now_ms: int, auth: Sequence[Id]) -> WriteResult:
        match op:
            case SetData():
                return self._set_data(op, zxid, now_ms, auth)
            case Create():
                return self._create(session, op, zxid, now_ms, auth)
            case Delete():
                return self._delete(op, zxid, auth)
            case Check():
                node = self._valid_node(op.path)
                check_acl(node.acl, Perms.READ, auth, op.path)
                _check_version(node.version, op.version, op.path)
                return CheckResult()
            case SetAcl():
                return self._set_acl(op, auth)
            case _:
                assert_never(op)

    def _create(self, session: Session, op: Create, zxid: int, now_ms: int, auth: Sequence[Id]) -> CreateResult:
        path = op.path
        slash = path.rfind("/")
        if slash < 0 or "\0" in path:
            raise BadArguments(path)
        acl = resolve_acl(op.acl, auth, path)
        parent = self._node(path[:slash] or "/")
        check_acl(parent.acl, Perms.CREATE, auth, path)
        if op.sequential:
            path = f"{path}{parent.creations:010d}"
        if not is_valid_path(path):
            raise BadArguments(path)
        if path in self.nodes:
            raise NodeExists(path)
        if parent.ephemeral_owner:
            raise NoChildrenForEphemerals(path)
        owner = session.id if op.ephemeral else 0
        node = Znode(op.data, acl, czxid=zxid, now_ms=now_ms, ephemeral_owner=owner)
        self._insert(path, parent, node, zxid)
        return CreateResult(path, node.stat())

    def _insert(self, path: str, parent: Znode, node: Znode, zxid: int) -> None:
        slash = path.rfind("/")
        name, old_pzxid = path[slash + 1 :], parent.pzxid
        children = parent.children = {} if parent.children is None else parent.children
        children[name] = None
        parent.creations += 1
        parent.pzxid = zxid
        self.nodes[path] = node
        if node.ephemeral_owner:
            self.sessions[node.ephemeral_owner].ephemerals[path] = None

        def undo() -> None:
            del children[name], self.nodes[path]
            parent.creations -= 1
            parent.pzxid = old_pzxid
            if node.ephemeral_owner:
                del self.sessions[node.ephemeral_owner].ephemerals[path]

        self._undo.append(undo)
        self._changes.append((EventType.CREATED, path, node))
        self._ruled.append(path)

    def _set_data(self, op: SetData, zxid: int, now_ms: int, auth: Sequence[Id]) -> SetDataResult:
        node = self._valid_node(op.path)
        check_acl(node.acl, Perms.WRITE, auth, op.path)
        _check_version(node.version, op.version, op.path)
        old = (node.data, node.version, node.mzxid, node.mtime)

        def undo() -> None:
            node.data, node.version, node.mzxid, node.mtime = old

        self._undo.append(undo)
        self._changes.append((EventType.DATA_CHANGED, op.path, node))
        node.data, node.version, node.mzxid, node.mtime = op.data, node.version + 1, zxid, now_ms
        return SetDataResult(node.stat())

    def _delete(self, op: Delete, zxid: int, auth: Sequence[Id]) -> DeleteResult:
        path = op.path
        slash = path.rfind("/")
        if slash < 0 or "\0" in path or path in SPECIAL_PATHS:
            raise BadArguments(path)
        parent = self._node(path[:slash] or "/")
        check_acl(parent.acl, Perms.DELETE, auth, path)
        node = self._node(path)
        _check_version(node.version, op.version, path)
        if node.children:
            raise NotEmpty(path)
        self._remove(path, node, zxid)
        return DeleteResult()

    def _remove(self, path: str, node: Znode, zxid: int) -> None:
        slash = path.rfind("/")
        parent, name = self.nodes[path[:slash] or "/"], path[slash + 1 :]
        children, old_pzxid = parent.children, parent.pzxid
        assert children is not None
        owner = self.sessions[node.ephemeral_owner].ephemerals if node.ephemeral_owner else None
        del self.nodes[path], children[name]
        parent.pzxid = zxid
        if owner is not None:
            del owner[path]

        def undo() -> None:
            self.nodes[path] = node
            children[name] = None
            parent.pzxid = old_pzxid
            if owner is not None:
                owner[path] = None

        self._undo.append(undo)
        self._changes.append((EventType.DELETED, path, node))

    def _set_acl(self, op: SetAcl, auth: Sequence[Id]) -> SetDataResult:
        if not is_valid_path(op.path):
            raise BadArguments(op.path)
        acl = resolve_acl(op.acl, auth, op.path)
        node = self._node(op.path)
        check_acl(node.acl, Perms.ADMIN, auth, op.path)
        _check_version(node.aversion, op.version, op.path)
        old = (node.acl, node.aversion)

        def undo() -> None:
            node.acl, node.aversion = old

        self._undo.append(undo)
        self._ruled.append(op.path)
        node.acl, node.aversion = acl, node.aversion + (tuple(auth) != SERVER)
        return SetDataResult(node.stat())

    def _valid_node(self, path: str) -> Znode:
        node = self.nodes.get(path)
        if node is not None:
            return node
        raise NoNode(path) if is_valid_path(path) else BadArguments(path)

    def _node(self, path: str) -> Znode:
        node = self.nodes.get(path)
        if node is None:
            raise NoNode(path)
        return node

    # --- reads -------------------------------------------------------------------------------------------------------

    @overload
    def read(self, op: GetData, watcher: int | None = ..., auth: Sequence[Id] = ...) -> GetDataResult: ...
    @overload
    def read(self, op: Exists, watcher: int | None = ..., auth: Sequence[Id] = ...) -> ExistsResult: ...
    @overload
    def read(self, op: GetChildren, watcher: int | None = ..., auth: Sequence[Id] = ...) -> GetChildrenResult: ...
    @overload
    def read(self, op: ReadOp, watcher: int | None = ..., auth: Sequence[Id] = ...) -> ReadResult: ...
    def read(self, op: ReadOp, watcher: int | None = None, auth: Sequence[Id] = SUPER) -> ReadResult:
        """Execute one read; `watcher` receives the next change if the operation sets a watch."""
        node = self.nodes.get(op.path)
        if node is not None:
            check_acl(node.acl, Perms.READ, auth, op.path)
        elif not isinstance(op, Exists):
            raise NoNode(op.path)
        if op.watch and watcher is not None:
            (self.watches.child if isinstance(op, GetChildren) else self.watches.data).add(op.path, watcher)
        if isinstance(op, Exists) or node is None:
            return ExistsResult(None if node is None else node.stat())
        if isinstance(op, GetData):
            return GetDataResult(node.data, node.stat())
        return GetChildrenResult(tuple(node.children or ()), node.stat())

    def multi_read(
        self, ops: Sequence[GetData | GetChildren], auth: Sequence[Id] = SUPER
    ) -> tuple[GetDataResult | GetChildrenResult | ErrorResult, ...]:
        """Execute many reads at one zxid, each with its own answer or error. Sets no watches, as in ZooKeeper."""
        results: list[GetDataResult | GetChildrenResult | ErrorResult] = []
        for op in ops:
            try:
                results.append(self.read(op, None, auth))
            except ZkError as error:
                results.append(ErrorResult(error.code))
        return tuple(results)

    def get_acl(self, op: GetAcl, auth: Sequence[Id] = SUPER) -> GetAclResult:
        """Return the access rules of a znode. Digests are hidden unless the caller may administer it."""
        node = self._node(op.path)
        check_acl(node.acl, READ_ACL_PERMS, auth, op.path)
        try:
            check_acl(node.acl, Perms.ADMIN, auth, op.path)
        except ZkError:
            masked = tuple(a._replace(id=a.id.split(":")[0] + ":x") if a.scheme == "digest" else a for a in node.acl)
            return GetAclResult(masked, node.stat())
        return GetAclResult(node.acl, node.stat())

    def stat(self, path: str) -> Stat | None:
        node = self.nodes.get(path)
        return None if node is None else node.stat()

    # --- watches -----------------------------------------------------------------------------------------------------

    def set_watches(
        self, watcher: int, relative_zxid: int, data: Sequence[str], exist: Sequence[str], child: Sequence[str]
    ) -> None:
        """Restore the watches of a client that reconnected; changes since `relative_zxid` are reported at once."""
        self.watches.restore(watcher, relative_zxid, (data, exist, child), self.nodes)

    def identify_watcher(self, watcher: int, auth: Sequence[Id]) -> None:
        """The watcher's identities: events about znodes that it may not read are dropped."""
        self.watches.identify(watcher, auth)

    def remove_watcher(self, watcher: int) -> None:
        """Forget all watches of a closed connection; its session survives."""
        self.watches.remove(watcher)

    def take_events(self) -> list[tuple[int, WatchEvent]]:
        """Return the watch events since the last call, in order of the changes."""
        return self.watches.take_events()


def _check_version(current: int, expected: int, path: str) -> None:
    if expected not in (-1, current):
        raise BadVersion(path)
