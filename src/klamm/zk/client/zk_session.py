"""`ZkSession`: the broker's session with ZooKeeper, awaitable from any event loop.

Reads that lose their connection are repeated until they are answered or the session ends. A write that loses it raises
`ConnectionLoss`: it may have taken effect, and only a read can show that. When a session expires, listeners receive
`before_new_session`, which is awaited before the next session is created, and then `after_new_session`.

Watches follow Kafka's rule: a handler is registered for a path and stays; the one-shot watch underneath is armed by a
read with `watch=True` and by nothing else. An event without a handler is dropped. After a reconnect within the session
the watches are set again, so no change is missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future as ThreadFuture
from functools import partial
from typing import Any, Final, TypeVar, cast, overload

from klamm.zk.client.answers import about, read_result
from klamm.zk.client.batches import levels_of, path_batches
from klamm.zk.client.chroot import Chroot, split_hosts
from klamm.zk.client.client_connection import Connect, ConnectionState, SessionCredentials
from klamm.zk.client.client_requests import (
    Multi,
    MultiRead,
    Read,
    ReadRules,
    Request,
    SetWatches,
    Sync,
    Write,
    WriteRules,
)
from klamm.zk.client.loop_pulse import LoopPulse
from klamm.zk.client.posting import Inbox, Reply, resolve, start_callback
from klamm.zk.client.request_limit import check_size
from klamm.zk.client.session_state import SessionListener as SessionListener
from klamm.zk.client.session_state import SessionState as SessionState
from klamm.zk.client.socket_connection import SocketConnection
from klamm.zk.client.watch_handlers import WatchHandlers
from klamm.zk.client.zk_security import UNSECURED, ZkSecurity
from klamm.zk.model import ops
from klamm.zk.model.ops import (
    Code,
    ConnectionLoss,
    Create,
    CreateResult,
    Delete,
    Exists,
    ExistsResult,
    GetChildren,
    GetChildrenResult,
    GetData,
    GetDataResult,
    MarshallingError,
    MultiFailed,
    NodeExists,
    NoNode,
    ReadOp,
    ReadResult,
    SetData,
    SetDataResult,
    Stat,
    Unimplemented,
    WatchEvent,
    WriteOp,
    WriteResult,
    ZkError,
)

log = logging.getLogger(__name__)

MAX_IN_FLIGHT: Final = 10
_END_OF_TIME: Final = (1 << 63) - 1
"""Larger than every zxid."""
T = TypeVar("T")
Running = tuple[asyncio.AbstractEventLoop, ThreadFuture[None]]
"""A running listener: its loop, and the event that marks its end."""


class ZkSession:
    """One session at a time. `hosts` is `host:port,host:port/chroot`; a missing chroot is created."""

    def __init__(
        self,
        hosts: str,
        session_timeout_ms: int = 18_000,
        connect: Connect | None = None,
        security: ZkSecurity = UNSECURED,
    ) -> None:
        self.hosts, prefix = split_hosts(hosts)
        self._chroot = Chroot(prefix, security.acl_of)
        self._timeout_ms = session_timeout_ms
        connect = connect or partial(SocketConnection, security=security)
        self._connection = connect(self.hosts, session_timeout_ms, self._on_connection_state)
        self.state = SessionState.SUSPENDED
        self.session_id = 0
        self.previous_session_id = 0
        self._has_multi_read = True
        self._closing = False
        self._inboxes: dict[asyncio.AbstractEventLoop, Inbox] = {}
        self._listeners: list[tuple[asyncio.AbstractEventLoop, SessionListener]] = []
        self._watches = WatchHandlers(self._chroot)
        self._first_connect: asyncio.Future[None] | None = None

    # --- life --------------------------------------------------------------------------------------------------------

    async def start(self, timeout_ms: int | None = None) -> ZkSession:
        """Connect and create the chroot. Raises ConnectionLoss if no server answers in time."""
        loop = asyncio.get_running_loop()
        self._first_connect = loop.create_future()
        self._inbox(loop)
        self._connection.start()
        try:
            async with asyncio.timeout((timeout_ms or self._timeout_ms) / 1_000):
                await self._first_connect
            await self._create_chroot()
        except TimeoutError:
            await self.close()
            raise ConnectionLoss(message=f"no ZooKeeper answers at {self.hosts}") from None
        return self

    @property
    def refusal(self) -> str | None:
        """Why a server has refused this client since the last connection; None if none has."""
        return self._connection.refusals.reason

    async def _create_chroot(self) -> None:
        for path in self._chroot.levels():
            while True:
                try:
                    await self._submit(Write(Create(path, b"", acl=self._chroot.acl_of(path))))
                except ConnectionLoss:
                    if self._closing:
                        raise
                    continue
                except NodeExists:
                    pass
                break

    async def close(self) -> bool:
        """End the session; its ephemeral znodes are removed at once. Returns False if no server confirmed it."""
        self._closing = True
        is_confirmed = await asyncio.get_running_loop().run_in_executor(None, self._connection.stop)
        self.state = SessionState.CLOSED
        return is_confirmed

    def drop_connection(self) -> None:
        """Cut the TCP connection, as a fault would; the session continues if a server answers in time."""
        self._connection.drop_connection()

    def watch_loop(self, pulse: LoopPulse) -> None:
        """Give up the session if that loop stalls. The next session begins when the loop runs again."""
        self._connection.watch_loop(pulse)

    @property
    def credentials(self) -> SessionCredentials:
        """The session's id and password, with which the successor of a killed process ends it."""
        return SessionCredentials(self.session_id, self._connection.password)

    # --- requests ----------------------------------------------------------------------------------------------------

    def _inbox(self, loop: asyncio.AbstractEventLoop) -> Inbox:
        inbox = self._inboxes.get(loop)
        if inbox is None:
            inbox = self._inboxes[loop] = Inbox(loop)
        return inbox

    def _submit(self, request: Request, note: Callable[[Any], None] | None = None) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        reply = Reply(self._inbox(loop), loop.create_future(), note)
        self._connection.submit(request, reply)
        return reply.future

    async def _retry_read(self, make: Callable[[], asyncio.Future[T]]) -> T:
        """Repeat the read after each lost connection, until it is answered or the session ends."""
        while True:
            try:
                return await make()
            except ConnectionLoss:
                if self._closing:
                    raise

    @overload
    async def read(self, op: GetData) -> GetDataResult: ...
    @overload
    async def read(self, op: Exists) -> ExistsResult: ...
    @overload
    async def read(self, op: GetChildren) -> GetChildrenResult: ...
    @overload
    async def read(self, op: ReadOp) -> ReadResult: ...
    async def read(self, op: ReadOp) -> ReadResult:
        """Read once. Raises NoNode (not for Exists) or SessionExpired. `watch=True` arms the watch of the path."""
        full = self._chroot.enter(op)
        request = Read(full, self._watches.watcher(full) if op.watch else None)
        note = (lambda answer: self._watches.arm(full, answer)) if op.watch else None
        try:
            answer = await self._retry_read(lambda: self._submit(request, note))
        except ZkError as error:
            raise about(error, op.path) from None
        return read_result(op, answer)

    async def get_children(self, path: str, *, watch: bool = False) -> tuple[str, ...]:
        return (await self.read(GetChildren(path, watch))).children

    async def read_many(self, paths: Iterable[str], *, watch: bool = False) -> list[tuple[bytes | None, Stat] | None]:
        """Return data and stat of many znodes, None for missing ones.

        Raises NoAuth or SessionExpired. With `watch`, existing znodes are watched from before they were read. At most
        `MAX_IN_FLIGHT` batches are in flight at once: ZooKeeper holds every answer in memory until it is sent.
        """
        batches = path_batches([self._chroot.full(path) for path in paths])
        if len(batches) == 1:
            return await (self._read_watched(batches[0]) if watch else self._read_batch(batches[0]))
        found: list[list[tuple[bytes | None, Stat] | None]] = [[] for _ in batches]
        left = iter(enumerate(batches))

        async def read_some() -> None:
            for index, batch in left:
                found[index] = await (self._read_watched(batch) if watch else self._read_batch(batch))

        await asyncio.gather(*(read_some() for _ in range(min(MAX_IN_FLIGHT, len(batches)))))
        return [each for batch in found for each in batch]

    async def read_latest(self, paths: Sequence[str]) -> list[tuple[bytes | None, Stat] | None]:
        """`read_many` of what the ensemble has committed by now, in one round trip: a server may lag behind."""
        while True:
            syncing = self._submit(Sync(self._chroot.full(paths[0])))
            syncing.add_done_callback(lambda done: done.cancelled() or done.exception())
            found = await self.read_many(paths)
            try:
                await syncing  # a repeated read is as fresh: a server that lags behind this client refuses it
            except ConnectionLoss:
                if self._closing:
                    raise
                continue
            return found

    async def _read_watched(self, full_paths: list[str]) -> list[tuple[bytes | None, Stat] | None]:
        """Set the watches of a batch with one request before the read, so that no change is missed.

        This is the request that sets watches again after a reconnect. With the largest zxid, the server reports no
        earlier changes, only that a znode is missing, which has no handler.
        """
        request = SetWatches(_END_OF_TIME, full_paths, (), ())
        while True:
            setting = self._submit(request, lambda _: self._watches.arm_all(self._connection, full_paths))
            setting.add_done_callback(lambda done: done.cancelled() or done.exception())
            found = await self._read_batch(full_paths)
            try:
                await setting
            except ConnectionLoss:
                if self._closing:
                    raise
                continue
            return found

    async def _read_batch(self, full_paths: list[str]) -> list[tuple[bytes | None, Stat] | None]:
        if self._has_multi_read:
            try:
                answers = await self._retry_read(lambda: self._submit(MultiRead(full_paths)))
            except Unimplemented:
                log.info("this ZooKeeper has no multiRead; znodes are read one by one")
                self._has_multi_read = False
            except MarshallingError:
                if len(full_paths) == 1:
                    raise
                # The answer would exceed the server's limit.
                half = len(full_paths) // 2
                return await self._read_batch(full_paths[:half]) + await self._read_batch(full_paths[half:])
            else:
                return [self._found(path, answer) for path, answer in zip(full_paths, answers, strict=True)]
        return list(await asyncio.gather(*map(self._read_one, full_paths)))

    def _found(self, full_path: str, answer: tuple[bytes | None, Stat] | Code) -> tuple[bytes | None, Stat] | None:
        if isinstance(answer, Code):
            if answer != Code.NO_NODE:
                raise ops.error_for(answer, self._chroot.leave(full_path))
            return None
        return answer

    async def _read_one(self, full_path: str) -> tuple[bytes | None, Stat] | None:
        request = Read(GetData(full_path))
        try:
            data, stat = await self._retry_read(lambda: self._submit(request))
        except NoNode:
            return None
        return data, Stat._make(stat)

    async def multi(self, operations: Sequence[WriteOp]) -> tuple[WriteResult, ...]:
        """Execute all operations or none.

        Raises MultiFailed with the failed operation, ConnectionLoss or SessionExpired. If it is too large for
        ZooKeeper, raises RequestTooLarge and sends nothing.
        """
        full = [self._chroot.enter(op) for op in operations]
        check_size(full)
        results = tuple(map(self._chroot.leave_result, await self._submit(Multi(full))))
        failure = ops.multi_failure(operations, results)
        if failure is not None:
            raise MultiFailed(failure)
        return cast(tuple[WriteResult, ...], results)

    async def create(self, op: Create) -> CreateResult:
        path, stat = await self._write(op)
        return CreateResult(self._chroot.leave(path), Stat._make(stat))

    async def set(self, op: SetData) -> SetDataResult:
        return SetDataResult(Stat._make(await self._write(op)))

    async def delete(self, op: Delete) -> None:
        await self._write(op)

    async def _write(self, op: Create | SetData | Delete) -> Any:
        full = self._chroot.enter(op)
        check_size([full])
        try:
            return await self._submit(Write(full))
        except ZkError as error:
            raise about(error, op.path) from None

    async def access_rules(self, path: str) -> tuple[tuple[ops.Acl, ...], Stat]:
        """Return the access rules of a znode with its stat. Raises NoNode, NoAuth or SessionExpired."""
        request = ReadRules(self._chroot.full(path))
        try:
            rules, stat = await self._retry_read(lambda: self._submit(request))
        except ZkError as error:
            raise about(error, path) from None
        return rules, stat

    async def set_access_rules(self, op: ops.SetAcl) -> None:
        try:
            await self._submit(WriteRules(ops.SetAcl(self._chroot.full(op.path), op.acl, op.version)))
        except ZkError as error:
            raise about(error, op.path) from None

    async def ensure_paths(self, paths: Iterable[str]) -> None:
        """Create missing persistent znodes without data, parents first; all znodes of one depth together."""
        levels = levels_of(paths)
        present = await self.read_many(levels)
        missing = [path for path, found in zip(levels, present, strict=True) if found is None]
        for depth in sorted({path.count("/") for path in missing}):
            await asyncio.gather(*(self._create_unless_there(path) for path in missing if path.count("/") == depth))

    async def _create_unless_there(self, path: str) -> None:
        while True:
            try:
                await self.create(Create(path))
            except ConnectionLoss:
                if self._closing:
                    raise
                continue
            except NodeExists:
                pass
            return

    # --- watches -----------------------------------------------------------------------------------------------------

    def on_change(self, path: str, handler: Callable[[WatchEvent], object]) -> None:
        """Call `handler` on this loop after creation, change or deletion of `path`, if a read has armed its watch."""
        self._watches.change_handlers[path] = (self._inbox(asyncio.get_running_loop()), handler)

    def on_children(self, path: str, handler: Callable[[WatchEvent], object]) -> None:
        """Call `handler` on this loop after children were added or removed, if a GetChildren has armed its watch."""
        self._watches.child_handlers[path] = (self._inbox(asyncio.get_running_loop()), handler)

    def forget_change(self, path: str) -> None:
        self._watches.change_handlers.pop(path, None)

    def forget_children(self, path: str) -> None:
        self._watches.child_handlers.pop(path, None)

    # --- session state, on the connection's thread -------------------------------------------------------------------

    def add_listener(self, listener: SessionListener) -> None:
        loop = asyncio.get_running_loop()
        self._inbox(loop)
        self._listeners.append((loop, listener))

    def _on_connection_state(self, state: ConnectionState) -> None:
        if state is ConnectionState.CONNECTED:
            self._on_connected()
        elif state is ConnectionState.SUSPENDED:
            if not self._closing:
                log.warning("the connection to ZooKeeper at %s is lost", self.hosts)
            self._set_state(SessionState.SUSPENDED)
        elif self._connection.has_expired and not self._closing:
            self._on_expired()
        else:
            self._set_state(SessionState.CLOSED)

    def _on_connected(self) -> None:
        is_same = self._connection.session_id == self.session_id
        is_first = self.session_id == 0 and self.previous_session_id == 0
        self.session_id = self._connection.session_id
        if is_same:
            self._watches.restore(self._connection)
        if not is_first:
            log.info("connected to ZooKeeper again, in session %#x", self.session_id)
        self._set_state(SessionState.CONNECTED)
        if is_first and self._first_connect is not None:
            self._inbox(self._first_connect.get_loop()).post(resolve, self._first_connect, None)
        elif not is_same:
            self._run_listeners([(loop, each.after_new_session) for loop, each in self._listeners])

    def _on_expired(self) -> None:
        """Fail the requests of the old session before listeners prepare for the next one."""
        log.warning("session %#x with ZooKeeper has expired", self.session_id)
        self.previous_session_id, self.session_id = self.session_id, 0
        self._watches.disarm()
        self._connection.fail_pending()
        self._set_state(SessionState.EXPIRED)
        self._wait_for(self._run_listeners([(loop, each.before_new_session) for loop, each in self._listeners]))

    def _set_state(self, state: SessionState) -> None:
        self.state = state
        for loop, listener in list(self._listeners):
            if listener.on_state is not None:
                self._inbox(loop).post(listener.on_state, state)

    def _run_listeners(
        self, callbacks: list[tuple[asyncio.AbstractEventLoop, Callable[[], Awaitable[None] | None] | None]]
    ) -> list[Running]:
        """Start all listeners, each on its loop, and return them."""
        running = []
        for loop, callback in callbacks:
            if callback is not None:
                done: ThreadFuture[None] = ThreadFuture()
                self._inbox(loop).post(start_callback, loop, callback, done)
                running.append((loop, done))
        return running

    def _wait_for(self, running: list[Running]) -> None:
        """Block the connection's thread until the listeners have ended; it creates no new session meanwhile.

        The thread looks every 0.1 s whether the session or the loop was closed. A closed loop calls nothing, so neither
        the future nor anything else would wake the thread.
        """
        for loop, done in running:
            while not self._closing and not loop.is_closed():
                with contextlib.suppress(TimeoutError):
                    done.result(0.1)
                    break
