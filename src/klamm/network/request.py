"""Request: a request on its way through the broker, with its time stamps and its response."""

from __future__ import annotations

from collections.abc import Collection, Generator
from mmap import mmap
from typing import Any, Final, Protocol

from klamm.network.api_table import ApiTableEntry
from klamm.network.request_context import ChannelContext, RequestContext
from klamm.network.request_decoder import RequestDecoder
from klamm.protocol.chunked import CHUNK, Held, release, rows_of
from klamm.protocol.frames import Frame
from klamm.protocol.wire import BytesLike, Message

WHOLE_BYTES: Final = 16 * 1024
"""Larger requests are decoded in slices."""
_SHORTEST_SLICE: Final = 1e-9
Steps = Generator[None, None, None]
"""Work in slices: each step takes at most a few milliseconds."""


class Request(RequestContext):
    """A request with its place in the network layer: connection, frame, response bytes and time stamps in seconds."""

    __slots__ = (
        "api",
        "connection",
        "dequeued_at",
        "frame",
        "held",
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
        "slice_at",
        "sliced_seconds",
        "split_name",
        "turn_at",
    )

    slice_at: float
    """When the current slice began, if there was an earlier one."""

    def __init__(
        self,
        connection: Responder,
        api: ApiTableEntry,
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
        self.closes_connection = self.sends_at_once = False
        self.connection = connection
        self.api = api
        self.frame: Frame = frame
        """Header and body until a handler decodes them, then empty."""
        self.size_bytes = self.pooled_bytes = len(frame)
        """`pooled_bytes`: the share of the memory pool that the frame holds until it is decoded."""
        self.held: Held | None = None
        """The lists of a large request and of its response, which are freed in steps after the request's end."""
        self.received_at = self.dequeued_at = self.local_done_at = self.remote_done_at = self.turn_at = received_at
        """`turn_at`: this response and all earlier ones of the connection were complete."""
        self.sliced_seconds = 0.0
        """The handler's time in earlier slices; 0 for a request that takes one."""
        self.is_complete = False
        self.is_dropped = False
        """An earlier request of the connection was malformed: this one is not handled."""
        self.response_parts: list[BytesLike] | None = None
        self.response_size_bytes = 0
        self.reserved_bytes = 0
        self.split_name: str | None = None
        self.trace = None

    @property
    def handler_seconds(self) -> float:
        """How long the handler has held the loop. A wait for something else does not count."""
        if self.sliced_seconds:
            return self.sliced_seconds + self.local_done_at - self.slice_at
        return self.local_done_at - self.dequeued_at

    @property
    def api_name(self) -> str:
        return self.api.name

    def note_first_slice(self, seconds: float) -> None:
        """Note that the request takes further slices, and for how long the handler has held the loop until now."""
        if not self.sliced_seconds:
            self.sliced_seconds = max(seconds, _SHORTEST_SLICE)

    @property
    def is_decoded(self) -> bool:
        """Whether the frame has been decoded, or dropped."""
        return not self.pooled_bytes

    @property
    def may_be_given_up(self) -> bool:
        """Whether its steps can be ended in the middle, because they have not made much that is freed at once then."""
        if self.is_decoded:
            return self.size_bytes <= WHOLE_BYTES and self.held is None and not self.is_complete
        return True

    @property
    def is_abandoned(self) -> bool:
        """Whether handling the request is useless: its connection has ended, and it changes nothing."""
        return self.is_dropped or (self.api.is_read and self.connection.has_ended())

    def has_ended(self) -> bool:
        return self.connection.has_ended()

    def response_room(self) -> int:
        return self.connection.response_room()

    def hold(self, *collections: Collection[Any]) -> None:
        for collection in collections:
            if self.held is None and len(collection) > CHUNK:
                self.held = []
            if self.held is not None:
                self.held[:0] = rows_of(collection)  # It may refer to arrays of the request, which come later.

    def take_all_steps(self) -> None:
        self.held = [] if self.held is None else self.held

    def free_in_steps(self, steps: Steps) -> None:
        self.held = [] if self.held is None else self.held
        self.held.insert(0, steps)

    def hold_frame(self, frame: Frame) -> None:
        """Free the pages of a very large frame in steps, after the parts of the message that refer to them."""
        if isinstance(frame, mmap):
            self.held = [] if self.held is None else self.held
            self.held.append(frame)

    def freed(self) -> Steps:
        held, self.held = self.held, None
        if held is not None:
            yield from release(held)

    def reserve_response(self, size_bytes: int) -> None:
        self.reserved_bytes += size_bytes
        self.connection.reserve_response(size_bytes)


class Responder(Protocol):
    """The connection of a request, as handlers use it.

    Each request ends with one call of `complete`, `complete_with_close`, `refuse` or `drop`.
    """

    context: ChannelContext
    decoder: RequestDecoder
    is_closed: bool
    paused: int
    """The reasons not to read the connection, see `muting`."""

    def complete(self, request: Request, response: Message | None) -> Steps | None:
        """End a request with its response, or without one. Return the remaining steps if encoding takes long.

        Raises ValueError if the response cannot be encoded: a bug in the handler.
        """

    def complete_with_close(self, request: Request) -> None:
        """End a request by closing the connection instead of a response."""

    def refuse(self, request: Request, reason: str) -> None:
        """End a malformed request: earlier requests are answered, later ones dropped, then the connection closes."""

    def drop(self, request: Request) -> None:
        """End a request that was not handled."""

    def begin_slices(self, request: Request) -> None:
        """Hold back the next requests of the connection: this one is worked on in slices."""

    def end_slices(self, request: Request) -> None:
        """Release the next requests of the connection."""

    def has_ended(self) -> bool:
        """Return whether the client has closed the connection, even if the loop has not noticed yet."""

    def response_room(self) -> int:
        """Return how many bytes of records a response may carry now."""

    def reserve_response(self, size_bytes: int) -> None:
        """Count bytes as unsent before the response is complete."""
