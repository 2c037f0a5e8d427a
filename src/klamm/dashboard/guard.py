"""Refuses requests of other web sites: a page in the user's browser must not read the cluster through this server.

A page of another site can send requests to this address, and it can point a host name of its own at it. So the Host
must be one under which the viewer is served, and the Origin, if there is one, must be the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")
_HEADERS: Final = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; "
        b"img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


def host_name(value: str) -> str:
    """Return the name in a Host header, without the port."""
    if value.startswith("["):
        return value.partition("]")[0] + "]"
    return value.partition(":")[0].lower()


class Guard:
    def __init__(self, app: ASGIApp, names: Iterable[str] = ()) -> None:
        self._app = app
        self._names = {*LOCAL_NAMES, *(name.lower() for name in names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        problem = self._problem(Headers(scope=scope), scope["path"])

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *_HEADERS]}
            await send(message)

        if problem is None:
            await self._app(scope, receive, guarded)
        else:
            await PlainTextResponse(problem + "\n", 403)(scope, receive, guarded)

    def _problem(self, headers: Headers, path: str) -> str | None:
        host = headers.get("host", "")
        if host_name(host) not in self._names:
            return f"The viewer is not served under {host!r}. Start it with --allow-host to add a name."
        origin = headers.get("origin")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            return f"Requests from {origin!r} are refused: the viewer answers its own page only."
        follows_link = path == "/" and headers.get("sec-fetch-dest") == "document"
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not follows_link:
            return "Requests from other sites are refused."
        return None
