"""Acceptor: admit the connections of one listener within the quotas, and number them."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from klamm.errors import ConfigError
from klamm.metrics import MetricsRegistry
from klamm.model import EndPoint
from klamm.network.connection import Connection
from klamm.network.connection_quotas import Admission, ConnectionQuotas
from klamm.network.muting import CLOSING
from klamm.network.processor import Processor
from klamm.network.tls_handshakes import TlsHandshakes
from klamm.sockets.accept_loop import AcceptLoop
from klamm.sockets.listening import OwnNetwork, bind_sockets

OS_DEFAULT: Final = -1
"""The socket buffer size that leaves the choice to the system."""
MAX_CONNECTION_INDEX: Final = 2**31 - 1
FULL_LOG_INTERVAL_S: Final = 60.0
"""How often a full listener is logged."""
LOOK_INTERVAL_S: Final = 0.1
"""How often a full line is searched for connections whose peer has left: each takes a system call."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Evictions:
    """Places of other connections. All listeners share them."""

    for_listener: Callable[[str], None]
    """Close the least recently used connection of another listener."""
    of_silent: Callable[[bool], bool]
    """Close the oldest connection without a request; return whether there was one. True: a broker needs room."""
    on_room: Callable[[], None]
    """Admit waiting connections after one has closed."""


class Acceptor:
    """Up to `backlog` connections beyond the quotas wait unread; more are closed.

    Connections from addresses of brokers wait in a line of their own: waiting clients must not keep them from the
    places that are reserved for brokers.

    `AcceptorBlockedPercent` is the share of time in which a connection waited for admission.
    """

    def __init__(
        self,
        endpoint: EndPoint,
        processor: Processor,
        *,
        quotas: ConnectionQuotas,
        registry: MetricsRegistry,
        backlog: int,
        send_buffer_bytes: int,
        evictions: Evictions,
    ) -> None:
        self.endpoint = endpoint
        self.processor = processor
        self.port = endpoint.port
        self._quotas = quotas
        self._backlog = backlog
        self._send_buffer_bytes = send_buffer_bytes
        self._evictions = evictions
        self._servers: list[asyncio.Server] = []
        self._is_started = False
        self._waiting_brokers: deque[Connection] = deque()
        self._waiting_clients: deque[Connection] = deque()
        self.open: dict[Connection, None] = {}
        """All connections of the listener, also those that wait for admission."""
        self._next_index = 0
        self._silent: dict[bool, deque[Connection]] = {False: deque(), True: deque()}
        """Those of clients and those of brokers, in the order of their opening. Those that have sent a request since
        then are removed when they are met."""
        self._full_until = -math.inf
        self._look_at = {False: -math.inf, True: -math.inf}
        """When a full line is searched again: that of clients and that of brokers."""
        environment, name = processor.environment, endpoint.listener
        self._handshakes = TlsHandshakes(
            environment, self.new_connection, self._has_room, listener=name, is_changing=self._is_changing
        )
        self._accept_loop = AcceptLoop(
            environment.loop, self._open, self._has_room, listener=name, is_changing=self._is_changing
        )
        self._opening: dict[asyncio.Task[None], None] = {}
        prefix = "ControlPlane" if processor.is_control_plane else ""
        tags = {"listener": endpoint.listener}
        name = f"{prefix}AcceptorBlockedPercent"
        self._blocked = registry.busy_ratio("kafka.network", "Acceptor", name, tags, inverted=True)

    async def bind(self, loop: asyncio.AbstractEventLoop, receive_buffer_bytes: int) -> None:
        endpoint = self.endpoint
        sizes = {socket.SO_RCVBUF: receive_buffer_bytes, socket.SO_SNDBUF: self._send_buffer_bytes}
        buffers = {option: size for option, size in sizes.items() if size != OS_DEFAULT}
        try:
            for sock in await bind_sockets(loop, endpoint.host, endpoint.port, buffers):
                self.port = sock.getsockname()[1]
                if self.processor.environment.security.has_tls:
                    self._handshakes.listen(sock, self._backlog)
                elif isinstance(loop, OwnNetwork):
                    server = await loop.create_server(self.new_connection, sock=sock, backlog=self._backlog)
                    self._servers.append(server)
                else:
                    self._accept_loop.listen(sock, self._backlog)
        except OSError as error:
            where = f"{endpoint.host}:{endpoint.port}"
            raise ConfigError(f"listener {endpoint.listener} cannot be bound to {where}: {error.strerror}") from error

    def new_connection(self) -> Connection:
        """Make the protocol of a connection that a transport is about to open."""
        return Connection(self.processor.environment, self._on_connection, self._on_connection_lost)

    def _open(self, sock: socket.socket) -> None:
        self._quotas.opened()  # Opening takes some turns, in which others are accepted.
        task = self.processor.environment.loop.create_task(self._connect(sock), name="accept")
        self._opening[task] = None
        task.add_done_callback(self._opening.pop)

    async def _connect(self, sock: socket.socket) -> None:
        """Give an accepted socket a transport, which makes its connection. The socket has been counted."""
        environment = self.processor.environment
        connection = Connection(environment, self._begin, self._on_connection_lost)
        try:
            await environment.loop.connect_accepted_socket(lambda: connection, sock)
        except OSError as error:
            _log.info("Opening an accepted connection failed: %s", error)
            sock.close()
        finally:
            if connection.index < 0:  # It was not made, so nobody will report its end.
                self._quotas.closed()

    @property
    def sockets(self) -> list[socket.socket]:
        """The listening sockets."""
        simulated = [sock for server in self._servers for sock in server.sockets]
        return [*self._handshakes.sockets, *self._accept_loop.sockets, *simulated]

    def _has_room(self, ip: str) -> bool:
        """Return whether a connection may be opened. If there are too many, a silent one closes in its favour.

        A connection that waits for descriptors would hold one, so others are closed at once. Clients do not replace
        brokers: many at once could do so again and again before the first request of a broker arrives.
        """
        quotas = self._quotas
        if quotas.may_open(self.endpoint.listener, ip):
            return True
        now = self.processor.environment.clock.monotonic()
        if now >= self._full_until:
            self._full_until = now + FULL_LOG_INTERVAL_S
            _log.warning(
                "listener %s is full: %d connections are open; the other file descriptors are reserved for logs and "
                "brokers. New connections replace silent ones or are refused. Raise the limit of open files "
                "(ulimit -n, LimitNOFILE)",
                self.endpoint.listener,
                quotas.open_connections,
            )
        return quotas.may_replace and self._evictions.of_silent(quotas.is_reserved(self.endpoint.listener, ip))

    def _is_changing(self) -> bool:
        """Whether there may be room soon: replaced connections end, and those that are being opened can be replaced."""
        return self._quotas.is_replacing or bool(self._opening)

    def oldest_silent(self, *, of_broker: bool) -> Connection | None:
        """Return the connection that has been open longest without a request."""
        silent = self._silent[of_broker]
        while silent and (silent[0].is_closed or not silent[0].is_silent):
            silent.popleft()
        return silent[0] if silent else None

    def start_processing(self) -> None:
        self._is_started = True
        self.admit_waiting()

    # Connections call these.

    def _on_connection(self, connection: Connection, transport: asyncio.Transport) -> None:
        self._quotas.opened()
        self._begin(connection, transport)

    def _begin(self, connection: Connection, transport: asyncio.Transport) -> None:
        self.open[connection] = None
        self._identify(connection, transport)
        self._note_silent(connection)
        line = self._line_of(connection)
        if line or not self._try_admit(connection):
            self._wait(connection, line)

    def _note_silent(self, connection: Connection) -> None:
        of_broker = self._quotas.is_reserved(self.endpoint.listener, connection.context.client_host)
        silent = self._silent[of_broker]
        silent.append(connection)
        if len(silent) > 2 * len(self.open) + 64:
            self._silent[of_broker] = deque(c for c in silent if c.is_silent and not c.is_closed)

    def _on_connection_lost(self, connection: Connection) -> None:
        if connection in self.open:
            del self.open[connection]
            self._quotas.closed(was_replaced=connection.is_replaced)
        if connection.is_admitted:
            self.processor.remove(connection)
            self._quotas.release(self.endpoint.listener, connection.context.client_host)
            self._evictions.on_room()

    def admit_waiting(self) -> None:
        """Admit waiting connections, those of brokers first, in their order and as far as the quotas allow."""
        self._admit_from(self._waiting_brokers)
        self._admit_from(self._waiting_clients)
        if not self._waiting_brokers and not self._waiting_clients:
            self._blocked.end()

    def sort_waiting(self) -> None:
        """Assign waiting connections to their lines again after the addresses of brokers have changed; admit some."""
        waiting = (*self._waiting_brokers, *self._waiting_clients)
        self._waiting_brokers.clear()
        self._waiting_clients.clear()
        for connection in waiting:
            self._line_of(connection).append(connection)
        self.admit_waiting()

    def _line_of(self, connection: Connection) -> deque[Connection]:
        is_broker = self._quotas.is_broker_address(connection.context.client_host)
        return self._waiting_brokers if is_broker else self._waiting_clients

    def _admit_from(self, line: deque[Connection]) -> None:
        while line and self._is_started:
            connection = line[0]
            is_ending = connection.is_closed or connection.paused & CLOSING  # For example, another one replaced it.
            if not is_ending and not self._try_admit(connection):
                return
            line.popleft()

    def _identify(self, connection: Connection, transport: asyncio.Transport) -> None:
        local = _address(transport.get_extra_info("sockname"), (self.endpoint.host, self.port))
        remote = _address(transport.get_extra_info("peername"), ("unknown", 0))
        context = connection.context
        connection.index = self._next_index
        self._next_index = (self._next_index + 1) % MAX_CONNECTION_INDEX
        context.order = self.processor.environment.orders.take()
        context.connection_id = f"{local[0]}:{local[1]}-{remote[0]}:{remote[1]}-{connection.index}"
        context.listener_name = self.endpoint.listener
        context.processor_id = self.processor.id
        context.security_protocol = self.endpoint.security_protocol
        context.client_host, context.client_port = remote

    def _try_admit(self, connection: Connection) -> bool:
        """Admit or refuse a connection; return False if it must wait."""
        if not self._is_started:
            return False
        match self._quotas.acquire(self.endpoint.listener, connection.context.client_host):
            case Admission.WAIT:
                return False
            case Admission.REFUSE:
                connection.log_refusal(logging.INFO, "Refusing", "too many connections from its address")
                connection.abort()
                return True
            case Admission.ADMIT_AND_EVICT:
                self._admit(connection)
                self._evictions.for_listener(self.endpoint.listener)
            case Admission.ADMIT:
                self._admit(connection)
        return True

    def _admit(self, connection: Connection) -> None:
        connection.is_admitted = True
        self.processor.add(connection)
        if self.processor.environment.security.has_tls:
            self._handshakes.begin(connection)
        else:
            connection.admit()

    def _wait(self, connection: Connection, line: deque[Connection]) -> None:
        if len(line) >= self._backlog:
            self._forget_left(line)
        if len(line) >= self._backlog:
            reason = f"{self._backlog} connections wait for admission already"
            connection.log_refusal(logging.INFO, "Refusing", reason)
            connection.abort()
            return
        if self._is_started:
            self._blocked.begin()
        line.append(connection)

    def _forget_left(self, line: deque[Connection]) -> None:
        """Close waiting connections whose peer has left: they are not read, so the loop does not notice."""
        now, of_brokers = self.processor.environment.clock.monotonic(), line is self._waiting_brokers
        if now < self._look_at[of_brokers]:
            return
        self._look_at[of_brokers] = now + LOOK_INTERVAL_S
        waiting = [connection for connection in line if not connection.has_ended()]
        line.clear()
        line.extend(waiting)

    # The end.

    def close(self) -> None:
        """Stop listening; connections stay open."""
        self._handshakes.close()
        self._accept_loop.close()
        for server in self._servers:
            server.close()

    async def shutdown(self) -> None:
        self.close()
        self._is_started = False
        while self._opening:  # for a few turns; after a cancellation, uvloop would not report the end of a connection
            await asyncio.wait(self._opening)
        self._waiting_brokers.clear()
        self._waiting_clients.clear()
        for connection in list(self.open):
            connection.close()
        await asyncio.sleep(0)
        for connection in list(self.open):
            connection.abort()
        self.processor.shutdown()
        for server in self._servers:
            await server.wait_closed()


def _address(address: Any, unknown: tuple[str, int]) -> tuple[str, int]:
    return (str(address[0]), int(address[1])) if isinstance(address, tuple) and len(address) >= 2 else unknown
