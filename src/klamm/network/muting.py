"""Muting: when a connection's socket is read, and the reasons not to read it."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

NOT_ADMITTED: Final = 1
"""The acceptor has not let the connection in."""
QUEUE_FULL: Final = 2
"""Its last request waits for room in the request queue."""
IN_FLIGHT: Final = 4
"""As many of its requests are in the broker as may be."""
THROTTLED: Final = 8
"""A quota was exceeded; the client was told for how long (KIP-219)."""
WRITE: Final = 16
"""The client does not read its responses."""
MEMORY: Final = 32
"""`queued.max.request.bytes` are in use."""
CLOSING: Final = 64
"""The connection takes no further request."""

_TCP_INFO: Final[int | None] = getattr(socket, "TCP_INFO", None)
_TCP_ESTABLISHED: Final = 1


class MutableProtocol(asyncio.BufferedProtocol):
    """A connection that reads while `paused`, a set of the reasons above, is empty."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.paused = 0
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._unmute: asyncio.TimerHandle | None = None
        self._unmute_at = 0.0

    def pause(self, reason: int) -> None:
        if not self.paused and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self.paused |= reason

    def resume(self, reason: int) -> None:
        """Takes back a reason. With the last one gone, what had been received is processed, then the socket is read."""
        if not self.paused & reason:
            return
        self.paused &= ~reason
        if self.paused:
            return
        self._process_received()
        if not self.paused and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _has_peer_closed(self) -> bool:
        """Whether the peer has closed the connection: while it is not read, the loop does not notice.

        False where the system does not tell.
        """
        sock = None if self._transport is None else self._transport.get_extra_info("socket")
        if sock is None or _TCP_INFO is None:
            return False
        try:
            state: bytes = sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 1)
        except OSError:
            return True
        return state[0] != _TCP_ESTABLISHED

    def _process_received(self) -> None:
        """Takes what was received and not yet processed, until there is a reason to pause again."""
        raise NotImplementedError

    def _throttle(self, now: float, throttle_time_ms: int) -> None:
        """Mutes until the time is over; of several times that overlap the last end counts."""
        until = now + throttle_time_ms / 1000
        if until <= self._unmute_at:
            return
        self._cancel_throttle()
        self._unmute_at = until
        self._unmute = self._loop.call_later(throttle_time_ms / 1000, self._end_throttle)
        self.pause(THROTTLED)

    def _cancel_throttle(self) -> None:
        if self._unmute is not None:
            self._unmute.cancel()
            self._unmute = None

    def _end_throttle(self) -> None:
        self._unmute = None
        self.resume(THROTTLED)
