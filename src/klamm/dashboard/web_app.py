"""The web application of the viewer: its files, the records of the control plane, and the state of the cluster."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from klamm import __version__
from klamm.client.connection_pool import ClientConfig
from klamm.dashboard.change_guard import ChangeGuard
from klamm.dashboard.client_threads import ClientThreads
from klamm.dashboard.cluster_routes import ClusterRoutes, Pipelines
from klamm.dashboard.control_tail import ControlTail
from klamm.dashboard.drill_routes import drill_routes
from klamm.dashboard.fault_drill import FaultDrill
from klamm.dashboard.guard import Guard
from klamm.dashboard.record_history import MAX_RECORDS, RecordHistory

STATIC: Final = Path(__file__).parent / "static"
_CHUNK: Final = 1_000
_KEEP_ALIVE_S: Final = 15.0

Status = Callable[[], Mapping[str, Any] | None]
"""Returns the state of the cluster; None if no broker answers. It blocks."""


@dataclass(frozen=True, slots=True)
class Source:
    """The subject of the viewer: a live cluster, or the records of a run that has ended."""

    title: str
    records: tuple[bytes, ...] = ()
    end_ms: int | None = None
    client: ClientConfig | None = None
    """How to reach the brokers of a live cluster."""
    status: Status | None = None
    pipelines: Pipelines | None = None
    allows_changes: bool = False
    """Whether the page may produce records and reset groups."""
    drill: FaultDrill | None = None
    """The faults of a cluster that this process owns."""
    traces: Status | None = None
    """Returns the slowest traced requests. It blocks."""
    most_records: int = MAX_RECORDS
    """Records of a live cluster that the server and the page keep. Those of a recorded run are all kept."""

    @property
    def is_live(self) -> bool:
        return self.status is not None


class _Viewer:
    def __init__(self, source: Source) -> None:
        self._source = source
        self.history = RecordHistory(max(source.most_records, len(source.records)))
        self.tail = None if source.client is None else ControlTail(source.client, self.history)
        self.changes = ChangeGuard(
            allows_changes=source.allows_changes and source.client is not None, has_drill=source.drill is not None
        )
        self.threads = None if source.client is None else ClientThreads(source.client)
        self._is_ending = False
        self._asking: asyncio.Future[Mapping[str, Any] | None] | None = None
        self._tracing: asyncio.Future[Mapping[str, Any] | None] | None = None

    async def index(self, request: Request) -> Response:
        return FileResponse(STATIC / "index.html", media_type="text/html")

    async def about(self, request: Request) -> Response:
        source = self._source
        about = {
            "title": source.title,
            "is_live": source.is_live,
            "end_ms": source.end_ms,
            "most_records": source.most_records,
            "version": __version__,
            "allows_changes": self.changes.allows_changes,
            "token": self.changes.token,
            "has_drill": source.drill is not None,
        }
        return JSONResponse(about)

    def routes(self) -> list[Route]:
        """The routes of a live cluster's own pages; none for a recorded run."""
        if self.threads is None:
            return []
        own = ClusterRoutes(self.threads, self.changes, self._source.pipelines).routes()
        return own if self._source.drill is None else [*own, *drill_routes(self._source.drill, self.changes)]

    def end_streams(self) -> None:
        """End the streams of records: open pages connect again when there is a server again."""
        self._is_ending = True
        self.history.wake()

    def close(self) -> None:
        if self.tail is not None:
            self.tail.close()
        if self.threads is not None:
            self.threads.close()

    async def records(self, request: Request) -> Response:
        """Server-sent events: the records so far, in chunks, and then those that arrive."""
        if self.tail is not None:
            self.tail.start()
        return StreamingResponse(self._stream(_position(request)), media_type="text/event-stream")

    async def _stream(self, position: int) -> AsyncIterator[bytes]:
        while not self._is_ending:
            found, position = self.history.after(position, _CHUNK)
            if found:
                yield b"id: %d\ndata: [%s]\n\n" % (position, b",".join(found))
                await asyncio.sleep(0)
                continue
            problem = None if self.tail is None else self.tail.problem
            yield b"event: state\ndata: %s\n\n" % json.dumps({"problem": problem, "count": position}).encode()
            await self.history.wait(position, _KEEP_ALIVE_S)

    async def status(self, request: Request) -> Response:
        """One question at a time, whatever the number of readers."""
        if self._source.status is None:
            return JSONResponse({"problem": "this is a recorded run"}, 404)
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(asyncio.to_thread(self._source.status))
        found = await asyncio.shield(self._asking)
        return JSONResponse({"problem": "no broker answers"} if found is None else dict(found))

    async def traces(self, request: Request) -> Response:
        if self._source.traces is None:
            return JSONResponse({"traces": [], "problem": "this is a recorded run"}, 404)
        if self._tracing is None or self._tracing.done():
            self._tracing = asyncio.ensure_future(asyncio.to_thread(self._source.traces))
        found = await asyncio.shield(self._tracing)
        return JSONResponse({} if found is None else dict(found))


def _position(request: Request) -> int:
    text = request.headers.get("last-event-id") or request.query_params.get("after") or "0"
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else 0


def web_app(source: Source, names: Iterable[str] = ()) -> Starlette:
    viewer = _Viewer(source)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        viewer.history.add(list(source.records))
        yield
        viewer.close()

    app = Starlette(
        routes=[
            Route("/", viewer.index),
            Route("/api/about", viewer.about),
            Route("/api/records", viewer.records),
            Route("/api/status", viewer.status),
            *viewer.routes(),
            Route("/api/traces", viewer.traces),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[Middleware(Guard, names=tuple(names))],
        lifespan=lifespan,
    )
    app.state.end_streams = viewer.end_streams
    return app
