"""The embedded ZooKeeper: `ZnodeTree` behind ZooKeeper's own protocol, durable, in one event loop.

Clients such as kazoo cannot tell it from a ZooKeeper 3.9 in standalone mode, except that container and TTL znodes,
quotas, persistent watches and reconfiguration are not there (UNIMPLEMENTED), and that a server which was itself paused
does not blame its clients: their sessions are extended by the pause.

    python -m klamm.zk.server --data-dir D --port P

Requests of a connection are answered in order, and a watch event comes before any reply that shows the change.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import subprocess
import sys
from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from struct import pack
from typing import Final

from klamm.clock import Clock, SystemClock
from klamm.zk import jute
from klamm.zk.committer import Committer
from klamm.zk.connection import Connection
from klamm.zk.four_letters import four_letter_words
from klamm.zk.jute import OpCode
from klamm.zk.ops import AuthFailed, Code, Id, MarshallingError, ZkError
from klamm.zk.requests import WRITES, execute_read, execute_write
from klamm.zk.tree import ZnodeTree
from klamm.zk.txnlog import DataDir, LogRecord, encode_record, numbered, sync_dir

log = logging.getLogger(__name__)

DEFAULT_TICK_MS: Final = 2_000
MAX_LOG_FILES: Final = 8
COMPACTION_RETRY_MS: Final = 60_000
"""How long after a disk error the next compaction is tried."""


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
        max_connections_per_host: int = 1_000,
        max_frame_bytes: int = 0xFFFFF,
        roll_bytes: int = 64 << 20,
        clock: Clock | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.max_frame_bytes = max_frame_bytes
        self.failed = asyncio.Event()
        self.failure: OSError | None = None
        self.received = self.sent = 0
        self.connections: dict[int, Connection] = {}
        self._path = Path(data_dir)
        self._min_timeout_ms, self._max_timeout_ms = min_session_timeout_ms, max_session_timeout_ms
        self._tick_ms = max(10, min(DEFAULT_TICK_MS, min_session_timeout_ms // 2))
        self._fsync = fsync
        self._max_connections_per_host = max_connections_per_host
        self._roll_bytes = roll_bytes
        self._clock = clock or SystemClock()
        self.tree = ZnodeTree(tick_ms=self._tick_ms)
        self.commands = four_letter_words(self)
        self._by_session: dict[int, Connection] = {}
        self._hosts: Counter[str] = Counter()
        self._dirty: dict[int, Connection] = {}
        self._next_session_id = self._next_connection = 1
        self._compaction: asyncio.Task[None] | None = None
        self._compactor: subprocess.Popen[bytes] | None = None
        self._is_stopping_compaction = False
        self._compaction_due_ms = 0

    # --- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> EmbeddedZooKeeper:
        """Raises DataDirError when the directory cannot be used, OSError when the port cannot."""
        self._loop = asyncio.get_running_loop()
        self._data_dir = DataDir(self._path)
        try:
            self._data_dir.recover(self.tree)
            self._begin_log()
            self._server = await self._loop.create_server(self._accept, self.host, self.port, backlog=512)
        except BaseException:
            self._data_dir.close()
            raise
        self.port = self._server.sockets[0].getsockname()[1]
        now_ms = self._monotonic_ms()
        for session_id in self.tree.sessions:
            self.tree.touch_session(session_id, now_ms)
        epoch = (self._clock.now_ms() << 24 & (1 << 64) - 1) >> 8
        self._next_session_id = max(epoch, *self.tree.sessions, 1) + 1 if self.tree.sessions else epoch
        self._tick_due_ms = now_ms + self._tick_ms
        self._timer = self._loop.call_later(self._tick_ms / 1_000, self._tick)
        if len(numbered(self._path, "log")) > MAX_LOG_FILES:
            self._start_compaction(self.tree.last_zxid + 1)
        return self

    def _begin_log(self) -> None:
        fd = self._data_dir.new_log(self.tree.last_zxid + 1)
        if self._fsync:
            os.fsync(fd)
            sync_dir(self._path)
        self._committer = Committer(
            fd, self._path, fsync=self._fsync, on_released=self.flush, on_failure=self._on_disk_failure
        )

    async def stop(self) -> None:
        """Answers what is written, closes connections and files. Sessions go on when the server comes back in time."""
        self._timer.cancel()
        self._server.close()
        await self._stop_compaction()
        await self._committer.close()
        self.flush()
        for connection in list(self.connections.values()):
            connection.close()
        self._data_dir.close()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def outstanding(self) -> int:
        return self._committer.outstanding

    def _on_disk_failure(self, error: OSError) -> None:
        """Nothing can be promised any more: clients are cut off and look for another server."""
        self.failure = error
        self._server.close()
        for connection in list(self.connections.values()):
            connection.abort()
        self.failed.set()

    # --- connections -------------------------------------------------------------------------------------------------

    def _accept(self) -> Connection:
        self._next_connection += 1
        return Connection(self, self._next_connection)

    def on_connected(self, connection: Connection) -> bool:
        """False when the client's host has too many connections already."""
        self.connections[connection.number] = connection
        self._hosts[connection.host] += 1
        self.tree.identify_watcher(connection.number, connection.auth)
        return self._hosts[connection.host] <= self._max_connections_per_host

    def on_disconnected(self, connection: Connection) -> None:
        """Watches end with the connection, the session does not."""
        self.connections.pop(connection.number, None)
        self._hosts[connection.host] -= 1
        if not self._hosts[connection.host]:
            del self._hosts[connection.host]
        self.tree.remove_watcher(connection.number)
        if connection.session_id is not None and self._by_session.get(connection.session_id) is connection:
            del self._by_session[connection.session_id]

    def on_frame(self, connection: Connection, frame: bytes) -> None:
        self.received += 1
        try:
            if connection.session_id is None:
                self._connect(connection, jute.read_connect(frame))
                return
            xid, opcode, body = jute.read_header(frame)
        except MarshallingError as error:
            log.warning("closing the connection from %s: %s", connection.host, error)
            connection.close()
            return
        if not self.tree.touch_session(connection.session_id, self._monotonic_ms()):
            self._committer.when_safe(connection.close)
            return
        self._execute(connection, connection.session_id, xid, opcode, body)

    def _send(self, connection: Connection, frame: bytes) -> None:
        self.sent += 1
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
        """Hands what was written to the sockets, once a turn."""
        dirty, self._dirty = self._dirty, {}
        for connection in dirty.values():
            connection.flush()

    # --- sessions ----------------------------------------------------------------------------------------------------

    def _connect(self, connection: Connection, request: jute.ConnectRequest) -> None:
        if request.last_zxid_seen > self.tree.last_zxid:
            log.warning(
                "refusing %s: it has seen %#x, we are at %#x",
                connection.host,
                request.last_zxid_seen,
                self.tree.last_zxid,
            )
            connection.close()
            return
        timeout_ms = min(max(request.timeout_ms, self._min_timeout_ms), self._max_timeout_ms)
        if request.session_id == 0:
            session_id, password = self._new_session(timeout_ms)
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

    def _new_session(self, timeout_ms: int) -> tuple[int, bytes]:
        session_id, password = self._next_session_id, os.urandom(16)
        self._next_session_id += 1
        self.tree.create_session(session_id, timeout_ms, self._monotonic_ms(), password)
        self._log(session_id, OpCode.CREATE_SESSION, pack(">i", timeout_ms) + password)
        return session_id, password

    def _resume_session(self, session_id: int, password: bytes, timeout_ms: int) -> bool:
        session = self.tree.sessions.get(session_id)
        if session is None or session.password != password:
            return False
        self.tree.touch_session(session_id, self._monotonic_ms(), timeout_ms)
        old = self._by_session.pop(session_id, None)
        if old is not None:
            old.close()
        return True

    def _close_session(self, session_id: int) -> None:
        self.tree.close_session(session_id, self._clock.now_ms())
        self._log(session_id, OpCode.CLOSE_SESSION, b"")
        self._notify()

    def _tick(self) -> None:
        """Ends overdue sessions, and looks after the size of the log."""
        now_ms = self._monotonic_ms()
        late_ms = now_ms - self._tick_due_ms
        if late_ms > self._tick_ms:
            log.warning("the server stood still for %d ms; sessions are extended by that", late_ms)
            for session in self.tree.sessions.values():
                session.deadline_ms += late_ms
        for session_id in self.tree.overdue_sessions(now_ms):
            self.expire_session(session_id)
        is_full = self._committer.size_bytes > self._roll_bytes
        if is_full and self._compaction is None and now_ms >= self._compaction_due_ms:
            self._start_compaction(None)
        self._tick_due_ms = now_ms + self._tick_ms
        self._timer = self._loop.call_later(self._tick_ms / 1_000, self._tick)

    def expire_session(self, session_id: int) -> None:
        """Ends a session as if its client had been silent for too long; faults of tests come in here too."""
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
            if opcode in WRITES:
                answer = self._write(connection, session_id, opcode, body)
            elif opcode == OpCode.CLOSE_SESSION:
                self._close_session(session_id)
                self._by_session.pop(session_id, None)
            elif opcode == OpCode.AUTH:
                self._authenticate(connection, *jute.read_auth(body))
            else:
                answer = execute_read(tree, opcode, body, connection.number, connection.auth)
        except ZkError as error:
            code = error.code
        self._notify()
        self._send(connection, jute.reply(xid, tree.last_zxid, code, answer))
        if opcode == OpCode.CLOSE_SESSION or code == Code.AUTH_FAILED:
            self._committer.when_safe(connection.close)

    def _write(self, connection: Connection, session_id: int, opcode: int, body: bytes) -> bytes:
        tree, now_ms = self.tree, self._clock.now_ms()
        before = tree.last_zxid
        answer = execute_write(tree, session_id, opcode, body, now_ms, connection.auth)
        if tree.last_zxid != before:
            self._log(session_id, opcode, body, now_ms, connection.auth)
        return answer

    def _log(self, session_id: int, opcode: int, body: bytes, now_ms: int = 0, auth: Sequence[Id] = ()) -> None:
        self._committer.append(encode_record(LogRecord(self.tree.last_zxid, now_ms, session_id, opcode, auth, body)))

    def _notify(self) -> None:
        for watcher, event in self.tree.take_events():
            connection = self.connections.get(watcher)
            if connection is not None:
                self._send(connection, jute.notification(event))

    def _authenticate(self, connection: Connection, scheme: str, credential: bytes) -> None:
        if scheme == "ip":
            return
        if scheme != "digest":
            raise AuthFailed(message=f"authentication scheme {scheme!r} is not supported")
        user = credential.decode(errors="replace").split(":", 1)[0]
        digest = b64encode(hashlib.sha1(credential).digest()).decode()
        who = Id("digest", f"{user}:{digest}")
        if who not in connection.auth:
            connection.auth = (*connection.auth, who)
            self.tree.identify_watcher(connection.number, connection.auth)

    # --- snapshots ---------------------------------------------------------------------------------------------------

    def _start_compaction(self, closed_before: int | None) -> None:
        self._compaction = self._loop.create_task(self._compact(closed_before))

    async def _compact(self, closed_before: int | None) -> None:
        """Begins a new log unless one was just begun; a process of its own turns the closed ones into a snapshot."""
        try:
            if closed_before is None:
                closed_before = self.tree.last_zxid + 1
                await self._committer.roll(self._data_dir.new_log(closed_before))
            status = await self._loop.run_in_executor(None, self._run_compactor, closed_before)
            if status == 0:
                await self._loop.run_in_executor(None, self._data_dir.remove_covered)
            elif not self._is_stopping_compaction:
                log.error(
                    "the snapshot before %#x was not written (exit status %d); logs are kept", closed_before, status
                )
        except OSError as error:  # the log goes on as it is: only what is over would have become smaller
            self._compaction_due_ms = self._monotonic_ms() + COMPACTION_RETRY_MS
            log.error("the logs in %s cannot be compacted now: %s; they are kept", self._path, error)
        finally:
            self._compaction = self._compactor = None

    def _run_compactor(self, closed_before: int) -> int:
        command = [sys.executable, "-m", "klamm.zk.txnlog", str(self._path), str(closed_before)]
        self._compactor = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        return self._compactor.wait()

    async def _stop_compaction(self) -> None:
        task, self._is_stopping_compaction = self._compaction, True
        while task is not None and not task.done():
            if self._compactor is not None:
                self._compactor.terminate()
            if self.failed.is_set():
                task.cancel()
            await asyncio.wait([task], timeout=0.05)


if __name__ == "__main__":
    from klamm.zk.main import main

    sys.exit(main())
