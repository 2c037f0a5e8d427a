"""One client connection of the embedded server: frames in, replies out, flow control in both directions."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, cast

from klamm.zk.model.limits import MAX_CONNECT_BYTES, MAX_CREDENTIAL_BYTES
from klamm.zk.model.ops import Id

_LENGTH: Final = struct.Struct(">i")
MAX_WAITING: Final = 1_000
MAX_WAITING_BYTES: Final = 4 << 20
"""Maximum replies that wait for the disk. Beyond it the connection is not read."""
FRAMES_PER_TURN: Final = 64
BYTES_PER_TURN: Final = 128 << 10
SECONDS_PER_TURN: Final = 0.005
"""Requests that are executed before other connections have their turn."""
FLUSH_BYTES: Final = 64 << 10
"""Replies of this size are passed to the socket at once, so that a client that does not read is noticed."""


class NewSession(NamedTuple):
    """A session that the server creates when its client has proved itself."""

    id: int
    timeout_ms: int
    password: bytes


class FrameHandler(Protocol):
    """The server as a connection sees it."""

    max_frame_bytes: int
    commands: dict[bytes, Callable[[], bytes]]

    @property
    def is_congested(self) -> bool: ...

    def may_ask(self, connection: Connection) -> bool: ...
    def on_frame(self, connection: Connection, frame: bytes) -> None: ...
    def on_closing(self, connection: Connection) -> None: ...
    def on_disconnected(self, connection: Connection) -> None: ...
    def on_bytes(self, size: int) -> None: ...
    def await_disk(self, connection: Connection) -> None: ...
    def flush(self) -> None: ...


class Connection(asyncio.Protocol):
    """`number` names the connection as a watcher; `session_id` is None until the handshake."""

    def __init__(self, server: FrameHandler, number: int, host: str) -> None:
        self.number = number
        self.session_id: int | None = None
        self.new_session: NewSession | None = None
        """The session of a client that has not proved itself: it has a number, but does not exist yet."""
        self.host = host
        self.auth: Sequence[Id] = (Id("ip", host),)
        self.opening: asyncio.Task[tuple[asyncio.Transport, asyncio.BaseProtocol]] | None = None
        """Makes the transport of an accepted socket; with TLS, that is a handshake."""
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._waiting = self._waiting_bytes = 0
        self._write_paused = False
        self._read_paused = False
        self._is_scheduled = False
        self._is_ending = False
        self._closing = False

    # --- the transport's side ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._closing:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._server.on_bytes(len(data))
        if not self._closing:
            self._buffer += data
            self._take_turn()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._transport = None
        self._server.on_disconnected(self)

    def pause_writing(self) -> None:
        self._write_paused = True
        self.update_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        self.update_reading()

    # --- frames ------------------------------------------------------------------------------------------------------

    def _take_turn(self) -> None:
        """Execute received requests, up to the share of one turn; reading resumes when all of them are done."""
        is_done = self._read_frames()
        self._server.flush()
        if not is_done:
            self._set_reading(False)
            self._schedule()
        elif self._is_held:
            self.update_reading()
        else:
            self._set_reading(True)

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._continue)

    def _continue(self) -> None:
        self._is_scheduled = False
        if not self._closing:
            self._take_turn()

    def _read_frames(self) -> bool:
        """False if this turn's share is used up and there may be more."""
        buffer, pos, size = self._buffer, 0, len(self._buffer)
        is_asked = self.session_id is None and size >= 4 and self._server.may_ask(self)
        if is_asked and (command := self._server.commands.get(bytes(buffer[:4]))):
            self.write(command())
            self.close()
        count = 0
        is_done = True
        now = asyncio.get_running_loop().time
        until = now() + SECONDS_PER_TURN
        while not self._closing and not self._is_held and size - pos >= 4:
            if count == FRAMES_PER_TURN or pos >= BYTES_PER_TURN or (count and now() > until):
                is_done = False
                break
            length = _LENGTH.unpack_from(buffer, pos)[0]
            if not 0 <= length <= self._max_frame_bytes:
                self.close()
                break
            end = pos + 4 + length
            if end > size:
                break
            self._server.on_frame(self, bytes(buffer[pos + 4 : end]))
            count += 1
            pos = end
        if self._closing:
            buffer.clear()
        elif pos:
            del buffer[:pos]
        return is_done or self._closing

    @property
    def _max_frame_bytes(self) -> int:
        limit = self._server.max_frame_bytes
        if self.session_id is None:
            return min(limit, MAX_CONNECT_BYTES)
        return limit if self.new_session is None else min(limit, MAX_CONNECT_BYTES + MAX_CREDENTIAL_BYTES)

    @property
    def _is_held(self) -> bool:
        """Whether no request may be executed now, because the client does not read or the disk lags, or ever again."""
        return (
            self._is_ending
            or self._write_paused
            or self._waiting > MAX_WAITING
            or self._waiting_bytes > MAX_WAITING_BYTES
            or self._server.is_congested
        )

    # --- the server's side -------------------------------------------------------------------------------------------

    def wait_one(self, frame: bytes) -> None:
        """Count a reply that waits for the disk. If there are too many, no more requests are read."""
        self._waiting += 1
        self._waiting_bytes += len(frame)
        self.update_reading()

    def deliver(self, frame: bytes) -> None:
        """Write a reply that waited for the disk; the next `flush` sends it."""
        self._waiting -= 1
        self._waiting_bytes -= len(frame)
        self.write(frame)

    def write(self, frame: bytes) -> None:
        if self._closing:
            return
        self._out.append(frame)
        self._out_bytes += len(frame)
        if self._out_bytes > FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._out and self._transport is not None:
            data = b"".join(self._out)
            self._out.clear()
            self._out_bytes = 0
            self._transport.write(data)
        if self._read_paused:
            self.update_reading()

    def end(self) -> None:
        """Execute no further requests; answers may still wait for the disk before `close`."""
        self._is_ending = True

    def close(self) -> None:
        """Send written answers, then close. Nothing more is read."""
        if self._closing:
            return
        self.flush()
        self._closing = True
        if self._transport is not None:
            self._transport.close()
            self._server.on_closing(self)
        elif self.opening is not None:
            self.opening.cancel()

    def abort(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.abort()
        elif self.opening is not None:
            self.opening.cancel()

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended, or ends when its last answers are sent."""
        return self._closing

    @property
    def held_bytes(self) -> int:
        """The size of requests that were not executed and answers that were not sent."""
        unsent = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return len(self._buffer) + self._waiting_bytes + self._out_bytes + unsent

    def update_reading(self) -> None:
        """Stop reading while the connection is held. Afterwards, requests that were received already come first."""
        if self._is_held:
            self._set_reading(False)
            if self._server.is_congested:
                self._server.await_disk(self)
        elif self._read_paused:
            self._schedule()

    def _set_reading(self, wanted: bool) -> None:
        if wanted != self._read_paused or self._transport is None or self._closing:
            return
        self._read_paused = not wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()
