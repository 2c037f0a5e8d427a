"""ConnectionEnvironment: the objects that the connections of one listener share, and what they read and wrote."""

from __future__ import annotations

import asyncio

from klamm.clock import Clock
from klamm.metrics import BusyRatio
from klamm.model import ConnectionOrder
from klamm.network.api_table import ApiTable
from klamm.network.request_channel import RequestChannel
from klamm.network.request_recorder import RequestRecorder
from klamm.security.listener_security import ListenerSecurity


class ConnectionOrders:
    """Numbers the connections of all listeners of a process in the order of their acceptance: 1, 2, 3, ..."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last: ConnectionOrder = 0

    def take(self) -> ConnectionOrder:
        self.last += 1
        return self.last


class Traffic:
    """Bytes read and written by the connections of one listener, and their busy time. Only connections write it."""

    __slots__ = ("idle", "incoming_bytes", "outgoing_bytes")

    def __init__(self, clock: Clock) -> None:
        self.idle = BusyRatio(clock)
        self.incoming_bytes = 0
        self.outgoing_bytes = 0


class ConnectionEnvironment:
    """The objects that the connections of one listener share."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        channel: RequestChannel,
        apis: ApiTable,
        *,
        scratch: bytearray,
        max_request_bytes: int,
        is_control_plane: bool,
        orders: ConnectionOrders,
    ) -> None:
        self.loop = loop
        self.clock = clock
        self.channel = channel
        self.apis = apis
        self.scratch = scratch
        self.max_request_bytes = max_request_bytes
        self.is_control_plane = is_control_plane
        self.orders = orders
        self.recorder = RequestRecorder(apis)
        self.traffic = Traffic(clock)
        self.security = ListenerSecurity()
        """How peers prove who they are; the owner of the listener sets it before the first connection."""
