"""The context of a request as a handler sees it, and the interface of an API that the network layer serves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Generator
from enum import Enum
from typing import Any, Final, Protocol

from klamm.model import ConnectionOrder, SecurityProtocol
from klamm.network.request_tracer import RequestTrace
from klamm.protocol.wire import Message
from klamm.security.listener_security import ANONYMOUS

_UNLIMITED: Final = 2**31 - 1
Dispatched = Message | asyncio.Future[Any] | Generator[None, None, Any] | None
"""The result of a handler: the response, a future of the response, or None if there is no response (acks=0).

A generator works in slices: it yields at least every few milliseconds and returns one of the others.
"""


class Plane(Enum):
    """The queue of a request. Handlers take control requests before data requests."""

    DATA = "data"
    CONTROL = "control"


class ChannelContext:
    """Properties of a connection that all its requests share.

    `order` is its position among all connections that this broker process accepted: 1, 2, 3, ... `features_epoch` is
    the epoch of the features that ApiVersions has reported on it; -1 before. `principal` is the identity that the peer
    has proved. `peer_broker_id` is the broker of this cluster that has proved itself, None for others.
    """

    __slots__ = (
        "client_host",
        "client_port",
        "client_software_name",
        "client_software_version",
        "connection_id",
        "features_epoch",
        "listener_name",
        "order",
        "peer_broker_id",
        "principal",
        "processor_id",
        "security_protocol",
    )

    def __init__(
        self,
        *,
        connection_id: str = "",
        listener_name: str = "PLAINTEXT",
        security_protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT,
        client_host: str = "127.0.0.1",
        client_port: int = 0,
        principal: str = ANONYMOUS,
        order: ConnectionOrder = 0,
        peer_broker_id: int | None = None,
    ) -> None:
        self.connection_id = connection_id
        self.order = order
        self.listener_name = listener_name
        self.security_protocol = security_protocol
        self.client_host = client_host
        self.client_port = client_port
        self.principal = principal
        self.peer_broker_id = peer_broker_id
        """The registered broker that proved itself on this connection; None for clients."""
        self.client_software_name = "unknown"
        self.client_software_version = "unknown"
        self.features_epoch = -1
        self.processor_id = 0


class RequestContext:
    """Client, connection and header of a request. A handler may call `throttle` and `close_connection`."""

    __slots__ = (
        "api_key",
        "api_version",
        "channel",
        "client_id",
        "closes_connection",
        "correlation_id",
        "now_ms",
        "sends_at_once",
        "throttle_time_ms",
        "trace",
    )

    def __init__(
        self,
        api_key: int,
        api_version: int,
        correlation_id: int = 0,
        client_id: str | None = None,
        *,
        channel: ChannelContext | None = None,
        now_ms: int = 0,
    ) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.channel = channel if channel is not None else ChannelContext()
        self.now_ms = now_ms
        self.throttle_time_ms = 0
        self.closes_connection = False
        self.sends_at_once = False
        """Whether the response leaves before the turn of the loop ends: other requests wait for its reader."""
        self.trace: RequestTrace | None = None
        """The trace of this request; None for most."""

    def throttle(self, throttle_time_ms: int) -> None:
        """Mute the connection for this time after the response (KIP-219). The response must carry the time as well."""
        self.throttle_time_ms = max(self.throttle_time_ms, throttle_time_ms)

    def close_connection(self) -> None:
        """Close the connection after this request's response, or at once if it has none (acks=0 and an error)."""
        self.closes_connection = True

    def has_ended(self) -> bool:
        """Return whether the client has closed the connection."""
        return False

    def response_room(self) -> int:
        """Return how many bytes of records the response may carry: fewer while other clients do not read theirs."""
        return _UNLIMITED

    def hold(self, *collections: Collection[Any]) -> None:
        """Free these after the request's end, in steps, if they are large or the request is.

        Dictionaries and sets are emptied then, so nobody else may use them.
        """

    def free_in_steps(self, steps: Generator[None, None, None]) -> None:
        """Take these steps after the request's end."""
        for _ in steps:
            pass

    def take_all_steps(self) -> None:
        """Continue if the client leaves: the next steps make so much that to free it at once would hold the loop."""

    def freed(self) -> Generator[None, None, None]:
        """Return the steps that free the request and its buffers, for a handler that waits long and needs neither."""
        yield from ()

    def reserve_response(self, size_bytes: int) -> None:
        """Count `size_bytes` as unsent from now on, although the response may be delayed."""

    @property
    def api_name(self) -> str:
        """The name of the API, such as Fetch."""
        return str(self.api_key)

    @property
    def connection_id(self) -> str:
        return self.channel.connection_id

    @property
    def listener_name(self) -> str:
        return self.channel.listener_name

    @property
    def peer_broker_id(self) -> int | None:
        return self.channel.peer_broker_id

    @property
    def security_protocol(self) -> SecurityProtocol:
        return self.channel.security_protocol

    @property
    def client_host(self) -> str:
        return self.channel.client_host

    @property
    def principal(self) -> str:
        return self.channel.principal

    @property
    def client_software_name(self) -> str:
        return self.channel.client_software_name

    @property
    def client_software_version(self) -> str:
        return self.channel.client_software_version


class ApiSpec(Protocol):
    """The declaration of an API (`klamm.apis.api_declaration.Api`) as the network layer sees it: `apis` is above it."""

    @property
    def key(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def request(self) -> type[Message]: ...
    @property
    def response(self) -> type[Message]: ...
    @property
    def versions(self) -> tuple[int, int]:
        """The first and the last version that the handler serves."""

    @property
    def plane(self) -> Plane: ...
    @property
    def is_read(self) -> bool:
        """Whether the API changes nothing: its requests are dropped if their connection has ended."""

    @property
    def metric_name(self) -> Callable[[Any], str] | None:
        """Return the second name under which a request is measured (FetchConsumer, FetchFollower)."""

    def dispatch(self, ctx: RequestContext, request: Any) -> Dispatched:
        """Handle a request. Invalid input never raises."""
