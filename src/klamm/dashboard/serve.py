"""Runs the viewer's web server, in the foreground or in a thread beside other work."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable
from typing import Self

import uvicorn

from klamm.dashboard.web_app import Source, web_app


class DashboardServer:
    """Listens from its creation on, so that its address is known before it runs."""

    def __init__(self, source: Source, host: str = "127.0.0.1", port: int = 0, names: Iterable[str] = ()) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family)
        shown = f"[{host}]" if ":" in host else host
        self.address = f"http://{shown}:{self._socket.getsockname()[1]}/"
        config = uvicorn.Config(
            web_app(source, (shown, *names)),
            log_level="error",
            access_log=False,
            lifespan="on",
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread: threading.Thread | None = None

    def run(self) -> None:
        """Serve until Ctrl-C or SIGTERM."""
        self._server.run(sockets=[self._socket])

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self.run, name="dashboard", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(timeout=5)
        self._socket.close()
