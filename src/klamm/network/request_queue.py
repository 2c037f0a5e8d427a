"""RequestQueue: bounded, and fair between connections.

Each connection has one lane per plane. Handlers take one request of a lane, then one of the next lane: a client that
pipelines delays a newcomer by one request, however many it has queued. Requests of one lane are handled in their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from klamm.network.request import Request


class Lane(deque[Request]):
    """The queued requests of one connection on one plane.

    The last one may be parked: it found the queue full, so its connection is not read until there is room. It still
    gets its turn.
    """

    __slots__ = ("busy", "is_blocked", "is_held", "is_listed", "is_parked", "on_room", "queue")

    def __init__(self, queue: RequestQueue, on_room: Callable[[], None]) -> None:
        super().__init__()
        self.queue = queue
        self.on_room = on_room
        """Called when the parked request is queued: the connection may be read again."""
        self.busy = 0
        """Requests of this lane that are being worked on in slices; the next one waits for them."""
        self.is_blocked = False
        """The client does not read its responses. Set by the connection."""
        self.is_listed = False
        self.is_parked = False
        self.is_held = False
        """The lane was blocked at its turn; its requests do not count until it is listed again."""

    def begin_slices(self) -> None:
        """Work on a request of this lane in slices from now on."""
        self.busy += 1

    def end_slices(self) -> bool:
        """End the work on one request in slices. Return whether a request that has waited for it may have its turn."""
        self.busy -= 1
        return bool(self) and not self.busy

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return self is other


class RequestQueue:
    """The lanes of one plane, in the order of their turns, and the lanes with a parked request."""

    __slots__ = ("_turns", "highest", "limit", "size", "waiting")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.highest = 0
        """The largest size since this was set to 0."""
        self.size = 0
        """Requests that wait for a handler, without parked and held ones."""
        self.waiting: dict[Lane, None] = {}
        self._turns: deque[Lane] = deque()

    def __bool__(self) -> bool:
        """Whether a handler may find a request."""
        return bool(self._turns)

    def offer(self, lane: Lane, request: Request) -> bool:
        """Queue a request. Return False if it is parked: the queue is full, or others already wait for room."""
        has_room = self.size < self.limit and not self.waiting
        if has_room:
            self.size = size = self.size + 1
            if size > self.highest:
                self.highest = size
        else:
            lane.is_parked = True
            self.waiting[lane] = None
        lane.append(request)
        if not lane.is_listed and not lane.busy:
            lane.is_listed = True
            self._turns.append(lane)
        return has_room

    def take(self) -> Request | None:
        """Return the next request, or None if no lane has one that may be handled now."""
        turns = self._turns
        while turns:
            lane = turns.popleft()
            if lane.busy or not lane:
                lane.is_listed = False
            elif lane.is_blocked:
                self._hold(lane)
            elif len(lane) > 1:
                turns.append(lane)
                self.size -= 1
                return lane.popleft()
            else:
                return self._take_last(lane)
        return None

    def _take_last(self, lane: Lane) -> Request:
        request = lane.popleft()
        lane.is_listed = False
        if lane.is_parked:
            self._admit(lane)
        else:
            self.size -= 1
        return request

    def take_all(self, api_key: int) -> list[Request]:
        """Return the requests of one API that no other request of their connection precedes."""
        taken = []
        for _ in range(len(self._turns)):
            lane = self._turns.popleft()
            while len(lane) > 1 and lane[0].api.key == api_key:
                self.size -= 1
                taken.append(lane.popleft())
            if lane and lane[0].api.key == api_key:
                taken.append(self._take_last(lane))
            else:
                self._turns.append(lane)
        return taken

    def list_again(self, lane: Lane) -> None:
        """Give a lane turns again that is no longer busy or blocked."""
        if lane.is_held:
            lane.is_held = False
            self.size += len(lane) - lane.is_parked
            self.highest = max(self.highest, self.size)
        if lane and not lane.is_listed and not lane.busy:
            lane.is_listed = True
            self._turns.append(lane)

    def _hold(self, lane: Lane) -> None:
        lane.is_listed = False
        if not lane.is_held:
            lane.is_held = True
            self.size -= len(lane) - lane.is_parked

    def admit_waiting(self) -> None:
        """Queue parked requests while there is room, longest wait first; their connections are read again."""
        while self.waiting and self.size < self.limit:
            lane = next(iter(self.waiting))
            self.size += not lane.is_held
            self._admit(lane)

    def _admit(self, lane: Lane) -> None:
        lane.is_parked = False
        del self.waiting[lane]
        lane.on_room()
