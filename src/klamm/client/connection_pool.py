"""The blocking connections to the brokers of one cluster, by address."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable

from klamm.client.blocking_connection import Address, BlockingConnection
from klamm.client.client_errors import AllRefusedError
from klamm.client.patience import CLUSTER_CALL, Patience
from klamm.lazy_dataclass import lazy_dataclass
from klamm.security.client_security import PLAINTEXT, ClientSecurity

Connect = Callable[["ClientConfig", Address, float], BlockingConnection]


@lazy_dataclass(frozen=True, slots=True)
class ClientConfig:
    """Settings of a ClusterClient. 0 bytes mean that the caller of a fetch decides."""

    bootstrap: tuple[Address, ...]
    client_id: str = "klamm"
    software_name: str = "klamm"
    patience: Patience = CLUSTER_CALL
    receive_buffer_bytes: int | None = None
    fetch_max_bytes: int = 0
    partition_fetch_bytes: int = 0
    fetch_max_wait_ms: int = 500
    fetch_min_bytes: int = 1
    check_crcs: bool = True
    security: ClientSecurity = PLAINTEXT


def connect(config: ClientConfig, address: Address, timeout_ms: float) -> BlockingConnection:
    """Connect to a broker and negotiate versions. Raises OSError."""
    connection = BlockingConnection(
        address,
        client_id=config.client_id,
        timeout_ms=timeout_ms,
        receive_buffer_bytes=config.receive_buffer_bytes,
        security=config.security,
    )
    connection.negotiate(config.software_name)
    return connection


class ConnectionPool:
    """Keeps one connection per address. A connection with a request in flight is replaced, not shared."""

    def __init__(self, config: ClientConfig, connect: Connect = connect) -> None:
        self._config = config
        self._connect = connect
        self._open: dict[Address, BlockingConnection] = {}
        self.was_reached = False
        """Whether any broker has ever answered."""

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()
        self._open.clear()

    def get(self, address: Address, timeout_ms: float) -> BlockingConnection:
        """Return a connection that is free, a new one if necessary. Raises OSError."""
        connection = self._open.get(address)
        if connection is None or connection.is_closed or connection.in_flight:
            if connection is not None:
                connection.close()
            connection = self._open[address] = self._connect(self._config, address, timeout_ms)
            self.was_reached = True
        connection.timeout_ms = timeout_ms
        return connection

    def get_any(self, addresses: Iterable[Address], request_ms: Callable[[], float]) -> BlockingConnection:
        """Return an open connection, otherwise one to the first of the addresses that answers."""
        for connection in self._open.values():
            if not connection.is_closed and connection.in_flight == 0:
                connection.timeout_ms = request_ms()
                return connection
        problems: list[str] = []
        all_refused = True
        for address in dict.fromkeys(addresses):
            try:
                return self.get(address, request_ms())
            except OSError as error:
                problems.append(f"{address[0]}:{address[1]}: {error}")
                all_refused &= isinstance(error, ConnectionRefusedError | socket.gaierror)
        kind = AllRefusedError if all_refused else ConnectionError
        raise kind("no broker answers: " + "; ".join(problems))

    def drop(self, address: Address) -> None:
        if (connection := self._open.pop(address, None)) is not None:
            connection.close()

    def discard_closed(self) -> Iterable[Address]:
        """Forget closed connections; return the addresses that are still connected."""
        self._open = {address: connection for address, connection in self._open.items() if not connection.is_closed}
        return self._open.keys()
