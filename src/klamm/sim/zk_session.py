"""A broker's session with the simulated ZooKeeper: the real `ZkSession` over a simulated connection.

The connection behaves as `SocketConnection` does: requests wait while there is no connection and fail when it is lost,
pings keep the session alive, and a session that has expired is followed by a new one once its listeners are done with
the old. It also has its own thread: if the event loop of its process stalls, the connection still pings, and finally
gives up the session.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import copy_context
from pathlib import Path
from typing import Any, Final

from klamm.config import KafkaConfig
from klamm.errors import KlammError
from klamm.server.coordination import Coordination
from klamm.sim.loop import BESIDE_LOOP, SimLoop, current_host, running_as
from klamm.sim.network import Network
from klamm.sim.zk_server import HOST, ZooKeeperServer
from klamm.zk.client.client_connection import ConnectionState, OnState, Result
from klamm.zk.client.client_requests import Read, Request, SetWatches, Watcher
from klamm.zk.client.loop_pulse import LoopPulse, StallWatch
from klamm.zk.client.refusals import Refusals
from klamm.zk.client.zk_session import Running, SessionListener, ZkSession
from klamm.zk.model.ops import (
    ConnectionLoss,
    EventType,
    Exists,
    GetChildren,
    NoNode,
    SessionExpired,
    WatchEvent,
    ZkError,
    error_for,
)

_STEP_S: Final = 1e-7
CONNECTING, CONNECTED, EXPIRED, CLOSED = "connecting", "connected", "expired", "closed"


class Sent:
    """A request in flight. `lost`: the connection broke before the server received it."""

    __slots__ = ("is_lost", "request", "result")

    def __init__(self, request: Request, result: Result | None) -> None:
        self.request = request
        self.result = result
        self.is_lost = False

    def fail(self, error: ZkError) -> None:
        if self.result is not None:
            self.result.set_exception(error)


class SimZkConnection:
    """Lives in the process that made it; the server's side runs outside of all processes."""

    def __init__(self, network: Network, server: ZooKeeperServer, timeout_ms: int, on_state: OnState) -> None:
        self.session_id = 0
        self.password = b""
        self.watcher = 0
        self.state = CONNECTING
        self._network = network
        self._server = server
        self._timeout_s = timeout_ms / 1000
        self._on_state = on_state
        self._loop: SimLoop = network.loop
        self._host = current_host()
        self._context = copy_context()
        self._context.run(BESIDE_LOOP.set, True)
        self._pulses: list[LoopPulse] = []
        self._stall_watch = StallWatch()
        self._number = 0
        """Counts connections: data of an earlier one is ignored."""
        self._attached = 0
        """The connection that the server has."""
        self._queue: deque[Sent] = deque()
        self._pending: deque[Sent] = deque()
        self._data_watchers: dict[str, dict[Watcher, None]] = {}
        self._child_watchers: dict[str, dict[Watcher, None]] = {}
        self._last_zxid = 0
        self._last_received_s = 0.0
        self._there_s = 0.0
        self._back_s = 0.0
        self.refusals = Refusals()

    @property
    def has_expired(self) -> bool:
        return self.state == EXPIRED

    # --- the wire --------------------------------------------------------------------------------------------------

    def watch_loop(self, pulse: LoopPulse) -> None:
        """Give up the session if that loop stalls."""
        self._pulses.append(pulse)

    def _to_server(self, call: Callable[..., None], *args: Any) -> None:
        self._there_s = max(self._there_s, self._network.arrival_s(self._host, HOST)) + _STEP_S
        with running_as(None) as context:
            self._loop.call_at(self._there_s, call, self._number, *args, context=context)

    def _to_client(self, number: int, call: Callable[..., None], *args: Any) -> None:
        self._back_s = max(self._back_s, self._network.arrival_s(HOST, self._host)) + _STEP_S
        self._loop.call_at(self._back_s, self._receive, number, call, args, context=self._context)

    def _receive(self, number: int, call: Callable[..., None], args: tuple[Any, ...]) -> None:
        if number == self._number and self.state != CLOSED:
            self._last_received_s = self._loop.time()
            call(*args)

    # --- connecting ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._connect()

    def _connect(self) -> None:
        self._number += 1
        self._last_received_s = self._loop.time()
        self._to_server(self._accept, self.session_id)
        self._stall_watch = StallWatch()
        self._loop.call_later(self._timeout_s / 3, self._ping, self._number, context=self._context)

    def _accept(self, number: int, session_id: int) -> None:
        """At the server."""
        if self._server.is_down:
            self._to_client(number, self._retry)
            return
        timeout_ms = int(self._timeout_s * 1000)
        session = self._server.attach(self, session_id, timeout_ms) if number == self._number else session_id
        self._attached = number
        self._to_client(number, self._on_accepted, session)

    def _retry(self) -> None:
        """No answer: retry after a while."""
        self._number += 1
        self._loop.call_later(self._loop.rng.uniform(0.05, 0.4), self._retry_now, self._number, context=self._context)

    def _retry_now(self, number: int) -> None:
        if number == self._number and self.state == CONNECTING:
            self._connect()

    def _on_accepted(self, session_id: int | None) -> None:
        if session_id is None:
            self._on_expired()
            return
        self.session_id = session_id
        self.password = session_id.to_bytes(16, "big")
        self.state = CONNECTED
        self._on_state(ConnectionState.CONNECTED)
        while self._queue and self.state == CONNECTED:
            self._send(self._queue.popleft())

    def _on_expired(self) -> None:
        """The session's listeners decide when the next one may begin: see `begin_new_session`."""
        self.state = EXPIRED
        self._number += 1
        self.session_id = 0
        self._last_zxid = 0
        self._on_state(ConnectionState.LOST)
        self.fail_pending()

    def begin_new_session(self) -> None:
        if self.state == EXPIRED:
            self.state = CONNECTING
            self._connect()

    def _ping(self, number: int) -> None:
        """Ping after a third of the timeout; drop the connection after two thirds without an answer."""
        if number != self._number or self.state not in (CONNECTED, CONNECTING):
            return
        if self._loop.time() - self._last_received_s >= self._timeout_s * 2 / 3 - _STEP_S:
            self._lose()
            return
        if self._stall_watch.stalled(self._pulses, self._loop.time()) is not None:
            self._to_server(self._close, self.session_id)
        self._to_server(self._pong)
        self._loop.call_later(self._timeout_s / 3, self._ping, number, context=self._context)

    def _close(self, number: int, session_id: int) -> None:
        """At the server. The client learns the end of its session when it connects again."""
        if self._server.is_attached(session_id, self.watcher):
            self._server.end_session(session_id)

    def _pong(self, number: int) -> None:
        if self._server.is_attached(self.session_id, self.watcher):
            self._server.touch(self.session_id)
            self._to_client(number, lambda: None)

    def _lose(self) -> None:
        """The connection is lost. Requests in flight may have arrived or not, in order."""
        self._number += 1
        arrived = self._loop.rng.randint(0, len(self._pending)) if self._pending else 0
        for sent in list(self._pending)[arrived:]:
            sent.is_lost = True
        if self.state == CONNECTED:
            self.state = CONNECTING
            self.fail_pending()
            self._on_state(ConnectionState.SUSPENDED)
            self._data_watchers.clear()
            self._child_watchers.clear()
        self._retry()

    def notify_lost(self) -> None:
        """The server has closed the connection."""
        self._to_client(self._attached, self._lose)

    def drop_connection(self) -> None:
        if self.state == CONNECTED:
            self._lose()

    def stop(self) -> bool:
        was_connected = self.state == CONNECTED
        is_reachable = not (self._network.is_cut(self._host, HOST) or self._network.is_cut(HOST, self._host))
        is_confirmed = was_connected and is_reachable and not self._server.is_down
        self.state = CLOSED
        self._number += 1
        if is_confirmed:
            with running_as(None):
                self._server.end_session(self.session_id)
        self.fail_pending()
        self._on_state(ConnectionState.LOST)
        return is_confirmed

    # --- requests --------------------------------------------------------------------------------------------------

    def submit(self, request: Request, result: Result) -> None:
        sent = Sent(request, result)
        if self.state == EXPIRED:
            sent.fail(SessionExpired())
        elif self.state == CLOSED:
            sent.fail(ConnectionLoss())
        elif self.state == CONNECTED:
            self._send(sent)
        else:
            self._queue.append(sent)

    def fail_pending(self) -> None:
        error = SessionExpired() if self.state == EXPIRED else ConnectionLoss()
        for waiting in (self._pending, self._queue):
            while waiting:
                waiting.popleft().fail(error)

    def _send(self, sent: Sent) -> None:
        self._pending.append(sent)
        self._to_server(self._execute, self.session_id, self.watcher, sent)

    def _execute(self, number: int, session_id: int, watcher: int, sent: Sent) -> None:
        """At the server. Requests of a connection that it has closed are ignored."""
        if sent.is_lost or not self._server.is_attached(session_id, watcher):
            return
        answer = self._server.handle(session_id, watcher, sent.request)
        if answer is not None:
            self._to_client(number, self._on_answer, sent, self._server.tree.last_zxid, *answer)

    def _on_answer(self, sent: Sent, zxid: int, value: Any, error: ZkError | None) -> None:
        first = self._pending.popleft()
        assert first is sent, "answers come in the order of the requests"
        self._last_zxid = zxid
        request, result = sent.request, sent.result
        if result is None:
            return
        op = request.op if isinstance(request, Read) else None
        if error is not None and not (isinstance(op, Exists) and isinstance(error, NoNode)):
            result.set_exception(error_for(error.code))
            return
        result.set(value)
        if isinstance(request, Read) and request.watcher is not None:
            watchers = self._child_watchers if isinstance(request.op, GetChildren) else self._data_watchers
            watchers.setdefault(request.op.path, {})[request.watcher] = None

    # --- watches ---------------------------------------------------------------------------------------------------

    def notify(self, event: WatchEvent) -> None:
        """At the server: before any later answer."""
        self._to_client(self._attached, self._on_event, event)

    def _on_event(self, event: WatchEvent) -> None:
        watchers: dict[Watcher, None] = {}
        if event.type is not EventType.CHILDREN_CHANGED:
            watchers |= self._data_watchers.pop(event.path, {})
        if event.type in (EventType.DELETED, EventType.CHILDREN_CHANGED):
            watchers |= self._child_watchers.pop(event.path, {})
        for watcher in watchers:
            watcher(event)

    def watch_data(self, paths: Sequence[str], on_data: Watcher) -> None:
        for path in paths:
            self._data_watchers.setdefault(path, {})[on_data] = None

    def restore_watches(
        self,
        data: Sequence[str],
        exist: Sequence[str],
        child: Sequence[str],
        on_data: Watcher,
        on_child: Watcher,
    ) -> None:
        for path in (*data, *exist):
            self._data_watchers.setdefault(path, {})[on_data] = None
        for path in child:
            self._child_watchers.setdefault(path, {})[on_child] = None
        if data or exist or child:
            self._send(Sent(SetWatches(self._last_zxid, data, exist, child), None))


class SimZkSession(ZkSession):
    """Nothing can block here: the next session begins when the last listener has finished."""

    _connection: SimZkConnection

    def __init__(self, network: Network, server: ZooKeeperServer, timeout_ms: int) -> None:
        super().__init__(
            f"{HOST}:2181", timeout_ms, lambda hosts, ms, on_state: SimZkConnection(network, server, ms, on_state)
        )

    def _wait_for(self, running: list[Running]) -> None:
        loop = asyncio.get_running_loop()
        ends = [asyncio.wrap_future(done, loop=loop) for _, done in running]

        async def begin() -> None:
            await asyncio.gather(*ends)
            self._connection.begin_new_session()

        self._beginning = loop.create_task(begin())


class SessionNote:
    """The session file that a broker leaves on its disk for its successor."""

    session_id: int | None = None
    is_a_copy = False
    """The next process cannot know that the previous one is dead: it waits for the session's expiry."""


class SimCoordination(Coordination):
    def __init__(
        self,
        config: KafkaConfig,
        on_failure: Callable[[str], None] | None,
        *,
        network: Network,
        server: ZooKeeperServer,
        note: SessionNote,
    ) -> None:
        super().__init__(config, on_failure)
        self._network = network
        self._server = server
        self._note = note

    def _open_session(self, hosts: str) -> ZkSession:
        return SimZkSession(self._network, self._server, self._config.zookeeper_session_timeout_ms)

    async def take_over(self, log_dirs: Sequence[Path]) -> bool:
        dead, self._zk_listener = self._note.session_id, SessionListener(after_new_session=self._remember)
        if dead is not None and not self._note.is_a_copy:
            host = current_host()
            await asyncio.sleep(self._network.loop.rng.uniform(0.002, 0.02))
            if self._server.is_down or self._network.is_cut(host, HOST) or self._network.is_cut(HOST, host):
                raise KlammError("ZooKeeper did not answer while the session of this broker's last run was ended")
            with running_as(None):
                self._server.end_session(dead)
        self._remember()
        self.zk.add_listener(self._zk_listener)
        return dead is not None

    def _remember(self) -> None:
        self._note.session_id = self.zk.session_id

    async def end_session(self) -> None:
        is_open = self._zk is not None and self._zk.state.value != "closed"
        if is_open and self._zk is not None and await self._zk.close():
            self._note.session_id = None
