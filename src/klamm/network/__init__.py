"""The network layer: listeners, request queues, handlers, and outgoing connections. It knows nothing of a broker."""

from __future__ import annotations

from klamm.network.client import BrokerConnection
from klamm.network.connection_quotas import ConnectionLimits
from klamm.network.request import ApiSpec, ChannelContext, Plane, RequestContext
from klamm.network.socket_server import SocketServer, SocketServerConfig

__all__ = [
    "ApiSpec",
    "BrokerConnection",
    "ChannelContext",
    "ConnectionLimits",
    "Plane",
    "RequestContext",
    "SocketServer",
    "SocketServerConfig",
]
