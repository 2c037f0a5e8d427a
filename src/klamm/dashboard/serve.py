"""Runs the viewer's web server, in the foreground or in a thread beside other work."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Self

import uvicorn

from klamm.dashboard.web_app import Source, web_app


class _Server(uvicorn.Server):
    """Ends the streams of open pages first: they would last until the time for the shutdown is over."""

    def __init__(self, config: uvicorn.Config, end_streams: Callable[[], None]) -> None:
        super().__init__(config)
        self._end_streams = end_streams

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._end_streams()
        # Questions to a cluster that does not answer are cancelled after a second. This is not an error.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        await super().shutdown(sockets)


class DashboardServer:
    """Listens from its creation on, so that its address is known before it runs."""

    def __init__(self, source: Source, host: str = "127.0.0.1", port: int = 0, names: Iterable[str] = ()) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family)
        shown = f"[{host}]" if ":" in host else host
        self.address = f"http://{shown}:{self._socket.getsockname()[1]}/"
        app = web_app(source, (shown, *names))
        config = uvicorn.Config(
            app,
            log_level="error",
            access_log=False,
            lifespan="on",
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        self._server = _Server(config, app.state.end_streams)
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
