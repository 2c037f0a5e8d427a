"""The states of a session with ZooKeeper, and the callbacks for their changes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum

from klamm.lazy_dataclass import lazy_dataclass


class SessionState(Enum):
    CONNECTED = "connected"
    SUSPENDED = "suspended"
    EXPIRED = "expired"
    CLOSED = "closed"


@lazy_dataclass(frozen=True, slots=True)
class SessionListener:
    """Callbacks on the loop they were added from; those that return an awaitable are awaited."""

    on_state: Callable[[SessionState], object] | None = None
    before_new_session: Callable[[], Awaitable[None] | None] | None = None
    after_new_session: Callable[[], Awaitable[None] | None] | None = None
