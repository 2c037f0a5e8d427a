"""Request: a request on its way through the broker, with its time stamps and its response."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator

from klamm.network.api_table import VersionedApi
from klamm.network.request_context import ChannelContext, RequestContext
from klamm.network.request_decoder import RequestDecoder
from klamm.protocol.frames import Frame
from klamm.protocol.wire import BytesLike, Message

Steps = Generator[None, None, None]
"""Work in slices: each step takes at most a few milliseconds."""


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
        "turn_at",
    )

    def __init__(
        self,
        connection: Responder,
        api: VersionedApi,
        correlation_id: int,
        frame: Frame,
        received_at: float,
    ) -> None:
        # Does not call the base class: this runs once per request.
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
        """Header and body until a handler decodes them, then empty."""
        self.size_bytes = len(frame)
        self.pooled_bytes = 0
        """The share of the memory pool that the frame holds."""
        self.received_at = self.dequeued_at = self.local_done_at = self.remote_done_at = self.turn_at = received_at
        """`turn_at`: this response and all earlier ones of the connection were complete."""
        self.is_complete = False
        self.is_dropped = False
        """An earlier request of the connection was malformed: this one is not handled."""
        self.response_parts: list[BytesLike] | None = None
        self.response_size_bytes = 0
        self.reserved_bytes = 0
        self.split_name: str | None = None

    @property
    def is_abandoned(self) -> bool:
        """Whether handling the request is useless: its connection has ended, and it changes nothing."""
        return self.is_dropped or (self.api.is_read and self.connection.has_ended())

    def response_room(self) -> int:
        return self.connection.response_room()

    def reserve_response(self, size_bytes: int) -> None:
        self.reserved_bytes += size_bytes
        self.connection.reserve_response(size_bytes)


class Responder(ABC):
    """The connection of a request, as handlers use it.

    Each request ends with one call of `complete`, `complete_with_close`, `refuse` or `drop`.
    """

    __slots__ = ()

    context: ChannelContext
    decoder: RequestDecoder
    is_closed: bool
    paused: int
    """The reasons not to read the connection, see `muting`."""

    @abstractmethod
    def complete(self, request: Request, response: Message | None) -> Steps | None:
        """End a request with its response, or without one. Return the remaining steps if encoding takes long.

        Raises ValueError if the response cannot be encoded: a bug in the handler.
        """

    @abstractmethod
    def complete_with_close(self, request: Request) -> None:
        """End a request by closing the connection instead of a response."""

    @abstractmethod
    def refuse(self, request: Request, reason: str) -> None:
        """End a malformed request: earlier requests are answered, later ones dropped, then the connection closes."""

    @abstractmethod
    def drop(self, request: Request) -> None:
        """End a request that was not handled."""

    @abstractmethod
    def begin_slices(self, request: Request) -> None:
        """Hold back the next requests of the connection: this one is worked on in slices."""

    @abstractmethod
    def end_slices(self, request: Request) -> None:
        """Release the next requests of the connection."""

    @abstractmethod
    def has_ended(self) -> bool:
        """Return whether the client has closed the connection, even if the loop has not noticed yet."""

    @abstractmethod
    def response_room(self) -> int:
        """Return how many bytes of records a response may carry now."""

    @abstractmethod
    def reserve_response(self, size_bytes: int) -> None:
        """Count bytes as unsent before the response is complete."""
