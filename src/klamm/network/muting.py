"""Muting: the reasons not to read a connection's socket."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from klamm.metrics.instruments import GaugeTable, Tags

NOT_ADMITTED: Final = 1
"""The acceptor has not admitted the connection."""
QUEUE_FULL: Final = 2
"""The last request waits for room in the request queue."""
IN_FLIGHT: Final = 4
"""The connection has as many requests in the broker as it may have at once."""
THROTTLED: Final = 8
"""A quota was exceeded; the response carried the throttle time (KIP-219)."""
WRITE: Final = 16
"""The client does not read its responses."""
MEMORY: Final = 32
"""`queued.max.request.bytes` are in use."""
CLOSING: Final = 64
"""The connection accepts no further requests."""
AUTHENTICATION: Final = 128
"""Too many logins of the address have failed: this one waits for its turn, or for its TLS handshake."""
TURN: Final = 256
"""A large request has received its share of this turn of the loop."""

REASONS: Final = {
    NOT_ADMITTED: "not-admitted",
    QUEUE_FULL: "queue-full",
    IN_FLIGHT: "in-flight",
    THROTTLED: "throttled",
    WRITE: "unread-responses",
    MEMORY: "memory",
    CLOSING: "closing",
    AUTHENTICATION: "authentication",
}
"""The names of the reasons, for metrics. `TURN` is too short to be seen."""

_TCP_INFO: Final[int | None] = getattr(socket, "TCP_INFO", None)
_TCP_ESTABLISHED: Final = 1


class PausableProtocol(asyncio.BufferedProtocol):
    """A connection that is read while `paused`, a set of the reasons above, is empty."""

    __slots__ = ("_loop", "_transport", "_unmute", "_unmute_at", "paused")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.paused = 0
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._unmute: asyncio.TimerHandle | None = None
        self._unmute_at = 0.0

    @property
    def transport(self) -> asyncio.Transport | None:
        """The transport of an open connection."""
        return self._transport

    def pause(self, reason: int) -> None:
        if not self.paused and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self.paused |= reason

    def resume(self, reason: int) -> None:
        """Remove a reason. After the last one, process the bytes already received, then read the socket again."""
        if not self.paused & reason:
            return
        self.paused &= ~reason
        if self.paused:
            return
        self._process_received()
        if not self.paused and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def rest_a_turn(self) -> None:
        """Continue reading in the next turn of the loop: uvloop reads a socket up to 32 times in one turn."""
        if not self.paused:
            self.pause(TURN)
            self._loop.call_soon(self.resume, TURN)

    def has_peer_closed(self) -> bool:
        """Return whether the peer has closed the connection: the loop does not notice while it does not read.

        Returns False on systems that do not report it.
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
        """Process the frames already received, until there is a reason to pause again."""
        raise NotImplementedError

    def _throttle(self, now: float, throttle_time_ms: int) -> None:
        """Mute the connection for this time. If several times overlap, the latest end counts."""
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


class MutedConnections(GaugeTable[int, str]):
    """The connections that are not read, by reason. They are counted when they are asked for, in one pass.

    A connection with several reasons counts under each.
    """

    __slots__ = ("_connections",)

    def __init__(self, connections: Callable[[], Iterable[PausableProtocol]]) -> None:
        super().__init__(REASONS, lambda reason: {"reason": REASONS[reason]}, lambda name: name)
        self._connections = connections

    def samples(self, keys: Sequence[int]) -> Iterator[tuple[Tags, object]]:
        combined = Counter(connection.paused for connection in self._connections())
        for reason in keys:
            yield (
                (("reason", REASONS[reason]),),
                sum(count for reasons, count in combined.items() if reasons & reason),
            )
