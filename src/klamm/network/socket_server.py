"""SocketServer: named listeners, each with an Acceptor and a Processor, all on the broker loop.

The listeners are bound first (`bind`), so that a broker can be registered under ports that are really its own;
connections that come early wait unread until `start_processing`. The control plane listener, if there is one, serves
control APIs and ApiVersions only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from typing import Any, Final

from klamm.clock import Clock
from klamm.errors import ConfigError
from klamm.lazy_dataclass import lazy_dataclass
from klamm.metrics import MetricsRegistry
from klamm.model import EndPoint
from klamm.network.acceptor import OS_DEFAULT, Acceptor, Evictions
from klamm.network.api_table import ApiTable
from klamm.network.charging import NO_QUOTAS, RequestQuotas
from klamm.network.connection import Connection
from klamm.network.connection_environment import ConnectionEnvironment, ConnectionOrders
from klamm.network.connection_quotas import ConnectionLimits, ConnectionQuotas, DescriptorRoom
from klamm.network.muting import MutedConnections
from klamm.network.processor import Processor
from klamm.network.request_channel import RequestChannel
from klamm.network.request_context import ApiSpec
from klamm.network.request_handler import KafkaRequestHandlerPool
from klamm.network.request_tracer import RequestTracer
from klamm.security.listener_security import ListenerSecurity

RECEIVE_BYTES: Final = 256 * 1024
"""The size of the buffer into which all connections receive small frames, one read at a time."""

_log = logging.getLogger(__name__)
_GROUP: Final = "kafka.network"


@lazy_dataclass(frozen=True, slots=True)
class SocketServerConfig:
    """The settings of the network layer, under Kafka's names.

    Socket buffers are left to the system, which grows them as needed: Kafka's default of 100 KiB halves the rate of
    256 KiB requests over loopback.
    """

    num_io_threads: int = 8
    queued_max_requests: int = 500
    queued_max_request_bytes: int = 512 * 1024 * 1024
    socket_request_max_bytes: int = 104_857_600
    socket_send_buffer_bytes: int = OS_DEFAULT
    socket_receive_buffer_bytes: int = OS_DEFAULT
    socket_listen_backlog_size: int = 1024
    connections_max_idle_ms: int = 600_000
    connection_limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    descriptor_room: DescriptorRoom = field(default_factory=DescriptorRoom)
    control_plane_listener: str | None = None
    inter_broker_listener: str | None = None
    security: Mapping[str, ListenerSecurity] = field(default_factory=dict)
    """How the peers of each listener prove who they are; a listener that is absent asks for nothing."""


class SocketServer:
    """The network layer of a broker. Owner: the broker loop."""

    def __init__(
        self,
        endpoints: Iterable[EndPoint],
        apis: Iterable[ApiSpec],
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        registry: MetricsRegistry,
        config: SocketServerConfig | None = None,
        is_broker_address: Callable[[str], bool] = lambda _: False,
        client_quotas: RequestQuotas = NO_QUOTAS,
    ) -> None:
        self._endpoints = tuple(endpoints)
        self.config = config if config is not None else SocketServerConfig()
        control_plane_listener = self.config.control_plane_listener
        _check(self._endpoints, self.config)
        self._loop = loop
        self._clock = clock
        self._registry = registry
        self.apis = ApiTable(apis, registry)
        self.tracer = RequestTracer(clock)
        self.channel = RequestChannel(
            loop,
            registry,
            queued_max_requests=self.config.queued_max_requests,
            queued_max_request_bytes=self.config.queued_max_request_bytes,
            monotonic=clock.monotonic,
            quotas=client_quotas,
            tracer=self.tracer,
        )
        self.handler_pool = KafkaRequestHandlerPool(self.channel, loop, clock, registry, self.config.num_io_threads)
        self.quotas = ConnectionQuotas(
            self.config.connection_limits,
            protected_listeners=_only_for_brokers(self._endpoints, self.config),
            is_broker_address=is_broker_address,
            room=self.config.descriptor_room,
        )
        scratch = bytearray(RECEIVE_BYTES)
        self._orders = ConnectionOrders()
        self.acceptors = tuple(
            self._acceptor(index, endpoint, scratch, is_control_plane=endpoint.listener == control_plane_listener)
            for index, endpoint in enumerate(self._endpoints)
        )
        self._register()

    def _acceptor(self, index: int, endpoint: EndPoint, scratch: bytearray, *, is_control_plane: bool) -> Acceptor:
        config = self.config
        environment = ConnectionEnvironment(
            self._loop,
            self._clock,
            self.channel,
            self.apis,
            scratch=scratch,
            max_request_bytes=config.socket_request_max_bytes,
            is_control_plane=is_control_plane,
            orders=self._orders,
        )
        environment.security = config.security.get(endpoint.listener, environment.security)
        processor = Processor(
            index,
            endpoint.listener,
            environment,
            self._registry,
            connections_max_idle_ms=config.connections_max_idle_ms,
        )
        return Acceptor(
            endpoint,
            processor,
            quotas=self.quotas,
            registry=self._registry,
            backlog=config.socket_listen_backlog_size,
            send_buffer_bytes=config.socket_send_buffer_bytes,
            evictions=Evictions(self._evict_for, self._evict_silent, self._on_connection_room),
        )

    def _register(self) -> None:
        for prefix, is_control in (("", False), ("ControlPlane", True)):
            processors = [a.processor for a in self.acceptors if a.processor.is_control_plane == is_control]
            self._register_plane(prefix, processors)
        muted = MutedConnections(lambda: (c for a in self.acceptors for c in a.open))
        self._registry.gauge_table("klamm.network", "SocketServer", "MutedConnections", muted)

    def _register_plane(self, prefix: str, processors: list[Processor]) -> None:
        def gauge(type_: str, name: str, fn: Any) -> None:
            self._registry.gauge(_GROUP, type_, prefix + name, fn)

        gauge("RequestChannel", "ResponseQueueSize", lambda: sum(p.response_queue_size for p in processors))
        gauge(
            "SocketServer",
            "ExpiredConnectionsKilledCount",
            lambda: sum(p.expired_connections_killed + p.environment.security.counts.expired for p in processors),
        )
        gauge("SocketServer", "NetworkProcessorAvgIdlePercent", lambda: _mean([p.idle.value for p in processors]))

    @property
    def endpoints(self) -> tuple[EndPoint, ...]:
        """The listeners with the ports they are bound to."""
        return tuple(replace(a.endpoint, port=a.port) for a in self.acceptors)

    def bound_port(self, listener: str) -> int:
        return next(a.port for a in self.acceptors if a.endpoint.listener == listener)

    async def bind(self) -> None:
        """Bind every listener or none. Raises ConfigError, which names the listener, if an address is in use."""
        try:
            for acceptor in self.acceptors:
                await acceptor.bind(self._loop, self.config.socket_receive_buffer_bytes)
        except BaseException:
            for acceptor in self.acceptors:
                acceptor.close()
            raise

    def number_connections(self, orders: ConnectionOrders) -> None:
        """Number connections with `orders`, which others read. Call this before `bind`."""
        for acceptor in self.acceptors:
            acceptor.processor.environment.orders = orders

    def start_processing(self, *, data: bool = True) -> None:
        """Start to read connections and to handle requests, or without `data` those of the control plane only.

        Data requests then wait in their queue for `open_data_plane`.
        """
        self.handler_pool.start(data=data)
        for acceptor in self.acceptors:
            acceptor.start_processing()

    def open_data_plane(self) -> None:
        self.handler_pool.open_data_plane()

    def stop_accepting(self) -> None:
        for acceptor in self.acceptors:
            acceptor.close()

    async def shutdown(self, timeout_ms: int = 5_000) -> None:
        """Stop accepting and reading, answer requests in flight for a bounded time, then close all connections."""
        self.stop_accepting()
        for acceptor in self.acceptors:
            acceptor.processor.stop_reading()
        try:
            if self.channel.in_flight and self.handler_pool.serves_data:
                async with asyncio.timeout(timeout_ms / 1000):
                    await self.channel.drained()
        except TimeoutError:
            _log.warning("%d requests were not answered within %d ms of shutdown", self.channel.in_flight, timeout_ms)
        self.handler_pool.shutdown()
        for acceptor in self.acceptors:
            await acceptor.shutdown()

    def update_limits(self, limits: ConnectionLimits) -> None:
        """Apply changed connection limits to new connections."""
        self.quotas.limits = limits
        self._on_connection_room()

    def on_broker_addresses(self) -> None:
        """Apply changed addresses of brokers to the connections that wait for admission."""
        for acceptor in self.acceptors:
            acceptor.sort_waiting()

    def _evict_for(self, listener: str) -> None:
        """Close the least recently used connection of another listener, in favour of one on a protected listener."""
        oldest = [a.processor.least_recently_used() for a in self.acceptors if a.endpoint.listener != listener]
        victim = min((c for c in oldest if c is not None), key=lambda c: c.last_active_at, default=None)
        if victim is not None:
            victim.log_refusal(logging.INFO, "Closing", "max.connections is reached")
            victim.abort()

    def _evict_silent(self, also_of_brokers: bool) -> bool:
        """Close the oldest connection without a request, in favour of a new one; return whether there was one.

        `also_of_brokers`: if no client has one, close that of a broker.
        """
        victim = self._oldest_silent(of_broker=False)
        if victim is None and also_of_brokers:
            victim = self._oldest_silent(of_broker=True)
        if victim is None:
            return False
        self.quotas.replaced()
        state = "no request has arrived from it" if victim.is_admitted else "it waits for admission"
        victim.log_refusal(logging.INFO, "Closing", f"{state}, and the file descriptors are needed")
        victim.abort(is_replaced=True)
        return True

    def _oldest_silent(self, *, of_broker: bool) -> Connection | None:
        silent = [c for a in self.acceptors if (c := a.oldest_silent(of_broker=of_broker)) is not None]
        return min(silent, key=lambda c: c.context.order, default=None)

    def _on_connection_room(self) -> None:
        for acceptor in self.acceptors:
            acceptor.admit_waiting()


def _only_for_brokers(endpoints: tuple[EndPoint, ...], config: SocketServerConfig) -> set[str]:
    """Return the listeners that only brokers use, because there is another one for clients."""
    inter_broker, control = config.inter_broker_listener, config.control_plane_listener
    own = {inter_broker, control}
    for_clients = [endpoint.listener for endpoint in endpoints if endpoint.listener not in own]
    return {name for name in (control, inter_broker if for_clients else None) if name is not None}


def _check(endpoints: tuple[EndPoint, ...], config: SocketServerConfig) -> None:
    control_plane_listener = config.control_plane_listener
    names = [e.listener for e in endpoints]
    if not names or len(set(names)) != len(names):
        raise ConfigError(f"listeners must name at least one listener, each once: {', '.join(names) or 'none given'}")
    if control_plane_listener is not None and control_plane_listener not in names:
        raise ConfigError(
            f"control.plane.listener.name is {control_plane_listener!r}, listeners are {', '.join(names)}"
        )
    for endpoint in endpoints:
        given = config.security.get(endpoint.listener, ListenerSecurity()).protocol
        if given is not endpoint.security_protocol:
            raise ConfigError(f"listener {endpoint.listener} needs {endpoint.security_protocol.name}, not {given.name}")


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
