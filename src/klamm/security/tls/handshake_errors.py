"""Keeps TLS handshakes that a peer breaks off out of the log of errors.

aiofastnet 1.2 reports a peer that hangs up in its handshake to the loop's exception handler, and passes a class where
an exception belongs, which the logging module cannot print. The caller of the handshake receives the error in any case.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)

Handler = Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object]


class HandshakeErrors:
    """An exception handler of a loop that passes everything else to the handler before it."""

    def __init__(self, next_handler: Handler | None) -> None:
        self._next = next_handler

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, type):
            error = context["exception"] = error()
        if isinstance(error, OSError) and "handshake" in str(context.get("message")):
            log.debug("A TLS handshake failed: %s", type(error).__name__)
        elif self._next is not None:
            self._next(loop, context)
        else:
            loop.default_exception_handler(context)


def hide_handshake_errors(loop: asyncio.AbstractEventLoop) -> None:
    """Install the handler once per loop."""
    present = loop.get_exception_handler()
    if not isinstance(present, HandshakeErrors):
        loop.set_exception_handler(HandshakeErrors(present))
