"""The four-letter words that monitoring tools send to a ZooKeeper before any handshake."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from klamm import __version__
from klamm.zk.model.tree import ZnodeTree
from klamm.zk.server.server_connection import Connection

COMPATIBLE_VERSION = "3.9.5"


class Status(Protocol):
    """The numbers of a server that these commands report."""

    @property
    def received(self) -> int: ...
    @property
    def sent(self) -> int: ...
    @property
    def outstanding(self) -> int: ...
    @property
    def connections(self) -> Mapping[int, Connection]: ...
    @property
    def tree(self) -> ZnodeTree: ...


def four_letter_words(server: Status) -> dict[bytes, Callable[[], bytes]]:
    return {
        b"ruok": lambda: b"imok",
        b"isro": lambda: b"rw",
        b"srvr": lambda: _srvr(server).encode(),
        b"stat": lambda: (_stat_clients(server) + _srvr(server)).encode(),
        b"mntr": lambda: _mntr(server).encode(),
        b"envi": lambda: f"Environment:\nzookeeper.version={COMPATIBLE_VERSION}-klamm-{__version__}\n".encode(),
    }


def _srvr(server: Status) -> str:
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


def _stat_clients(server: Status) -> str:
    lines = [f" /{c.host}(session={c.session_id or 0:#x})\n" for c in server.connections.values()]
    return "Clients:\n" + "".join(lines) + "\n"


def _mntr(server: Status) -> str:
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
