"""The embedded ZooKeeper: `ZnodeTree` behind ZooKeeper's own protocol, durable, in one event loop.

To clients such as kazoo it behaves like ZooKeeper 3.9 in standalone mode. Exceptions: container and TTL znodes, quotas,
persistent watches and reconfiguration are UNIMPLEMENTED; after a pause of the server, sessions are extended by its
length.

    python -m klamm.zk.server.main --data-dir D --port P

Requests of a connection are answered in order, and a watch event comes before any reply that shows the change.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from klamm.clock import Clock, SystemClock
from klamm.lazy_dataclass import lazy_dataclass
from klamm.model import is_loopback
from klamm.zk.model import jute
from klamm.zk.model.jute import OpCode
from klamm.zk.model.limits import MAX_CONNECTIONS, MAX_SESSIONS
from klamm.zk.model.ops import AuthFailed, Code, ThrottledOp, ZkError
from klamm.zk.model.tree import ZnodeTree
from klamm.zk.server.accepting import Accepting
from klamm.zk.server.admission import Admission, greediest
from klamm.zk.server.committer import Committer
from klamm.zk.server.database import LoggedTree
from klamm.zk.server.four_letters import four_letter_words
from klamm.zk.server.request_processor import WRITES, execute_read
from klamm.zk.server.server_connection import Connection, NewSession
from klamm.zk.server.shared_secret import ALWAYS_ADMITTED, OPEN_GATE, Gate
from klamm.zk.server.snapshot_process import Compaction
from klamm.zk.server.txnlog import DataDir, sync_dir
from klamm.zk.server.znode_guard import ZnodeGuard

if TYPE_CHECKING:
    from ssl import SSLContext

log = logging.getLogger(__name__)

DEFAULT_TICK_MS: Final = 2_000
MAX_FRAME_BYTES: Final = 0xFFFFF
"""The default of ZooKeeper's jute.maxbuffer."""
MAX_UNSYNCED_BYTES: Final = 64 << 20
"""Maximum changes that wait for the disk. Beyond it no request is read."""
MAX_HELD_BYTES: Final = 256 << 20
"""Unread requests and unsent answers of all connections; beyond it, the connection with the most of them ends."""
_HELD_CHECK_BYTES: Final = 8 << 20
_EXPIRED_PER_TURN: Final = 200
_NO_TOKEN: Final = b"\xff\xff\xff\xff"


@lazy_dataclass(frozen=True, slots=True)
class ServerOptions:
    """Limits of the server, and how clients reach it."""

    max_connections_per_host: int = 1_000
    max_connections: int = MAX_CONNECTIONS
    roll_bytes: int = 64 << 20
    """Size of the transaction log at which it is compacted into a snapshot."""
    gate: Gate = OPEN_GATE
    guards_znodes: bool = True
    """Whether all znodes carry an access rule for the secret of the gate, if it has one; otherwise none does."""
    tls: SSLContext | None = None


class EmbeddedZooKeeper:
    """One server. `start` recovers the data directory and listens; `stop` keeps sessions for the next start.

    `fsync=False` is for tests: a crash of the machine may then lose acknowledged changes, a crash of the process not.
    """

    def __init__(
        self,
        data_dir: Path | str,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        min_session_timeout_ms: int = 2 * DEFAULT_TICK_MS,
        max_session_timeout_ms: int = 20 * DEFAULT_TICK_MS,
        fsync: bool = True,
        options: ServerOptions | None = None,
        clock: Clock | None = None,
    ) -> None:
        options = options if options is not None else ServerOptions()
        self.host = host
        self.port = port
        self.max_frame_bytes = MAX_FRAME_BYTES
        self.failed = asyncio.Event()
        self.failure: OSError | None = None
        self.received = self.sent = 0
        self.connections: dict[int, Connection] = {}
        self._path = Path(data_dir)
        self._min_timeout_ms, self._max_timeout_ms = min_session_timeout_ms, max_session_timeout_ms
        self._tick_ms = max(10, min(DEFAULT_TICK_MS, min_session_timeout_ms // 2))
        self._fsync = fsync
        self._admission = Admission(options.max_connections_per_host, options.max_connections)
        self._roll_bytes, self._gate, self._guards_znodes = options.roll_bytes, options.gate, options.guards_znodes
        self._accepting = Accepting(self._accept, options.tls)
        self._clock = clock or SystemClock()
        self.tree = ZnodeTree(tick_ms=self._tick_ms)
        self.commands = four_letter_words(self)
        self._by_session: dict[int, Connection] = {}
        self._dirty: dict[int, Connection] = {}
        self._next_session_id = self._next_connection = 1
        self._moved_bytes = 0
        self._awaiting_disk: dict[int, Connection] = {}
        self._has_ended = False
        self._guard: ZnodeGuard | None = None
        self._is_listening = False

    # --- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> EmbeddedZooKeeper:
        """Recover and listen. Raises DataDirError if the directory cannot be used, OSError if the port cannot."""
        self._loop = asyncio.get_running_loop()
        self._data_dir = DataDir(self._path)
        try:
            self._data_dir.recover(self.tree)
            self._begin_log()
        except BaseException:
            self._data_dir.close()
            raise
        try:
            self._begin_sessions()
            await self._begin_guard()
            self.port = await self._accepting.listen(self.host, self.port)
        except BaseException:
            await self._committer.close()
            self._data_dir.close()
            raise
        self._tick_due_ms = self._monotonic_ms() + self._tick_ms
        self._timer = self._loop.call_later(self._tick_ms / 1_000, self._tick)
        self._is_listening = True
        self._compaction.start_after_recovery()
        return self

    def _begin_log(self) -> None:
        if self._fsync:
            self._data_dir.sync_last_log()
        fd = self._data_dir.new_log(self.tree.last_zxid + 1)
        if self._fsync:
            os.fsync(fd)
            sync_dir(self._path)
        self._committer = Committer(
            fd, self._path, fsync=self._fsync, on_released=self._on_released, on_failure=self._on_log_failure
        )
        self._logged = LoggedTree(self.tree, self._committer)
        self._compaction = Compaction(self._data_dir, self.tree, self._committer, self._roll_bytes, self._monotonic_ms)

    def _begin_sessions(self) -> None:
        now_ms = self._monotonic_ms()
        for session_id in self.tree.sessions:
            self.tree.touch_session(session_id, now_ms)
        epoch = (self._clock.now_ms() << 24 & (1 << 64) - 1) >> 8
        self._next_session_id = max(epoch, *self.tree.sessions, 1) + 1 if self.tree.sessions else epoch

    async def _begin_guard(self) -> None:
        if (owner := self._gate.identity) is None:
            return
        self._guard = ZnodeGuard(self.tree, self._logged, owner, is_on=self._guards_znodes)
        self._guard.start(lambda: self._create_session(self._new_session(self._min_timeout_ms)), self._clock.now_ms())
        await self._committer.settle()
        if self.failure is not None:
            raise self.failure

    async def stop(self) -> None:
        """Send written answers, close connections and files. Sessions survive if the server comes back in time."""
        self._end()
        await self._compaction.stop(log_failed=self.failed.is_set())
        await self._committer.close()
        self.flush()
        for connection in list(self.connections.values()):
            connection.close()
        await self._accepting.settle()
        self._data_dir.close()

    def _end(self) -> None:
        self._has_ended = True
        if self._is_listening:
            self._timer.cancel()
            self._accepting.close()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def outstanding(self) -> int:
        return self._committer.outstanding

    @property
    def is_congested(self) -> bool:
        """Whether so many changes wait for the disk that no further request is read."""
        return self._committer.pending_bytes > MAX_UNSYNCED_BYTES

    def await_disk(self, connection: Connection) -> None:
        """Resume a connection when the server is no longer congested."""
        self._awaiting_disk[connection.number] = connection

    def _on_released(self) -> None:
        self.flush()
        if self._awaiting_disk and not self.is_congested:
            awaiting, self._awaiting_disk = self._awaiting_disk, {}
            for connection in awaiting.values():
                connection.update_reading()

    def _on_log_failure(self, error: OSError) -> None:
        """The server can no longer guarantee durability: disconnect clients, which look for another server."""
        self.failure = error
        self._end()
        for connection in list(self.connections.values()):
            connection.abort()
        self.failed.set()

    # --- connections -------------------------------------------------------------------------------------------------

    def _accept(self, host: str) -> Connection:
        """Make a connection, and count it. It is closed if too many are in use."""
        self._next_connection += 1
        connection = Connection(self, self._next_connection, host)
        if self._admission.admit(connection, self._monotonic_ms()):
            self.connections[connection.number] = connection
            self.tree.identify_watcher(connection.number, connection.auth)
        else:
            connection.close()
        return connection

    def may_ask(self, connection: Connection) -> bool:
        """Whether a client without a session may send four-letter words."""
        return self._gate.is_open or is_loopback(connection.host)

    def on_closing(self, connection: Connection) -> None:
        self._admission.on_closing(connection, self._monotonic_ms())

    def on_disconnected(self, connection: Connection) -> None:
        """Watches end with the connection. The session does not."""
        self.connections.pop(connection.number, None)
        self._admission.remove(connection)
        self.tree.remove_watcher(connection.number)
        if connection.session_id is not None and self._by_session.get(connection.session_id) is connection:
            del self._by_session[connection.session_id]

    def on_frame(self, connection: Connection, frame: bytes) -> None:
        self.received += 1
        try:
            if connection.session_id is None:
                if self._gate.admits(connection.auth):
                    self._admission.on_proven(connection)
                self._connect(connection, jute.read_connect(frame))
                return
            xid, opcode, body = jute.read_header(frame)
        except ZkError as error:
            self._admission.log_end(connection, str(error), self._monotonic_ms())
            connection.close()
            return
        session_id = connection.session_id
        if connection.new_session is None and not self.tree.touch_session(session_id, self._monotonic_ms()):
            self._committer.when_safe(connection.close)
            return
        self._execute(connection, session_id, xid, opcode, body)

    def on_bytes(self, size: int) -> None:
        """Count received and unsent bytes, and check from time to time how much the connections hold."""
        self._moved_bytes += size
        if self._moved_bytes < _HELD_CHECK_BYTES:
            return
        self._moved_bytes = 0
        for size, greedy in greediest(self.connections, MAX_HELD_BYTES):
            self._admission.log_end(greedy, f"it holds {size} bytes of requests and answers", self._monotonic_ms())
            greedy.abort()

    def _send(self, connection: Connection, frame: bytes) -> None:
        self.sent += 1
        self.on_bytes(len(frame))
        if self._committer.is_safe:
            connection.write(frame)
            self._dirty[connection.number] = connection
        else:
            connection.wait_one(frame)
            self._committer.when_safe(partial(self._deliver, connection, frame))

    def _deliver(self, connection: Connection, frame: bytes) -> None:
        connection.deliver(frame)
        self._dirty[connection.number] = connection

    def flush(self) -> None:
        """Pass written answers to the sockets, once per turn of the loop."""
        dirty, self._dirty = self._dirty, {}
        for connection in dirty.values():
            connection.flush()

    # --- sessions ----------------------------------------------------------------------------------------------------

    def _connect(self, connection: Connection, request: jute.ConnectRequest) -> None:
        if request.last_zxid_seen > self.tree.last_zxid:
            raise ZkError(
                message=f"its last zxid {request.last_zxid_seen:#x} is ahead of ours, {self.tree.last_zxid:#x}"
            )
        timeout_ms = min(max(request.timeout_ms, self._min_timeout_ms), self._max_timeout_ms)
        if request.session_id == 0:
            session_id, _, password = new = self._new_session(timeout_ms)
            if self._gate.admits(connection.auth):
                self._create_session(new)
            else:  # Strangers must not use up the sessions, nor write to the log.
                connection.new_session = new
        else:
            session_id, password = request.session_id, request.password
            if not self._resume_session(session_id, password, timeout_ms):
                connection.session_id = 0
                self._send(connection, jute.connect_response(0, 0, bytes(16)))
                self._committer.when_safe(connection.close)
                return
        connection.session_id = session_id
        self._by_session[session_id] = connection
        self._send(connection, jute.connect_response(timeout_ms, session_id, password))

    def _new_session(self, timeout_ms: int) -> NewSession:
        self._next_session_id += 1
        return NewSession(self._next_session_id - 1, timeout_ms, os.urandom(16))

    def _create_session(self, new: NewSession) -> int:
        if len(self.tree.sessions) >= MAX_SESSIONS:
            raise ThrottledOp(message=f"there are {MAX_SESSIONS} sessions already")
        self._logged.create_session(new.id, new.timeout_ms, self._monotonic_ms(), new.password)
        return new.id

    def _resume_session(self, session_id: int, password: bytes, timeout_ms: int) -> bool:
        session = self.tree.sessions.get(session_id)
        if session is None or not hmac.compare_digest(session.password, password):
            return False
        self.tree.touch_session(session_id, self._monotonic_ms(), timeout_ms)
        old = self._by_session.pop(session_id, None)
        if old is not None:
            old.close()
        return True

    def _close_session(self, session_id: int) -> None:
        self._logged.close_session(session_id, self._clock.now_ms())
        self._notify()

    def _tick(self) -> None:
        """End overdue sessions and silent connections, and start the compaction of large logs."""
        now_ms = self._monotonic_ms()
        late_ms = now_ms - self._tick_due_ms
        if late_ms > self._tick_ms:
            log.warning("server was stalled for %d ms; extending all sessions by this time", late_ms)
            for session in self.tree.sessions.values():
                session.deadline_ms += late_ms
        self._expire_sessions(now_ms)
        for connection in self._admission.overdue(now_ms):
            self._admission.log_end(connection, "it did not present itself in time, or does not read", now_ms)
            connection.abort()
        if self._has_ended:
            return
        self._compaction.start_if_due()
        self._tick_due_ms = now_ms + self._tick_ms
        self._timer = self._loop.call_later(self._tick_ms / 1_000, self._tick)

    def _expire_sessions(self, now_ms: int) -> None:
        """End sessions that were overdue at `now_ms`, in slices: other clients are served in between."""
        overdue = [] if self._has_ended else self.tree.overdue_sessions(now_ms)
        for session_id in overdue[:_EXPIRED_PER_TURN]:
            self.expire_session(session_id)
        if len(overdue) > _EXPIRED_PER_TURN:
            self._loop.call_soon(self._expire_sessions, now_ms)

    def expire_session(self, session_id: int) -> None:
        """End a session as if its client had been silent for too long. Tests inject this fault too."""
        log.info("session %#x has expired", session_id)
        self._close_session(session_id)
        connection = self._by_session.pop(session_id, None)
        if connection is not None:
            self._committer.when_safe(connection.close)
        self.flush()

    def _monotonic_ms(self) -> int:
        return int(self._clock.monotonic() * 1_000)

    # --- requests ----------------------------------------------------------------------------------------------------

    def _execute(self, connection: Connection, session_id: int, xid: int, opcode: int, body: bytes) -> None:
        tree = self.tree
        if opcode == OpCode.PING:
            self._send(connection, jute.reply(jute.PING_XID, tree.last_zxid, 0))
            return
        answer, code = b"", 0
        try:
            if opcode not in ALWAYS_ADMITTED and not self._gate.admits(connection.auth):
                raise AuthFailed(message="this server requires its shared secret")
            if opcode in WRITES:
                now_ms = self._clock.now_ms()
                answer = self._logged.write(session_id, opcode, body, now_ms, connection.auth)
                if self._guard is not None and self._guard.unfinished:
                    self._guard.finish(session_id, now_ms)
            elif opcode == OpCode.CLOSE_SESSION:
                if connection.new_session is None:
                    self._close_session(session_id)
                self._by_session.pop(session_id, None)
            elif opcode == OpCode.AUTH:
                self._authenticate(connection, *jute.read_auth(body))
            elif opcode == OpCode.SASL:
                answer, code = _NO_TOKEN, Code.AUTH_FAILED
            else:
                answer = execute_read(tree, opcode, body, connection.number, connection.auth)
        except ZkError as error:
            code = error.code
        self._notify()
        self._send(connection, jute.reply(xid, tree.last_zxid, code, answer))
        if opcode == OpCode.CLOSE_SESSION or code == Code.AUTH_FAILED:
            connection.end()
            self._committer.when_safe(connection.close)

    def _notify(self) -> None:
        """Send the events of one change.

        Restored watches may cause thousands for one connection; they are sent together.
        """
        events = self.tree.take_events()
        if not events:
            return
        owed: dict[int, list[bytes]] = {}
        for watcher, event in events:
            owed.setdefault(watcher, []).append(jute.notification(event))
        for watcher, frames in owed.items():
            connection = self.connections.get(watcher)
            if connection is not None:
                self.sent += len(frames) - 1
                self._send(connection, frames[0] if len(frames) == 1 else b"".join(frames))

    def _authenticate(self, connection: Connection, scheme: str, credential: bytes) -> None:
        if scheme == "ip":
            return
        try:
            auth = self._gate.identify(connection.auth, scheme, credential)
        except AuthFailed:
            self._admission.log_end(connection, "its credentials are refused", self._monotonic_ms())
            raise
        if connection.new_session is not None:
            self._create_session(connection.new_session)
            connection.new_session = None
        connection.auth = auth
        self._admission.on_proven(connection)
        self.tree.identify_watcher(connection.number, auth)
