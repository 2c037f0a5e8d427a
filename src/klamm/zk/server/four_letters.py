"""The four-letter words that tools send to a ZooKeeper before any handshake, to see how it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from klamm import __version__

if TYPE_CHECKING:
    from klamm.zk.server.server import EmbeddedZooKeeper

COMPATIBLE_VERSION = "3.9.5"


def four_letter_words(server: EmbeddedZooKeeper) -> dict[bytes, Callable[[], bytes]]:
    return {
        b"ruok": lambda: b"imok",
        b"isro": lambda: b"rw",
        b"srvr": lambda: _srvr(server).encode(),
        b"stat": lambda: (_stat_clients(server) + _srvr(server)).encode(),
        b"mntr": lambda: _mntr(server).encode(),
        b"envi": lambda: f"Environment:\nzookeeper.version={COMPATIBLE_VERSION}-klamm-{__version__}\n".encode(),
    }


def _srvr(server: EmbeddedZooKeeper) -> str:
    return (
        f"Zookeeper version: {COMPATIBLE_VERSION}-klamm-{__version__}\n"
        f"Received: {server.received}\n"
        f"Sent: {server.sent}\n"
        f"Connections: {len(server.connections)}\n"
        f"Outstanding: {server.outstanding}\n"
        f"Zxid: {server.tree.last_zxid:#x}\n"
        "Mode: standalone\n"
        f"Node count: {len(server.tree.nodes)}\n"
    )


def _stat_clients(server: EmbeddedZooKeeper) -> str:
    lines = [f" /{c.host}(session={c.session_id or 0:#x})\n" for c in server.connections.values()]
    return "Clients:\n" + "".join(lines) + "\n"


def _mntr(server: EmbeddedZooKeeper) -> str:
    tree = server.tree
    values = {
        "zk_version": f"{COMPATIBLE_VERSION}-klamm-{__version__}",
        "zk_server_state": "standalone",
        "zk_packets_received": server.received,
        "zk_packets_sent": server.sent,
        "zk_num_alive_connections": len(server.connections),
        "zk_outstanding_requests": server.outstanding,
        "zk_znode_count": len(tree.nodes),
        "zk_watch_count": len(tree.watches),
        "zk_ephemerals_count": sum(len(s.ephemerals) for s in tree.sessions.values()),
        "zk_global_sessions": len(tree.sessions),
    }
    return "".join(f"{key}\t{value}\n" for key, value in values.items())
