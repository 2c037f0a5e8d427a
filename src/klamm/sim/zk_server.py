"""The ZooKeeper server of a whole-cluster simulation: a tree, its sessions and their connections.

A restart loses nothing: the tree stays, and every session's timeout starts again.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final, Protocol

from klamm.sim.loop import SimLoop, running_as
from klamm.zk.client.client_requests import Multi, MultiRead, Read, Request, SetWatches, Sync, Write
from klamm.zk.model import ops
from klamm.zk.model.ops import CreateResult, ErrorResult, WatchEvent, WriteOp, ZkError, multi_failure
from klamm.zk.model.tree import ZnodeTree

HOST: Final = "zk"
OPERATOR_SESSION: Final = 1
TICK_S: Final = 0.05
Written = Callable[[int, tuple[WriteOp, ...]], None]


class Client(Protocol):
    """The server's view of a connection. `watcher` is its number."""

    watcher: int

    def notify(self, event: WatchEvent) -> None: ...

    def notify_lost(self) -> None: ...


class ZooKeeperServer:
    def __init__(self, loop: SimLoop, on_written: Written) -> None:
        self.tree = ZnodeTree()
        self.is_down = False
        self.loss_rate = 0.0
        """Probability that the connection is lost with a request, before or after it took effect."""
        self.expired_sessions = 0
        self.lost_requests = 0
        self._loop = loop
        self._rng: random.Random = loop.rng
        self._on_written = on_written
        self._attached: dict[int, Client] = {}
        self._by_watcher: dict[int, Client] = {}
        self._next_session = OPERATOR_SESSION
        self._next_watcher = 0
        self.tree.create_session(OPERATOR_SESSION, 1 << 40, 0)
        with running_as(None):
            loop.call_later(TICK_S, self._tick)

    @property
    def now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _tick(self) -> None:
        if not self.is_down:
            for session_id in self.tree.overdue_sessions(self.now_ms):
                self.expired_sessions += 1
                self.end_session(session_id)
        self._loop.call_later(TICK_S, self._tick)

    # --- sessions --------------------------------------------------------------------------------------------------

    def attach(self, client: Client, session_id: int, timeout_ms: int) -> int | None:
        """Connect a client, with its session or without (0). Returns the session, or None if it has expired."""
        if session_id == 0:
            self._next_session += 1
            session_id = self._next_session
            self.tree.create_session(session_id, timeout_ms, self.now_ms)
        elif not self.tree.touch_session(session_id, self.now_ms):
            return None
        self._detach(session_id)
        self._next_watcher += 1
        client.watcher = self._next_watcher
        self._attached[session_id] = self._by_watcher[client.watcher] = client
        return session_id

    def _detach(self, session_id: int) -> None:
        before = self._attached.pop(session_id, None)
        if before is not None:
            self._by_watcher.pop(before.watcher, None)
            self.tree.remove_watcher(before.watcher)

    def is_attached(self, session_id: int, watcher: int) -> bool:
        client = self._attached.get(session_id)
        return client is not None and client.watcher == watcher and not self.is_down

    def touch(self, session_id: int) -> None:
        self.tree.touch_session(session_id, self.now_ms)

    def end_session(self, session_id: int) -> None:
        """End a session by expiry or close: its ephemeral znodes are deleted; a connected client learns it with its
        next request."""
        if session_id in self.tree.sessions:
            self.tree.close_session(session_id, self.now_ms)
            self.drop(session_id)
            self._notify_watchers()

    def drop(self, session_id: int) -> None:
        """End the connection; the session continues."""
        client = self._attached.get(session_id)
        self._detach(session_id)
        if client is not None:
            client.notify_lost()

    def set_down(self, is_down: bool) -> None:
        self.is_down = is_down
        for session_id in list(self._attached):
            self.drop(session_id)
        for session_id in self.tree.sessions:
            self.touch(session_id)

    # --- requests --------------------------------------------------------------------------------------------------

    def handle(self, session_id: int, watcher: int, request: Request) -> tuple[Any, ZkError | None] | None:
        """Return the answer; None if the connection was lost."""
        self.touch(session_id)
        is_write = isinstance(request, Multi | Write)
        is_lost = is_write and self._rng.random() < self.loss_rate
        self.lost_requests += is_lost
        if is_lost and self._rng.random() < 0.5:
            self.drop(session_id)
            return None
        try:
            answer = self._execute(session_id, watcher, request), None
        except ZkError as error:
            answer = None, error  # type: ignore[assignment]
        self._notify_watchers()
        if is_lost:
            self.drop(session_id)
            return None
        return answer

    def operate(self, *operations: WriteOp) -> bool:
        """Change the tree like an operator's tool; returns False if it was refused."""
        results = self.tree.multi(OPERATOR_SESSION, operations, self.now_ms)
        if multi_failure(operations, results) is not None:
            return False
        self._on_written(OPERATOR_SESSION, operations)
        self._notify_watchers()
        return True

    def _execute(self, session_id: int, watcher: int, request: Request) -> Any:
        if isinstance(request, Sync):
            return None
        if isinstance(request, SetWatches):
            return self.tree.set_watches(watcher, *request.wanted)
        if isinstance(request, MultiRead):
            found = self.tree.multi_read([ops.GetData(path) for path in request.paths])
            return [r.code if isinstance(r, ErrorResult) else (r.data, r.stat) for r in found]  # type: ignore[union-attr]
        if isinstance(request, Multi):
            return self._multi(session_id, tuple(request.operations))
        if isinstance(request, Write):
            return self._write(session_id, request.op)
        assert isinstance(request, Read)
        return self._read(watcher, request.op)

    def _multi(self, session_id: int, operations: tuple[WriteOp, ...]) -> list[ops.MultiResult]:
        results = self.tree.multi(session_id, operations, self.now_ms)
        if multi_failure(operations, results) is None:
            self._on_written(session_id, operations)
        return [CreateResult(r.path) if isinstance(r, CreateResult) else r for r in results]

    def _write(self, session_id: int, op: ops.Create | ops.SetData | ops.Delete) -> Any:
        result = self.tree.write(session_id, op, self.now_ms)
        self._on_written(session_id, (op,))
        match result:
            case ops.CreateResult(path, stat):
                return path, stat
            case ops.SetDataResult(stat):
                return stat
        return None

    def _read(self, watcher: int, op: ops.ReadOp) -> Any:
        match self.tree.read(op, watcher):
            case ops.GetDataResult(data, stat):
                return data, stat
            case ops.GetChildrenResult(children, stat):
                return list(children), stat
            case ops.ExistsResult(stat):
                return stat

    def _notify_watchers(self) -> None:
        for watcher, event in self.tree.take_events():
            client = self._by_watcher.get(watcher)
            if client is not None:
                client.notify(event)
