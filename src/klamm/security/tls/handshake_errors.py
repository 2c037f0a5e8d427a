"""Explains why TLS handshakes fail, and keeps those that a peer breaks off out of the log of errors.

aiofastnet 1.2 reports a peer that hangs up in its handshake to the loop's exception handler, and passes a class where
an exception belongs, which the logging module cannot print. The caller of the handshake receives the error in any case.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

log = logging.getLogger(__name__)

_NO_TLS: Final = "the peer does not use TLS. Compare its security.protocol with this listener"
_DISTRUST: Final = (
    "the peer refuses the certificate of this broker. Compare its ssl.truststore.location, and the name that it uses, "
    "with the certificate"
)
_EXPLANATIONS: Final = (
    ("WRONG_VERSION_NUMBER", _NO_TLS),
    ("HTTP_REQUEST", _NO_TLS),
    ("PACKET_LENGTH_TOO_LONG", _NO_TLS),
    ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "the peer has no certificate, and ssl.client.auth is required"),
    ("CERTIFICATE_VERIFY_FAILED", "ssl.truststore.location does not accept the peer's certificate"),
    ("ALERT_UNKNOWN_CA", _DISTRUST),
    ("ALERT_BAD_CERTIFICATE", _DISTRUST),
    ("ALERT_CERTIFICATE", _DISTRUST),
    ("NO_SHARED_CIPHER", "the peer has none of the broker's cipher suites. Compare ssl.cipher.suites"),
    ("UNSUPPORTED_PROTOCOL", "the peer has none of the broker's TLS versions. Compare ssl.enabled.protocols"),
    ("ALERT_PROTOCOL_VERSION", "the peer has none of the broker's TLS versions. Compare ssl.enabled.protocols"),
)
_REFUSED_CERTIFICATES: Final = ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "CERTIFICATE_VERIFY_FAILED", "BAD_SIGNATURE")
"""OpenSSL's reasons to refuse a client: it has no certificate, a wrong one, or not the private key of its own."""


def explained(error: OSError) -> str:
    """Return why a handshake failed, in words, followed by OpenSSL's own."""
    text = str(error).strip()
    if not text:
        return "the peer closed the connection"
    meaning = next((meaning for sign, meaning in _EXPLANATIONS if sign in text.upper()), None)
    return text if meaning is None else f"{meaning} ({text})"


def is_failed_authentication(error: OSError) -> bool:
    """Return whether a handshake failed because of the peer's certificate, not of its settings or its network."""
    return getattr(error, "reason", None) in _REFUSED_CERTIFICATES


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
