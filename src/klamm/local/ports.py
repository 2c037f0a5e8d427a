"""Ports that are reserved before a process listens on them.

A socket that is bound but does not listen keeps its port: the system assigns it to no other socket, neither one that
asks for any port nor to an outgoing connection. A server that binds exactly this port with SO_REUSEADDR may still have
it. So all addresses of a cluster are known before its first process starts, and a killed broker finds its port free.
"""

from __future__ import annotations

import socket
from types import TracebackType

LOOPBACK = "127.0.0.1"


class ReservedPort:
    def __init__(self, port: int = 0, host: str = LOOPBACK) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, port))
        except OSError:
            self._socket.close()
            raise
        self.host = host
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> ReservedPort:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
