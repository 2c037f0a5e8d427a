"""A session's connection to ZooKeeper: one thread reads, and callers write themselves.

Beside a busy event loop, the cost of a client is not its work but how often its thread must acquire the interpreter
lock: each blocking call releases it, and on a machine without an idle core the thread then waits for the core and for
the lock. Here the calling thread writes its request, and the connection's thread posts all received replies with one
call, so a reply costs one change of threads. No caller waits to write. A caller that finds the socket free takes it,
writes the requests of all callers, and puts it back. Otherwise it leaves its request to the current writer. While there
is no connection, the connection's thread holds the socket.

Results and watch events are delivered on the connection's thread in the order in which they were received, so a watch
event is known before the reply of any later read. Requests wait while there is no connection, and fail when one is
lost.
"""

from __future__ import annotations

import logging
import queue
import random
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import Final

from klamm.zk.client.addresses import Candidate, addresses_of, candidates
from klamm.zk.client.client_connection import ConnectionState, OnState, Result, SessionCredentials
from klamm.zk.client.client_requests import Close, Read, Request, Watcher, set_watches
from klamm.zk.client.login import log_in
from klamm.zk.client.loop_pulse import LoopPulse, StallWatch
from klamm.zk.client.pings import CHECKS, Heartbeat
from klamm.zk.client.refusals import Refusals
from klamm.zk.client.socket_io import ConnectionBroken, open_socket, read_exactly, send_some, shut
from klamm.zk.client.zk_security import UNSECURED, ZkSecurity
from klamm.zk.model import jute
from klamm.zk.model.jute import OpCode
from klamm.zk.model.ops import Code, ConnectionLoss, EventType, SessionExpired, WatchEvent, error_for

log = logging.getLogger(__name__)

_FIRST_DELAY_S: Final = 0.05
_LONGEST_DELAY_S: Final = 1.0
_STOP_LIMIT_S: Final = 10.0
_LOOK_S: Final = 0.05
_READ_BYTES: Final = 256 << 10
_LARGEST_FRAME: Final = 1 << 30
_CONNECT: Final = struct.Struct(">iiqiqi16s?")
_CONNECTED: Final = struct.Struct(">iiqi")
_REPLY: Final = struct.Struct(">iqi")
_EVENT: Final = struct.Struct(">iii")
_INT: Final = struct.Struct(">i")
_HEADER: Final = struct.Struct(">iii")
_PING: Final = _HEADER.pack(8, jute.PING_XID, OpCode.PING)
_NOBODY: Final = SessionCredentials(0, bytes(16))


class Phase(Enum):
    CONNECTING = "connecting"
    CONNECTED = "connected"
    EXPIRED = "expired"
    CLOSED = "closed"


class SocketConnection:
    """`on_state` runs on the connection's thread; while it runs, no new session is made.

    With `credentials` the first connection resumes that session.
    """

    def __init__(
        self,
        hosts: str,
        timeout_ms: int,
        on_state: OnState,
        credentials: SessionCredentials | None = None,
        security: ZkSecurity = UNSECURED,
    ) -> None:
        self._security = security
        self.session_id, self.password = credentials or _NOBODY
        self.last_zxid = 0
        self._watched_zxid = 0
        """The zxid up to which no watched change was missed: a connection may end while it sets watches again."""
        self._addresses = addresses_of(hosts)
        self._latest: tuple[str, int] | None = None
        self._timeout_ms = timeout_ms
        self._on_state = on_state
        self._phase = Phase.CONNECTING
        self._socket: socket.socket | None = None
        """The socket, for ending it. Only the holder of the token in `_free` writes to it."""
        self._free: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
        self._outbox: deque[tuple[bytes, Request | None, Result | None]] = deque()
        self._pending: deque[tuple[int, Request, Result | None]] = deque()
        self._xid, self._unsent = 0, b""
        self._data_watchers: dict[str, dict[Watcher, None]] = {}
        self._child_watchers: dict[str, dict[Watcher, None]] = {}
        self._last_sent_s = 0.0
        self._pulses: list[LoopPulse] = []
        self._stalled: LoopPulse | None = None
        """The stalled loop for which the session is given up. The next session begins when that loop runs again."""
        self._stalled_at = 0
        self._stopping = threading.Event()
        self._is_confirmed = False
        self.refusals = Refusals()
        self._thread = threading.Thread(target=self._run, name="zookeeper", daemon=True)

    @property
    def has_expired(self) -> bool:
        return self._phase is Phase.EXPIRED

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> bool:
        """End the session and wait for the thread.

        Return whether a server confirmed the end. A thread that still waits for a silent server after that time is left
        alone.
        """
        if not self._stopping.is_set():
            self._stopping.set()
            if self._phase is Phase.CONNECTED:
                self._put(Close(), None)
            elif (connection := self._socket) is not None:
                shut(connection)
        if self._thread.is_alive():
            self._thread.join(_STOP_LIMIT_S)
        return self._is_confirmed

    def drop_connection(self) -> None:
        """Cut the TCP connection, as a network fault would; the session continues. For tests."""
        if (connection := self._socket) is not None:
            shut(connection)

    def watch_loop(self, pulse: LoopPulse) -> None:
        """Give up the session if that loop stalls."""
        self._pulses.append(pulse)

    # --- requests, on any thread -------------------------------------------------------------------------------------

    def submit(self, request: Request, result: Result) -> None:
        self._put(request, result)
        if self._phase in (Phase.EXPIRED, Phase.CLOSED):
            self._fail_outbox(len(self._outbox))

    def _put(self, request: Request, result: Result | None) -> None:
        self._outbox.append((request.serialize(), request, result))
        self._flush()

    def _flush(self) -> None:
        """Check again after the socket was put back: requests that arrived meanwhile were left to this caller."""
        while self._outbox:
            try:
                connection = self._free.get_nowait()
            except queue.Empty:
                return
            if not self._write(connection):
                self._leave_rest(connection)
                return
            self._free.put(connection)

    def _leave_rest(self, connection: socket.socket) -> None:
        """Finish the write in a new thread.

        If no thread can be started, give up the connection, because part of a request was sent.
        """
        name = f"{self._thread.name}-writer"
        try:
            threading.Thread(target=self._write_rest, args=(connection,), name=name, daemon=True).start()
        except RuntimeError as error:
            log.warning("the connection with ZooKeeper is given up: %s", error)
            shut(connection)
            self._free.put(connection)

    def _write(self, connection: socket.socket) -> bool:
        """Write all requests; return whether the kernel accepted everything.

        A broken connection counts as accepting: the reading thread notices it.
        """
        while True:
            if self._unsent:
                self._unsent = self._unsent[send_some(connection, self._unsent) :]
                self._last_sent_s = time.monotonic()
                if self._unsent:
                    return False
            try:
                body, request, result = self._outbox.popleft()
            except IndexError:
                return True
            if request is None:
                self._unsent = body
                continue
            self._xid = self._xid % 0x7FFFFFFF + 1
            self._pending.append((self._xid, request, result))
            self._unsent = _HEADER.pack(8 + len(body), self._xid, request.type) + body

    def _write_rest(self, connection: socket.socket) -> None:
        """Runs in its own thread while the server reads more slowly than requests arrive."""
        poll = select.poll()
        poll.register(connection, select.POLLOUT)
        while not self._write(connection):
            poll.poll()
        self._free.put(connection)
        self._flush()

    def fail_pending(self) -> None:
        """Fail all pending requests with the error of the current state, on the connection's thread.

        A request that is repeated at once waits for the next connection.
        """
        unsent = len(self._outbox)
        while self._pending:
            self._fail(self._pending.popleft()[2])
        self._fail_outbox(unsent)

    def _fail_outbox(self, count: int) -> None:
        for _ in range(count):
            try:
                self._fail(self._outbox.popleft()[2])
            except IndexError:
                return

    def _fail(self, result: Result | None) -> None:
        if result is not None:
            result.set_exception(SessionExpired() if self.has_expired else ConnectionLoss())

    # --- watches, on the connection's thread -------------------------------------------------------------------------

    def watch_data(self, paths: Sequence[str], on_data: Watcher) -> None:
        """Register receivers for paths that the server watches already."""
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
        """Set watches again on a new connection, before every queued request. Called while `on_state` runs."""
        self.watch_data((*data, *exist), on_data)
        for path in child:
            self._child_watchers.setdefault(path, {})[on_child] = None
        before = [(m.serialize(), m, None) for m in set_watches(self._watched_zxid, data, exist, child)]
        self._outbox.extendleft(reversed(before))

    # --- the connection's thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        delay_s = _FIRST_DELAY_S
        while not self._stopping.is_set():
            if self._stalled is not None and self._waits_for_loop(self._stalled):
                self._stopping.wait(_LOOK_S)
                continue
            delay_s = _FIRST_DELAY_S if self._try_all() else min(delay_s * 2, _LONGEST_DELAY_S)
            self._stopping.wait(delay_s * random.uniform(0.5, 1.0))
        self._phase = Phase.CLOSED
        self.fail_pending()
        self._on_state(ConnectionState.LOST)

    def _try_all(self) -> bool:
        """Connect to one of the servers and serve until the connection is lost; return whether there was one."""
        for candidate in candidates(self._addresses, self._latest):
            if self._stopping.is_set():
                return False
            try:
                connection, timeout_s = self._connect(candidate)
            except (OSError, ConnectionBroken) as error:
                self._disconnect()
                self.refusals.note(candidate.address, error)
                continue
            except SessionExpired:
                self._disconnect()
                self._expire()
                return True
            self._latest = candidate.address
            self.refusals.forget()
            self._serve(connection, timeout_s)
            if self._stalled is not None and self._is_confirmed and not self._stopping.is_set():
                self._is_confirmed = False
                self._expire()
            return True
        return False

    def _waits_for_loop(self, pulse: LoopPulse) -> bool:
        """Whether a new session must wait. A session that no server has ended is ended over a new connection."""
        if pulse.is_stopped or pulse.beats != self._stalled_at:
            self._stalled = None
        return self._stalled is not None and self.session_id == 0

    def _give_up(self, pulse: LoopPulse) -> None:
        """Ask the server to end the session, so that others lead this broker's partitions."""
        log.error(
            "closing ZooKeeper session %#x: the %s loop was blocked for %g s",
            self.session_id,
            pulse.name,
            pulse.limit_s,
        )
        self._stalled, self._stalled_at = pulse, pulse.beats
        self._put(Close(), None)

    def _connect(self, candidate: Candidate) -> tuple[socket.socket, float]:
        """Shake hands; return the timeout that the server grants, in seconds.

        Raises SessionExpired if the session is gone.
        """
        patience_s = max(self._timeout_ms / 1000 / len(self._addresses), 0.1)
        connection = open_socket(candidate.address, candidate.name, patience_s, self._security.tls)
        self._socket = connection
        if self._stopping.is_set():
            raise ConnectionBroken("it is no longer needed")
        hello = _CONNECT.pack(45, 0, self.last_zxid, self._timeout_ms, self.session_id, 16, self.password, False)
        connection.sendall(hello)
        (size,) = _INT.unpack(read_exactly(connection, 4))
        if not _CONNECTED.size <= size <= 1024:
            raise ConnectionBroken(f"an answer of {size} bytes is not ZooKeeper's")
        answer = read_exactly(connection, size)
        _, timeout_ms, session_id, _ = _CONNECTED.unpack_from(answer)
        if timeout_ms <= 0:
            raise SessionExpired
        log_in(connection, self._security)  # first: a server may end the session of a client that it refuses
        self.session_id, self.password = session_id, answer[_CONNECTED.size : _CONNECTED.size + 16]
        connection.settimeout(None)
        tick = divmod(max(timeout_ms * 1000 // CHECKS, 10_000), 1_000_000)
        # A socket timeout: one call waits and reads.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", *tick))
        return connection, timeout_ms / 1000

    def _serve(self, connection: socket.socket, timeout_s: float) -> None:
        self._xid, self._unsent, self._last_sent_s = 0, b"", time.monotonic()
        self._phase = Phase.CONNECTED  # first, because a listener may stop us
        self._on_state(ConnectionState.CONNECTED)
        self._free.put(connection)
        self._flush()
        try:
            self._read(connection, timeout_s)
        except (OSError, ConnectionBroken) as error:
            log.debug("the connection with ZooKeeper is lost: %s", error)
        except Exception:  # an unreadable answer: another connection may work
            log.exception("an answer of ZooKeeper could not be read")
        self._phase = Phase.CONNECTING
        shut(connection)  # the current writer finishes
        self._free.get()
        self._disconnect()
        self.fail_pending()
        if not self._is_confirmed:
            self._on_state(ConnectionState.SUSPENDED)
        self._data_watchers.clear()
        self._child_watchers.clear()

    def _expire(self) -> None:
        """Listeners prepare for the next session before `on_state` returns."""
        self._phase = Phase.EXPIRED
        self._on_state(ConnectionState.LOST)
        self.fail_pending()
        self.session_id, self.password = _NOBODY
        self.last_zxid = self._watched_zxid = 0
        self._phase = Phase.CONNECTING

    def _disconnect(self) -> None:
        connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()

    def _read(self, connection: socket.socket, timeout_s: float) -> None:
        """Serve until the session is closed or the connection is lost."""
        came = bytearray()
        heartbeat, watch = Heartbeat(timeout_s, time.monotonic()), StallWatch()
        if self._stalled is not None:
            self._put(Close(), None)
        while not self._is_confirmed:
            try:
                chunk = connection.recv(_READ_BYTES)
            except BlockingIOError:
                chunk = None
            now_s = time.monotonic()
            if chunk:
                heartbeat.receive(now_s)
                came += chunk
                self._take_frames(came)
            elif chunk is not None:
                raise ConnectionBroken("the server closed it")
            elif heartbeat.is_lost(now_s):
                raise ConnectionBroken("the server is silent")
            if self._stalled is None and (pulse := watch.stalled(self._pulses, now_s)) is not None:
                self._give_up(pulse)
            if heartbeat.is_due(now_s, self._last_sent_s):
                self._outbox.append((_PING, None, None))
                self._flush()

    def _take_frames(self, came: bytearray) -> None:
        """Handle the complete frames and remove them from the buffer."""
        position, end = 0, len(came)
        while end - position >= 4:
            (size,) = _INT.unpack_from(came, position)
            if not _REPLY.size <= size <= _LARGEST_FRAME:
                raise ConnectionBroken(f"a frame of {size} bytes is not ZooKeeper's")
            if end - position - 4 < size:
                break
            self._take(bytes(came[position + 4 : position + 4 + size]))
            position += 4 + size
        del came[:position]

    def _take(self, frame: bytes) -> None:
        xid, zxid, code = _REPLY.unpack_from(frame)
        if xid == jute.PING_XID:
            return
        if xid == jute.NOTIFICATION_XID:
            self._take_event(frame)
            return
        if not self._pending or self._pending[0][0] != xid:
            raise ConnectionBroken(f"ZooKeeper sent a reply with unknown xid {xid}")
        _, request, result = self._pending[0]
        if zxid > 0:
            self.last_zxid = zxid
            if result is not None:  # all watches were set again before it
                self._watched_zxid = zxid
        if isinstance(request, Close):
            self._is_confirmed = True
        elif result is not None:
            self._answer(request, result, code, frame)
        self._pending.popleft()

    def _answer(self, request: Request, result: Result, code: int, frame: bytes) -> None:
        is_missing = code == Code.NO_NODE and request.type == OpCode.EXISTS
        if code and not is_missing:
            result.set_exception(error_for(code))
            return
        result.set(None if is_missing else request.deserialize(frame, _REPLY.size))
        if isinstance(request, Read) and request.watcher is not None:
            is_child = request.type == OpCode.GET_CHILDREN2
            watchers = self._child_watchers if is_child else self._data_watchers
            watchers.setdefault(request.op.path, {})[request.watcher] = None

    def _take_event(self, frame: bytes) -> None:
        kind, _, length = _EVENT.unpack_from(frame, _REPLY.size)
        start = _REPLY.size + _EVENT.size
        path = frame[start : start + length].decode()
        watchers: dict[Watcher, None] = {}
        if kind != EventType.CHILDREN_CHANGED:
            watchers |= self._data_watchers.pop(path, {})
        if kind in (EventType.DELETED, EventType.CHILDREN_CHANGED):
            watchers |= self._child_watchers.pop(path, {})
        for watcher in watchers if not self._stopping.is_set() else ():
            watcher(WatchEvent(EventType(kind), path))
