"""A blocking session for a few reads and writes, from any thread and without an event loop."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from klamm.zk.client.batches import path_batches
from klamm.zk.client.chroot import Chroot, split_hosts
from klamm.zk.client.client_connection import ConnectionState, SessionCredentials
from klamm.zk.client.client_requests import Multi, MultiRead, Read, Request
from klamm.zk.client.socket_connection import SocketConnection
from klamm.zk.client.zk_security import UNSECURED, ZkSecurity
from klamm.zk.model.ops import (
    Code,
    ConnectionLoss,
    Create,
    Exists,
    GetChildren,
    GetData,
    MarshallingError,
    MultiFailed,
    NodeExists,
    NoNode,
    ReadOp,
    Stat,
    WriteOp,
    multi_failure,
)


class BlockingSession:
    """`with` opens and closes the session. With `credentials` it resumes that session if it still exists."""

    def __init__(
        self,
        hosts: str,
        timeout_s: float,
        credentials: SessionCredentials | None = None,
        security: ZkSecurity = UNSECURED,
    ) -> None:
        self._hosts, prefix = split_hosts(hosts)
        self._chroot = Chroot(prefix, security.acl_of)
        self._timeout_s = timeout_s
        self._states: queue.SimpleQueue[ConnectionState] = queue.SimpleQueue()
        self._connection = SocketConnection(self._hosts, int(timeout_s * 1000), self._states.put, credentials, security)
        self.is_known = False
        """Whether the session of `credentials` still existed."""
        self.is_ended = False
        """After the end: whether ZooKeeper has confirmed that the session is closed."""

    def __enter__(self) -> Self:
        """Raises ConnectionLoss if no server answers in time."""
        self._connection.start()
        try:
            self.is_known = self._states.get(timeout=self._timeout_s) is ConnectionState.CONNECTED
        except queue.Empty:
            self._connection.stop()
            if (refusal := self._connection.refusals.reason) is not None:
                raise ConnectionLoss(message=f"ZooKeeper refuses this client at {refusal}") from None
            raise ConnectionLoss(message=f"no ZooKeeper answers at {self._hosts}") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.is_ended = self._connection.stop() or not self.is_known

    def get(self, path: str) -> bytes | None:
        """Return the data. Raises NoNode or ConnectionLoss."""
        data: bytes | None = self._read(GetData(path))[0]
        return data

    def get_with_version(self, path: str) -> tuple[bytes | None, int]:
        """Return data and version; None and -1 if the znode does not exist. Raises ConnectionLoss."""
        try:
            data, stat = self._read(GetData(path))
        except NoNode:
            return None, -1
        return data or b"", stat.version

    def get_with_stat(self, path: str) -> tuple[bytes | None, Stat]:
        """Return data and stat. Raises NoNode or ConnectionLoss."""
        data, stat = self._read(GetData(path))
        return data, stat

    def read_many(self, paths: Sequence[str]) -> list[bytes | None]:
        """Return the data of each znode, None for a missing one. Raises ConnectionLoss."""
        batches = path_batches([self._chroot.full(path) for path in paths])
        return [each for batch in batches for each in self._read_batch(batch)]

    def _read_batch(self, full_paths: list[str]) -> list[bytes | None]:
        try:
            answers = self._ask(MultiRead(full_paths))
        except MarshallingError:
            if len(full_paths) == 1:
                raise
            # The answer would exceed the server's limit.
            half = len(full_paths) // 2
            return self._read_batch(full_paths[:half]) + self._read_batch(full_paths[half:])
        return [None if isinstance(answer, Code) else answer[0] or b"" for answer in answers]

    def get_children(self, path: str) -> tuple[str, ...]:
        """Return the names of the children. Raises NoNode or ConnectionLoss."""
        return tuple(self._read(GetChildren(path))[0])

    def write(self, operations: Sequence[WriteOp]) -> None:
        """Execute all operations or none. Raises MultiFailed, or ConnectionLoss: then they may have happened."""
        results = self._ask(Multi([self._chroot.enter(op) for op in operations]))
        if (failure := multi_failure(operations, tuple(results))) is not None:
            raise MultiFailed(failure)

    def create_chroot(self) -> None:
        """Create the chroot if it is missing. Raises ZkError if it is impossible."""
        for path in self._chroot.levels():
            if self._ask(Read(Exists(path))) is not None:
                continue
            missing = Create(path, acl=self._chroot.acl_of(path))
            failure = multi_failure([missing], tuple(self._ask(Multi([missing]))))
            if failure is not None and not isinstance(failure.error, NodeExists):
                raise failure.error

    def exists(self, path: str) -> bool:
        return self._read(Exists(path)) is not None

    def _read(self, op: ReadOp) -> Any:
        return self._ask(Read(self._chroot.enter(op)))

    def _ask(self, request: Request) -> Any:
        answer: Future[Any] = Future()
        self._connection.submit(request, _Answer(answer))
        try:
            return answer.result(self._timeout_s)
        except TimeoutError:
            raise ConnectionLoss(message="ZooKeeper does not answer") from None


class _Answer:
    def __init__(self, future: Future[Any]) -> None:
        self.set = future.set_result
        self.set_exception = future.set_exception
