"""ZooKeeper as its clients see it: a tree behind links with delay, sessions that end, answers that get lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from klamm.controller.effects import ZkMulti, ZkRead
from klamm.sim.virtual_time import Link, Scheduler
from klamm.zk.model.ops import (
    ConnectionLoss,
    Create,
    MultiFailed,
    NoNode,
    ReadOp,
    ReadResult,
    SessionExpired,
    WatchEvent,
    WriteOp,
    multi_failure,
)
from klamm.zk.model.paths import PERSISTENT_PATHS
from klamm.zk.model.tree import ZnodeTree

TOOLS_SESSION = 1
Answer = Callable[[Any, Exception | None], None]
Written = Callable[[int, tuple[WriteOp, ...]], None]


class ClientSession:
    """A session and its two links; messages to the client keep their order, watch events before later answers."""

    def __init__(self, scheduler: Scheduler, session_id: int, on_watch: Callable[[WatchEvent], None]) -> None:
        self.id = session_id
        self.to_server = Link(scheduler)
        self.to_client = Link(scheduler)
        self.on_watch = on_watch


class SimulatedZooKeeper:
    def __init__(self, scheduler: Scheduler, on_written: Written) -> None:
        self.tree = ZnodeTree()
        self.loss_rate = 0.0
        self.away_until_ms = 0
        """Until then no request is served and no session expires: ZooKeeper is down or unreachable."""
        self.lost_answers = 0
        self._scheduler = scheduler
        self._rng = scheduler.rng
        self._on_written = on_written
        self.on_session_ended: Callable[[ClientSession], None] = lambda session: None
        self._sessions: dict[int, ClientSession] = {}
        self._next_session = TOOLS_SESSION
        self.open_session(lambda _: None)
        for path in PERSISTENT_PATHS:
            parts = path.split("/")[1:]
            for i in range(1, len(parts) + 1):
                self._create_if_missing("/" + "/".join(parts[:i]))

    def _create_if_missing(self, path: str) -> None:
        if path not in self.tree.nodes:
            self.tree.write(TOOLS_SESSION, Create(path), 0)

    # --- sessions ----------------------------------------------------------------------------------------------------

    def open_session(self, on_watch: Callable[[WatchEvent], None]) -> ClientSession:
        session = ClientSession(self._scheduler, self._next_session, on_watch)
        self._next_session += 1
        self._sessions[session.id] = session
        self.tree.create_session(session.id, 1 << 40, self._scheduler.time_ms)
        return session

    @property
    def is_away(self) -> bool:
        return self._scheduler.time_ms < self.away_until_ms

    def is_alive(self, session: ClientSession) -> bool:
        return session.id in self.tree.sessions

    def end_session(self, session: ClientSession) -> None:
        """End a session by expiry or close: its ephemeral znodes are deleted."""
        if self.is_away:
            self._scheduler.at(self.away_until_ms - self._scheduler.time_ms, self.end_session, session)
        elif self.is_alive(session):
            self.tree.close_session(session.id, self._scheduler.time_ms)
            self.tree.remove_watcher(session.id)
            self.on_session_ended(session)
            self._deliver_watches()

    # --- requests ----------------------------------------------------------------------------------------------------

    def request(self, session: ClientSession, effect: ZkRead | ZkMulti, answer: Answer) -> None:
        session.to_server.send(self._rng.randint(1, 4), self._execute, session, effect, answer)

    def _execute(self, session: ClientSession, effect: ZkRead | ZkMulti, answer: Answer) -> None:
        if not self.is_alive(session):
            self._scheduler.at(1, answer, None, SessionExpired())
            return
        if self.is_away:
            self._outage(session, effect, answer)
            return
        lost = self._rng.random() < self.loss_rate
        self.lost_answers += lost
        if lost and isinstance(effect, ZkMulti) and self._rng.random() < 0.5:
            self._answer(session, answer, None, ConnectionLoss(), slow=True)
            return
        try:
            value: Any = self._read(session, effect.ops) if isinstance(effect, ZkRead) else None
            if isinstance(effect, ZkMulti):
                value = self.write(session.id, effect.ops)
        except MultiFailed as failed:
            self._answer(session, answer, None, failed)
            return
        if lost and isinstance(effect, ZkMulti):
            self._answer(session, answer, None, ConnectionLoss(), slow=True)
        else:
            self._answer(session, answer, value, None, slow=lost)

    def _outage(self, session: ClientSession, effect: ZkRead | ZkMulti, answer: Answer) -> None:
        """A read is repeated when ZooKeeper is back; the outcome of a transaction is unknown."""
        wait_ms = self.away_until_ms - self._scheduler.time_ms
        if isinstance(effect, ZkMulti) and self._rng.random() < 0.5:
            session.to_client.send(wait_ms, answer, None, ConnectionLoss())
        else:
            session.to_server.send(wait_ms, self._execute, session, effect, answer)

    def _answer(
        self, session: ClientSession, answer: Answer, value: Any, error: Exception | None, slow: bool = False
    ) -> None:
        session.to_client.send(self._rng.randint(30, 80) if slow else self._rng.randint(1, 4), answer, value, error)

    def _read(self, session: ClientSession, ops: tuple[ReadOp, ...]) -> tuple[ReadResult | None, ...]:
        results: list[ReadResult | None] = []
        for op in ops:
            try:
                results.append(self.tree.read(op, session.id))
            except NoNode:
                results.append(None)
        return tuple(results)

    def write(self, session_id: int, ops: tuple[WriteOp, ...]) -> Any:
        """Execute a transaction immediately; the checkers see every one that took effect."""
        results = self.tree.multi(session_id, ops, self._scheduler.time_ms)
        failure = multi_failure(ops, results)
        if failure is not None:
            raise MultiFailed(failure)
        self._on_written(session_id, ops)
        self._deliver_watches()
        return results

    def _deliver_watches(self) -> None:
        for watcher, event in self.tree.take_events():
            session = self._sessions[watcher]
            session.to_client.send(self._rng.randint(1, 15), session.on_watch, event)
