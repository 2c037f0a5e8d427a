"""The network of a simulation: listeners by host and port, connections with delay and fragments, links that fail.

A direction of a link can be slow or cut for a time. Data sent into a cut link arrives when the link works again, like
TCP retransmissions; impatient senders use their own timeout.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any, Final, NamedTuple

from klamm.sim.loop import PROCESS, SimLoop, SimProcess, current_host

DELAY_S: Final = (0.0002, 0.004)
SLOW_S: Final = (0.05, 0.6)
SOCKET_BYTES: Final = 64 * 1024
"""Bytes that both operating systems buffer before the sender's own buffer grows."""
_STEP_S: Final = 1e-7
"""Two deliveries on one link are never due at the same time: timers of equal time have no order."""


def is_request(key: int) -> Callable[[bytes], bool]:
    """Return a test for bytes that begin with a request of this API."""
    head = key.to_bytes(2, "big")
    return lambda data: data[4:6] == head


class Listener(NamedTuple):
    factory: Callable[[], asyncio.BaseProtocol]
    context: Context
    process: SimProcess | None


class SimServer:
    """The result of `create_server`."""

    sockets: tuple[()] = ()

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = close

    def close(self) -> None:
        self._close()

    async def wait_closed(self) -> None:
        pass


class Detention:
    """A request that the network holds back until it is released, with all later data of its connection.

    The first data for which `is_meant` holds is detained; `target` is its destination. `aimed_at` restricts it to one
    destination.
    """

    def __init__(self, source: str, is_meant: Callable[[bytes], bool], aimed_at: str | None = None) -> None:
        self.source = source
        self.is_meant = is_meant
        self.aimed_at = aimed_at
        self.target: str | None = None
        self._release: Callable[[], None] | None = None

    def begin(self, target: str, release: Callable[[], None]) -> None:
        self.target, self._release = target, release

    def release(self) -> None:
        if self._release is not None:
            self._release()


class Network:
    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.lost_replies = 0.0
        """Probability that a server's bytes are lost together with the connection."""
        self.replies_lost = 0
        self.sent_late = 0
        self._rng = loop.rng
        self._listeners: dict[tuple[str, int], Listener] = {}
        self._cut_until: dict[tuple[str, str], float] = {}
        self._slow_until: dict[tuple[str, str], float] = {}
        self._held: dict[tuple[str, str], tuple[Callable[[bytes], bool], float]] = {}
        self._detentions: list[Detention] = []
        self._unanswered: dict[tuple[str, str], Callable[[bytes], bool]] = {}
        self._late_answers: dict[tuple[str, str], tuple[Callable[[bytes], bool], float]] = {}
        self.on_sent: Callable[[str, str, bytes], None] | None = None
        """Called with source, target and data whenever a client of a connection writes."""
        self.on_arrived: Callable[[tuple[str, int], str, bytes], None] | None = None
        """Called with the client's address, the target and the data whenever all data of a client's write arrives."""
        self._next_port = 30_000

    # --- faults ----------------------------------------------------------------------------------------------------

    def cut(self, source: str, target: str, until_s: float) -> None:
        self._cut_until[source, target] = max(until_s, self._cut_until.get((source, target), 0.0))

    def slow(self, source: str, target: str, until_s: float) -> None:
        self._slow_until[source, target] = max(until_s, self._slow_until.get((source, target), 0.0))

    def hold(self, source: str, target: str, is_meant: Callable[[bytes], bool], until_s: float) -> None:
        """Delay the next data for which `is_meant` holds, and all later data of the connection, until `until_s`."""
        self._held[source, target] = is_meant, until_s

    def is_waiting_to_hold(self, source: str, target: str) -> bool:
        return (source, target) in self._held

    def held_until_s(self, source: str, target: str, data: bytes) -> float:
        is_meant, until_s = self._held.get((source, target), (None, 0.0))
        if is_meant is None or not is_meant(data):
            return 0.0
        del self._held[source, target]
        self.sent_late += 1
        return until_s

    def detain(self, source: str, is_meant: Callable[[bytes], bool], aimed_at: str | None = None) -> Detention:
        """Hold back the next data of a client for which `is_meant` is true, until it is released or the faults end."""
        detention = Detention(source, is_meant, aimed_at)
        self._detentions.append(detention)
        return detention

    def detention(self, source: str, target: str, data: bytes) -> Detention | None:
        """Return the detention that begins with this data, if any."""
        for detention in self._detentions:
            is_aimed = detention.source == source and detention.aimed_at in (None, target)
            if detention.target is None and is_aimed and detention.is_meant(data):
                self.sent_late += 1
                return detention
        return None

    def lose_answer(self, source: str, target: str, is_meant: Callable[[bytes], bool]) -> None:
        """Lose the answer to the next request for which `is_meant` holds, together with the connection."""
        self._unanswered[source, target] = is_meant

    def is_answer_lost(self, source: str, target: str, data: bytes) -> bool:
        is_meant = self._unanswered.get((source, target))
        if is_meant is None or not is_meant(data):
            return False
        del self._unanswered[source, target]
        return True

    def delay_answer(self, source: str, target: str, is_meant: Callable[[bytes], bool], until_s: float) -> None:
        """Delay the answer to the next request for which `is_meant` holds until `until_s`."""
        self._late_answers[source, target] = is_meant, until_s

    def answer_due_s(self, source: str, target: str, data: bytes) -> float:
        is_meant, until_s = self._late_answers.get((source, target), (None, 0.0))
        if is_meant is None or not is_meant(data):
            return 0.0
        del self._late_answers[source, target]
        self.sent_late += 1
        return until_s

    def heal(self) -> None:
        """Data that was sent before keeps its arrival time."""
        self._cut_until.clear()
        self._slow_until.clear()
        self._held.clear()
        for detention in self._detentions:
            detention.release()
        self._detentions.clear()
        self._unanswered.clear()
        self._late_answers.clear()
        self.lost_replies = 0.0

    def is_cut(self, source: str, target: str) -> bool:
        return self._cut_until.get((source, target), 0.0) > self.loop.time()

    def arrival_s(self, source: str, target: str) -> float:
        """Return the arrival time of data sent now."""
        now = self.loop.time()
        if source == target:
            return now + self._rng.uniform(0.00005, 0.0005)
        start = max(now, self._cut_until.get((source, target), 0.0))
        is_slow = self._slow_until.get((source, target), 0.0) > now
        self.sent_late += is_slow or start > now
        return start + self._rng.uniform(*(SLOW_S if is_slow else DELAY_S))

    # --- connections -----------------------------------------------------------------------------------------------

    def listen(self, host: str, port: int, factory: Callable[[], asyncio.BaseProtocol]) -> SimServer:
        where = (host, port)
        if where in self._listeners:
            raise OSError(98, "Address already in use")
        process = PROCESS.get()
        self._listeners[where] = listener = Listener(factory, copy_context(), process)

        def close() -> None:
            if self._listeners.get(where) is listener:
                del self._listeners[where]

        if process is not None:
            process.on_death[close] = None
        return SimServer(close)

    async def connect(
        self, host: str, port: int, factory: Callable[[], asyncio.BaseProtocol]
    ) -> tuple[SimTransport, asyncio.BaseProtocol]:
        source = current_host()
        await asyncio.sleep(self.arrival_s(source, host) - self.loop.time())
        listener = self._listeners.get((host, port))
        if listener is None:
            raise ConnectionRefusedError(111, f"nobody listens at {host}:{port}")
        self._next_port += 1
        client = SimTransport(self, copy_context(), (source, self._next_port), (host, port))
        server = SimTransport(self, listener.context.copy(), (host, port), (source, self._next_port), is_server=True)
        client.peer, server.peer = server, client
        self.loop.call_soon(server.begin, listener.factory, context=server.context)
        try:
            await asyncio.sleep(self.arrival_s(host, source) - self.loop.time())
        except asyncio.CancelledError:
            client.abort()
            raise
        return client, client.begin(factory)


class SimTransport(asyncio.Transport):
    """One end of a connection. It belongs to the process in whose `context` it was created."""

    peer: SimTransport

    def __init__(
        self, network: Network, context: Context, own: tuple[str, int], other: tuple[str, int], is_server: bool = False
    ) -> None:
        super().__init__({"sockname": own, "peername": other, "socket": None})
        self.context = context
        self._network = network
        self._loop = network.loop
        self._own, self._other = own, other
        self._is_server = is_server
        self._loses_answer = False
        self._answer_due_s = 0.0
        self._detained: list[bytes] | None = None
        self._end_waits: tuple[Exception | None] | None = None
        """The end of a connection whose data is detained."""
        self._process = context.get(PROCESS)
        self._protocol: asyncio.BaseProtocol | None = None
        self._received: deque[bytes] = deque()
        self._is_reading = True
        self._is_closing = False
        self._end: tuple[Exception | None] | None = None
        self._due_s = 0.0
        self._unread = 0
        self._is_write_paused = False
        self._high, self._low = 64 * 1024, 16 * 1024
        if self._process is not None:
            self._process.on_death[self._die] = None

    def begin(self, factory: Callable[[], asyncio.BaseProtocol]) -> asyncio.BaseProtocol:
        """Called in the context of its process."""
        self._protocol = protocol = factory()
        protocol.connection_made(self)
        self._feed()
        return protocol

    # --- writing ---------------------------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        data = bytes(data)
        if self._is_closing or not data:
            return
        network, rng = self._network, self._loop.rng
        own, other = self._own[0], self._other[0]
        loss_rate = network.lost_replies
        if self._is_server and (self._loses_answer or (loss_rate and rng.random() < loss_rate)):
            network.replies_lost += 1
            self.reset()
            return
        if not self._is_server:
            self.peer._loses_answer = self.peer._loses_answer or network.is_answer_lost(own, other, data)
            self.peer._answer_due_s = max(self.peer._answer_due_s, network.answer_due_s(own, other, data))
            if network.on_sent is not None:
                network.on_sent(own, other, data)
            if self._detained is None and (detention := network.detention(own, other, data)) is not None:
                self._detained = []
                detention.begin(other, self._release)
            if self._detained is not None:
                self._detained.append(data)
                return
        self._send(data)

    def _release(self) -> None:
        """Send the detained data, and the end of the connection if it was closed meanwhile."""
        detained, self._detained = self._detained or [], None
        for data in detained:
            self._send(data)
        end, self._end_waits = self._end_waits, None
        if end is not None:
            self._notify_peer(end[0])

    def _send(self, data: bytes) -> None:
        network, rng = self._network, self._loop.rng
        own, other = self._own[0], self._other[0]
        self._unread += len(data)
        due_s = max(network.arrival_s(own, other), network.held_until_s(own, other, data), self._answer_due_s)
        self._due_s = max(self._due_s, due_s)
        cut = rng.randint(1, len(data))
        parts = [data] if cut == len(data) else [data[:cut], data[cut:]]
        for part in parts:
            self._due_s += _STEP_S
            whole = data if part is parts[-1] else None
            self._loop.call_at(self._due_s, self.peer._arrive, part, whole, context=self.peer.context)
        if not self._is_write_paused and self.get_write_buffer_size() > self._high:
            self._is_write_paused = True
            if isinstance(self._protocol, asyncio.BaseProtocol):
                self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return max(0, self._unread - SOCKET_BYTES)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low

    def _on_read(self, size: int) -> None:
        """The other side has read bytes from its socket."""
        self._unread -= size
        if self._is_write_paused and self.get_write_buffer_size() <= self._low and self._protocol is not None:
            self._is_write_paused = False
            self._loop.call_soon(self._protocol.resume_writing, context=self.context)

    # --- reading ---------------------------------------------------------------------------------------------------

    def is_reading(self) -> bool:
        return self._is_reading and not self._is_closing

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        if self._received or self._end is not None:
            self._loop.call_soon(self._feed)

    def _arrive(self, part: bytes, whole: bytes | None) -> None:
        """`whole` is the data that this part completes, if any."""
        if not self._is_closing:
            if whole is not None and self._is_server and self._network.on_arrived is not None:
                self._network.on_arrived(self._other, self._own[0], whole)
            self._received.append(part)
            self._feed()

    def _feed(self) -> None:
        """Deliver received data while the protocol reads, then the end of the stream."""
        while self._received and self.is_reading() and self._protocol is not None:
            self._give(self._received.popleft())
        if self._end is not None and not self._received and self.is_reading():
            self._lose(self._end[0])

    def _give(self, part: bytes) -> None:
        protocol, size = self._protocol, len(part)
        if isinstance(protocol, asyncio.BufferedProtocol):
            buffer = memoryview(protocol.get_buffer(size))
            size = min(size, len(buffer))
            buffer[:size] = part[:size]
            buffer.release()
            if size < len(part):
                self._received.appendleft(part[size:])
            protocol.buffer_updated(size)
        else:
            assert isinstance(protocol, asyncio.Protocol)
            protocol.data_received(part)
        self.peer._on_read(size)

    # --- the end ---------------------------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Written data still arrives before the other side sees the end."""
        if not self._is_closing:
            self._notify_peer(None)
            self._lose(None)

    def abort(self) -> None:
        if not self._is_closing:
            self._notify_peer(ConnectionResetError(104, "Connection reset by peer"))
            self._lose(None)

    def reset(self) -> None:
        """The network drops the connection: each side notices it after its own delay."""
        error = ConnectionResetError(104, "Connection reset by peer")
        self._notify_peer(error)
        self._is_closing = True
        self._forget()
        due_s = self._network.arrival_s(self._other[0], self._own[0])
        self._loop.call_at(due_s, self._notify_protocol, error, context=self.context)

    def _notify_peer(self, error: Exception | None) -> None:
        if self._detained is not None:
            self._end_waits = (error,)
            return
        due_s = max(self._due_s, self._network.arrival_s(self._own[0], self._other[0])) + _STEP_S
        self._loop.call_at(due_s, self.peer._on_end, error, context=self.peer.context)

    def _on_end(self, error: Exception | None) -> None:
        """The end of the stream follows earlier data; a reset takes effect at once."""
        if self._is_closing:
            return
        if error is not None:
            self._lose(error)
        elif self._end is None:
            self._end = (error,)
            self._feed()

    def _lose(self, error: Exception | None) -> None:
        self._is_closing = True
        self._received.clear()
        self._forget()
        self._loop.call_soon(self._notify_protocol, error, context=self.context)

    def _notify_protocol(self, error: Exception | None) -> None:
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.connection_lost(error)

    def _forget(self) -> None:
        if self._process is not None:
            self._process.on_death.pop(self._die, None)

    def _die(self) -> None:
        """Its process was killed: the operating system closes its connections."""
        if not self._is_closing:
            self._is_closing = True
            self._notify_peer(ConnectionResetError(104, "Connection reset by peer"))
