"""Guards requests that change something: they need --allow-changes, the page's token, its origin, and a small body."""

from __future__ import annotations

import json
import secrets
from typing import Any, Final

from starlette.requests import Request

from klamm.errors import KlammError

TOKEN_HEADER: Final = "x-klamm-token"
MAX_BODY_BYTES: Final = 1024 * 1024


class RefusedError(KlammError):
    """The request may not change anything."""


class ChangeGuard:
    """`Guard` has checked Host and Origin. The token shows that the sender could read a page of this server."""

    def __init__(self, *, allows_changes: bool, has_drill: bool = False) -> None:
        self.allows_changes = allows_changes
        self.token = secrets.token_urlsafe(24) if allows_changes or has_drill else ""

    async def body(self, request: Request) -> dict[str, Any]:
        """Return the JSON object of a request that may change something. Raises RefusedError or ValueError."""
        if not self.allows_changes:
            raise RefusedError("The viewer changes nothing. Start it with --allow-changes.")
        self.check(request)
        return await read_object(request)

    def check(self, request: Request) -> None:
        if request.headers.get("origin") is None:
            raise RefusedError("A change needs the Origin of the viewer's page.")
        if not self.token or not secrets.compare_digest(
            request.headers.get(TOKEN_HEADER, "").encode(), self.token.encode()
        ):
            raise RefusedError("A change needs the token of the viewer's page. Load the page again.")


async def read_object(request: Request) -> dict[str, Any]:
    """Read a JSON object of bounded size. Raises ValueError."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise ValueError("The body is not application/json.")
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > MAX_BODY_BYTES:
            raise ValueError(f"The body is longer than {MAX_BODY_BYTES} bytes.")
    found = from_json(bytes(data))
    if not isinstance(found, dict):
        raise ValueError("The body is not a JSON object.")
    return found


def from_json(given: str | bytes) -> Any:
    """Parse what a page sent. Raises ValueError, for text that is nested without end too."""
    try:
        return json.loads(given)
    except RecursionError:
        raise ValueError("the JSON text is nested too deeply.") from None
