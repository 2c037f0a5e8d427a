"""A request on its way through the broker, and what an API must offer to be served."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol

from klamm.model import SecurityProtocol
from klamm.protocol.frames import Frame
from klamm.protocol.wire import BytesLike, Message

if TYPE_CHECKING:
    from klamm.network.api_table import VersionedApi
    from klamm.network.connection import Connection

ANONYMOUS: Final = "User:ANONYMOUS"
_UNLIMITED: Final = 2**31 - 1
Dispatched = Message | asyncio.Future[Any] | Generator[None, None, Any] | None
"""What a handler returns: the response, a future of it, or None when there is none (acks=0).

A generator works in slices: it yields at least every few milliseconds and returns one of the others.
"""


class Plane(Enum):
    """Which queue a request takes. Control requests are handled before data requests."""

    DATA = "data"
    CONTROL = "control"


class ChannelContext:
    """What all requests of one connection share."""

    __slots__ = (
        "client_host",
        "client_port",
        "client_software_name",
        "client_software_version",
        "connection_id",
        "listener_name",
        "principal",
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
    ) -> None:
        self.connection_id = connection_id
        self.listener_name = listener_name
        self.security_protocol = security_protocol
        self.client_host = client_host
        self.client_port = client_port
        self.principal = principal
        self.client_software_name = "unknown"
        self.client_software_version = "unknown"


class RequestContext:
    """Who asks what, as a handler sees it. A handler reads it and may call `throttle` and `close_connection`."""

    __slots__ = (
        "api_key",
        "api_version",
        "channel",
        "client_id",
        "closes_connection",
        "correlation_id",
        "now_ms",
        "throttle_time_ms",
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

    def throttle(self, throttle_time_ms: int) -> None:
        """Mutes the connection for so long once the response is sent (KIP-219); the response names the time itself."""
        self.throttle_time_ms = max(self.throttle_time_ms, throttle_time_ms)

    def close_connection(self) -> None:
        """Closes the connection after this request's response, or at once when it has none (acks=0 and an error)."""
        self.closes_connection = True

    def response_room(self) -> int:
        """How many bytes of records this response may have: less while other clients do not read theirs."""
        return _UNLIMITED

    def reserve_response(self, size_bytes: int) -> None:
        """So many bytes were read for this response, which may still have to wait: they count as unsent from now on."""

    @property
    def connection_id(self) -> str:
        return self.channel.connection_id

    @property
    def listener_name(self) -> str:
        return self.channel.listener_name

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


class Request(RequestContext):
    """A request with its place in the network layer: connection, frame, response bytes and time stamps in seconds."""

    __slots__ = (
        "api",
        "connection",
        "dequeued_at",
        "frame",
        "is_complete",
        "is_dropped",
        "local_done_at",
        "pooled_bytes",
        "received_at",
        "remote_done_at",
        "reserved_bytes",
        "response_parts",
        "response_size_bytes",
        "size_bytes",
        "split_name",
    )

    def __init__(
        self,
        connection: Connection,
        api: VersionedApi,
        correlation_id: int,
        frame: Frame,
        received_at: float,
    ) -> None:
        # Written out instead of calling the base class: this runs once per request.
        self.api_key = api.key
        self.api_version = api.version
        self.correlation_id = correlation_id
        self.client_id = None
        self.channel = connection.context
        self.throttle_time_ms = 0
        self.closes_connection = False
        self.connection = connection
        self.api = api
        self.frame: Frame = frame
        """The bytes of header and body until a handler decodes them, then none."""
        self.size_bytes = len(frame)
        self.pooled_bytes = 0
        """What the frame takes of the memory pool."""
        self.received_at = self.dequeued_at = self.local_done_at = self.remote_done_at = received_at
        self.is_complete = False
        self.is_dropped = False
        """An earlier request of the connection was malformed: this one is not handled."""
        self.response_parts: list[BytesLike] | None = None
        self.response_size_bytes = 0
        self.reserved_bytes = 0
        self.split_name: str | None = None

    @property
    def is_abandoned(self) -> bool:
        """Whether handling the request is of no use: its connection has ended, and it changes nothing."""
        return self.is_dropped or (self.api.is_read and self.connection.has_ended())

    def response_room(self) -> int:
        return self.connection.channel.response_room()

    def reserve_response(self, size_bytes: int) -> None:
        self.reserved_bytes += size_bytes
        self.connection.channel.unsent_bytes += size_bytes


class ApiSpec(Protocol):
    """One API as the network layer needs it. `versions` is what the handler honours, both ends included."""

    @property
    def key(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def request(self) -> type[Message]: ...
    @property
    def response(self) -> type[Message]: ...
    @property
    def versions(self) -> tuple[int, int]: ...
    @property
    def plane(self) -> Plane: ...

    def dispatch(self, ctx: RequestContext, request: Any) -> Dispatched:
        """Handle a request. Bad input never raises."""


class SplitsMetrics(Protocol):
    """An API that is also measured under a second name that depends on the request: FetchConsumer, FetchFollower."""

    def metric_name(self, request: Any) -> str: ...


class Reads(Protocol):
    """An API that changes nothing: its requests are dropped when their connection has ended."""

    @property
    def is_read(self) -> bool: ...


class NamesErrors(Protocol):
    """An API that says itself which error codes a response carries; for others they are found by field name."""

    def error_codes(self, response: Any) -> Iterable[int]: ...
