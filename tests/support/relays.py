"""Relays between clients and brokers: they can hold connections back and deliver the bytes much later.

The advertised address of a broker's client listener is its relay. While a connection is held, no byte passes in either
direction and neither side learns that the other one has closed it. After `release` the broker receives all bytes that
the client had sent, even if the client has given up the connection long before.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import partial
from struct import Struct
from typing import Final, TypeVar

from klamm.local.ports import LOOPBACK

T = TypeVar("T")
_HEADER: Final = Struct(">ihhih")
"""Size, API key, version and correlation id of the first request, and the length of the client id behind them."""
_API_KEY_POSITION: Final = 4
_LAST_BYTES_S: Final = 0.5
"""After its last bytes a connection stays open for this long, so that the broker handles them before it learns of the
end."""


class Endpoint(asyncio.Protocol):
    """One side of a relayed connection."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: Endpoint | None = None
        self.is_held = False
        self.kept: list[bytes] = []
        """Bytes that were received here and not passed on."""
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.kept.append(data)
        self.pass_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self.pass_on()

    def pass_on(self) -> None:
        """Send what may pass, and then the end of the connection."""
        target = None if self.other is None else self.other.transport
        if self.is_held or target is None:
            return
        if self.kept and not target.is_closing():
            target.write(b"".join(self.kept))
        is_late = bool(self.kept) and self.is_lost
        self.kept.clear()
        if self.is_lost and not target.is_closing():
            if is_late:
                asyncio.get_running_loop().call_later(_LAST_BYTES_S, target.close)
            else:
                target.close()


def _api_keys(data: bytes) -> Iterator[int]:
    """Yield the API key of each request; `data` begins with a request, and the last one may be incomplete."""
    at = 0
    while len(data) - at >= _HEADER.size:
        size, api_key, *_ = _HEADER.unpack_from(data, at)
        yield api_key
        at += _API_KEY_POSITION + size


class ClientSide(Endpoint):
    """The side of the client: connects to the broker when the client has connected here."""

    def __init__(self, relay: Relay) -> None:
        super().__init__()
        self._relay = relay
        self.client_id = ""
        self.on_held: Callable[[], None] | None = None
        """Called when bytes of the client are held back."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._relay.connections.add(self)
        self.is_held = self._relay.is_cut
        self._relay.connect(self)

    def data_received(self, data: bytes) -> None:
        if not self.client_id and len(data) >= _HEADER.size:
            *_, length = _HEADER.unpack_from(data)
            self.client_id = data[_HEADER.size : _HEADER.size + max(length, 0)].decode()
        super().data_received(data)
        if self.is_held and self.on_held is not None:
            self.on_held()

    def is_holding(self, api_key: int) -> bool:
        """Return whether a request of this API is held back."""
        return api_key in _api_keys(b"".join(self.kept))

    def reset(self) -> None:
        """End the connection for the client. The broker does not learn of it while the connection is held."""
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if not self.is_held:
            self._relay.connections.discard(self)

    def hold(self) -> None:
        self.is_held = True
        if self.other is not None:
            self.other.is_held = True

    def release(self) -> None:
        self.is_held = False
        self.pass_on()
        if self.other is not None:
            self.other.is_held = False
            self.other.pass_on()
        if self.is_lost:
            self._relay.connections.discard(self)


class Relay:
    """Owner: the loop of the relays."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.connections: set[ClientSide] = set()
        self.is_cut = False
        """Whether new connections are held too."""
        self._connecting: set[asyncio.Task[None]] = set()

    def connect(self, client: ClientSide) -> None:
        task = asyncio.ensure_future(self._connect(client))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, client: ClientSide) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, broker = await loop.create_connection(Endpoint, LOOPBACK, self.target_port)
        except OSError:
            self.connections.discard(client)
            if client.transport is not None:
                client.transport.abort()
            return
        client.other, broker.other, broker.is_held = broker, client, client.is_held
        client.pass_on()


def _reset_all(connections: list[ClientSide], api_key: int) -> None:
    """Reset these connections if one of them holds a request of this API."""
    if any(connection.is_holding(api_key) for connection in connections):
        for connection in connections:
            connection.reset()


class Relays:
    """One relay per broker, in a thread of its own. `ports` has the address of each relay by broker id."""

    def __init__(self, target_ports: Mapping[int, int]) -> None:
        self._loop = asyncio.new_event_loop()
        self._relays = {broker_id: Relay(port) for broker_id, port in target_ports.items()}
        self._servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="relays", daemon=True)
        self._thread.start()
        self.ports = {broker_id: self._run(self._listen(relay)) for broker_id, relay in self._relays.items()}

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{LOOPBACK}:{port}" for port in self.ports.values())

    def hold(self, client_id: str, *, resets_at: int | None = None) -> None:
        """Hold the present connections of a client. It can connect again.

        `resets_at`: when a request of this API is held back, the client loses all of these connections.
        """
        self._run(self._hold([*self._relays.values()], client_id, resets_at=resets_at))

    def cut(self, broker_id: int, *, with_new: bool) -> None:
        """Hold the present connections of all clients to a broker; `with_new`: and those that they open meanwhile."""
        self._run(self._hold([self._relays[broker_id]], None, is_cut=with_new))

    def release(self) -> int:
        """Deliver everything that is held; return on how many connections there were bytes for a broker."""
        return self._run(self._release())

    def close(self) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self, relay: Relay) -> int:
        server = await self._loop.create_server(lambda: ClientSide(relay), LOOPBACK, 0)
        self._servers.append(server)
        port: int = server.sockets[0].getsockname()[1]
        return port

    async def _hold(
        self, relays: list[Relay], client_id: str | None, *, is_cut: bool = False, resets_at: int | None = None
    ) -> None:
        held: list[ClientSide] = []
        for relay in relays:
            relay.is_cut = relay.is_cut or is_cut
            for connection in relay.connections:
                if client_id in (None, connection.client_id):
                    connection.hold()
                    held.append(connection)
        if resets_at is not None:
            for connection in held:
                connection.on_held = partial(_reset_all, held, resets_at)

    async def _release(self) -> int:
        late = 0
        for relay in self._relays.values():
            relay.is_cut = False
            for connection in [each for each in relay.connections if each.is_held]:
                late += bool(connection.kept)
                connection.release()
        return late

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for relay in self._relays.values():
            for connection in list(relay.connections):
                for endpoint in (connection, connection.other):
                    if endpoint is not None and endpoint.transport is not None:
                        endpoint.transport.abort()
        await asyncio.sleep(0)

    def _run(self, work: Coroutine[object, object, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
