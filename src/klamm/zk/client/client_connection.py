"""The interface of a session to its ZooKeeper connection: `SocketConnection`, or a simulator's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol

from klamm.zk.client.client_requests import Request, Watcher
from klamm.zk.client.loop_pulse import LoopPulse
from klamm.zk.client.refusals import Refusals
from klamm.zk.model.ops import ZkError


class ConnectionState(Enum):
    """State of a connection. LOST: the session has expired, or the connection is closed permanently."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


class SessionCredentials(NamedTuple):
    """Id and password of a session. A client that presents them can resume it."""

    session_id: int
    password: bytes


class Result(Protocol):
    """Receiver of a reply. Called on the connection's thread, or by `submit` when nothing can be sent."""

    def set(self, value: Any) -> None: ...
    def set_exception(self, exception: ZkError) -> None: ...


class ZkConnection(Protocol):
    @property
    def session_id(self) -> int: ...
    @property
    def password(self) -> bytes: ...
    @property
    def has_expired(self) -> bool: ...
    @property
    def refusals(self) -> Refusals: ...
    def start(self) -> None: ...
    def stop(self) -> bool: ...
    def submit(self, request: Request, result: Result) -> None: ...
    def fail_pending(self) -> None: ...
    def drop_connection(self) -> None: ...
    def watch_loop(self, pulse: LoopPulse) -> None: ...
    def watch_data(self, paths: Sequence[str], on_data: Watcher) -> None: ...
    def restore_watches(
        self,
        data: Sequence[str],
        exist: Sequence[str],
        child: Sequence[str],
        on_data: Watcher,
        on_child: Watcher,
    ) -> None: ...


OnState = Callable[[ConnectionState], None]
Connect = Callable[[str, int, OnState], ZkConnection]
"""Creates the connection of a session from hosts, timeout in ms, and a listener of its state."""
