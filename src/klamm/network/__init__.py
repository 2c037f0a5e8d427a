"""The network layer: listeners, request queues and handlers. It does not depend on a broker."""

from __future__ import annotations

from klamm.network.connection_quotas import ConnectionLimits
from klamm.network.request_context import ApiSpec, ChannelContext, Plane, RequestContext
from klamm.network.socket_server import SocketServer, SocketServerConfig

__all__ = [
    "ApiSpec",
    "ChannelContext",
    "ConnectionLimits",
    "Plane",
    "RequestContext",
    "SocketServer",
    "SocketServerConfig",
]
