"""A SocketServer on loopback with APIs that do what a test says, and raw clients that speak bytes."""

from __future__ import annotations

import asyncio
import contextlib
import re
import struct
from collections.abc import Callable, Coroutine, Generator
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import pytest
import uvloop

from klamm.clock import Clock, SystemClock
from klamm.config import KafkaConfig
from klamm.config.client_quotas import ClientQuotas
from klamm.metrics import BusyRatio, Counter, Gauge, Histogram, HistogramColumn, Meter, MetricsRegistry, Timer
from klamm.model import EndPoint, SecurityProtocol
from klamm.network import Plane, RequestContext, SocketServer, SocketServerConfig
from klamm.protocol.frames import RequestHeader
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.controlled_shutdown import ControlledShutdownRequest, ControlledShutdownResponse
from klamm.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from klamm.protocol.wire import Message
from klamm.quota.quota_managers import QuotaManagers
from tests.support.frames import encode_request_frame

Scenario = Callable[[], Coroutine[Any, Any, None]]
Answer = Message | asyncio.Future[Any] | Generator[None, None, Any] | None

both_loops = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


class ScriptedApi:
    """An API whose answers come from `script`; it remembers what it was asked."""

    def __init__(
        self,
        request: type[Message],
        response: type[Message],
        script: Callable[[RequestContext, Any], Answer],
        *,
        plane: Plane = Plane.DATA,
        versions: tuple[int, int] | None = None,
        metric_name: Callable[[Any], str] | None = None,
        is_read: bool = False,
    ) -> None:
        self.is_read = is_read
        self.request, self.response, self.plane, self.script = request, response, plane, script
        self.key = request.KEY
        self.name = request.__name__.removesuffix("Request")
        self.versions = versions if versions is not None else (request.VERSIONS[0], request.VERSIONS[-1])
        self.metric_name = metric_name
        self.asked: list[Any] = []

    def dispatch(self, ctx: RequestContext, request: Any) -> Answer:
        self.asked.append(request)
        return self.script(ctx, request)


def heartbeat_api(script: Callable[[RequestContext, HeartbeatRequest], Answer] | None = None) -> ScriptedApi:
    """Answers with the generation id as error code, which identifies each answer."""
    return ScriptedApi(HeartbeatRequest, HeartbeatResponse, script or (lambda _, r: echo(r)))


def control_api() -> ScriptedApi:
    return ScriptedApi(
        ControlledShutdownRequest,
        ControlledShutdownResponse,
        lambda _, r: ControlledShutdownResponse(error_code=0, remaining_partitions=[]),
        plane=Plane.CONTROL,
    )


def api_versions_api() -> ScriptedApi:
    return ScriptedApi(
        ApiVersionsRequest, ApiVersionsResponse, lambda _, r: ApiVersionsResponse(error_code=0, api_keys=[])
    )


def heartbeat(number: int) -> HeartbeatRequest:
    return HeartbeatRequest(group_id="g", generation_id=number, member_id="m")


def echo(request: HeartbeatRequest) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=request.generation_id)


def numbers(api: ScriptedApi) -> list[int]:
    return [request.generation_id for request in api.asked]


class Server:
    """`async with Server(api, ...)`: bound to port 0 and, unless `started=False`, processing."""

    def __init__(
        self,
        *apis: ScriptedApi,
        config: SocketServerConfig | None = None,
        listeners: tuple[str, ...] = ("PLAINTEXT",),
        control_plane_listener: str | None = None,
        inter_broker_listener: str | None = None,
        clock: Clock | None = None,
        started: bool = True,
        quotas: ClientQuotas | None = None,
        broker_addresses: tuple[str, ...] = (),
    ) -> None:
        self.clock = clock if clock is not None else SystemClock()
        self.registry = MetricsRegistry(self.clock)
        self.quotas = QuotaManagers(quotas or ClientQuotas(), KafkaConfig({"broker.id": 1}), self.clock, self.registry)
        secured = {} if config is None else {name: secure.protocol for name, secure in config.security.items()}
        plain = SecurityProtocol.PLAINTEXT
        self.network = SocketServer(
            tuple(EndPoint(name, "127.0.0.1", 0, secured.get(name, plain)) for name in listeners),
            apis,
            loop=asyncio.get_running_loop(),
            clock=self.clock,
            registry=self.registry,
            config=replace(
                config if config is not None else SocketServerConfig(),
                control_plane_listener=control_plane_listener,
                inter_broker_listener=inter_broker_listener,
            ),
            is_broker_address=broker_addresses.__contains__,
            client_quotas=self.quotas,
        )
        self._started = started
        self._clients: list[RawClient] = []

    @property
    def connection_count(self) -> int:
        return sum(len(acceptor.processor.connections) for acceptor in self.network.acceptors)

    def connections_of(self, ip: str) -> int:
        return self.network.quotas._by_ip.get(ip, 0)

    async def __aenter__(self) -> Self:
        await self.network.bind()
        if self._started:
            self.network.start_processing()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.network.shutdown(timeout_ms=0 if error else 100)
        for client in self._clients:
            client.writer.transport.abort()
        await asyncio.sleep(0)

    @property
    def port(self) -> int:
        return self.network.acceptors[0].port

    def accept_without_handlers(self) -> None:
        """Requests are read and queued but not handled until `network.handler_pool.start()`."""
        for acceptor in self.network.acceptors:
            acceptor.start_processing()

    async def client(self, listener: str | None = None, *, address: str | None = None) -> RawClient:
        """Connect, from `address` if it is given."""
        port = self.port if listener is None else self.network.bound_port(listener)
        local = None if address is None else (address, 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=local)
        self._clients.append(RawClient(reader, writer))
        return self._clients[-1]

    def value(self, type_: str, name: str, group: str = "kafka.network", **tags: str) -> float:
        """The current value (gauge, percent) or count (meter, histogram) of a metric."""
        match self.registry.find(group, type_, name, tags or None):
            case Gauge() as gauge:
                assert isinstance(gauge.value, int | float)
                return gauge.value
            case BusyRatio() as ratio:
                return ratio.value
            case Meter() | Counter() | Histogram() | HistogramColumn() | Timer() as counted:
                return counted.count
            case None:
                raise AssertionError(f"there is no metric {group}:{type_}:{name} {tags}")


class RawClient:
    """Writes requests and reads frames; correlation ids count from 0."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._next = 0

    def send(self, request: Message, version: int = 1) -> None:
        self.writer.write(frame(request, version, self._next))
        self._next += 1

    async def receive(self) -> bytes:
        size = struct.unpack(">i", await self.reader.readexactly(4))[0]
        return await self.reader.readexactly(size)

    async def receive_heartbeat(self) -> tuple[int, int]:
        """(correlation id, error code) of a Heartbeat v1 response."""
        correlation_id, _, error_code = struct.unpack(">iih", await self.receive())
        return correlation_id, error_code

    async def receive_end(self) -> bytes:
        """Return the bytes received until the server closes; a reset counts as a close."""
        try:
            return await self.reader.read()
        except ConnectionResetError:
            return b""

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


def frame(request: Message, version: int, correlation_id: int = 0) -> bytes:
    return b"".join(encode_request_frame(RequestHeader(request.KEY, version, correlation_id, "tester"), request))


def muted(server: Server) -> dict[str, object]:
    """The exported metric, without the reasons that no connection has."""
    name = "klamm_network_socketserver_mutedconnections"
    found = re.findall(rf'^{name}{{reason="([a-z-]+)"}} (\d+)$', server.registry.exposition(), re.MULTILINE)
    assert len(found) == 8
    return {reason: int(count) for reason, count in found if count != "0"}


async def until(condition: Callable[[], object]) -> None:
    """Gives the loop turns until the condition holds; the test's own time limit ends a condition that never does."""
    while not condition():  # noqa: ASYNC110 - the condition is the state of code under test, not an event
        await asyncio.sleep(0.001)


class ManualClock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def monotonic(self) -> float:
        return self.seconds


async def settled() -> None:
    """Gives the loop many turns, so that what was going to happen without waiting has happened."""
    for _ in range(200):
        await asyncio.sleep(0)
