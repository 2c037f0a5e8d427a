"""read_document: one small document by HTTP, within a time and a size. Slow to import, so import it at first use."""

from __future__ import annotations

import io
import socket
import time
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    UnknownHandler,
)

from klamm.errors import KlammError
from klamm.security.reading import Reading

if TYPE_CHECKING:
    from collections.abc import Mapping

    from _typeshed import WriteableBuffer


class DocumentError(KlammError):
    """A server gave no document. The text contains nothing that the server sent, and nothing of the request."""


def read_document(
    url: str,
    *,
    timeout_s: float,
    largest: int,
    form: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    reading: Reading | None = None,
) -> bytes:
    """Return the body of a GET, or of a POST if there is a form. Raises DocumentError.

    Connecting and the whole response have `timeout_s` each, so a server that sends a byte now and then does not keep
    the thread. A POST does not follow redirects: its headers and its form may be secrets that belong to one server. A
    GET by HTTPS does not follow those to HTTP: nobody proves whose document that is.
    """
    reading = reading or Reading()
    opener = OpenerDirector()
    handlers = [ProxyHandler(), _Http(reading), _Https(reading), UnknownHandler()]
    handlers += [HTTPErrorProcessor(), HTTPDefaultErrorHandler()]
    for handler in handlers if form is not None else [*handlers, _Redirects()]:
        opener.add_handler(handler)
    try:
        with reading, opener.open(Request(url, form, dict(headers or {})), timeout=timeout_s) as answer:
            document: bytes = answer.read(largest + 1)
            expected = answer.length
    except HTTPError as error:
        error.close()
        raise DocumentError(f"the server answered with status {error.code}") from None
    except (OSError, HTTPException, ValueError) as error:
        raise DocumentError(_reason(error)) from None
    if len(document) > largest:
        raise DocumentError(f"the document is larger than {largest} bytes")
    if expected:
        raise DocumentError("the connection ended within the document")
    return document


def _reason(error: Exception) -> str:
    cause = error.reason if isinstance(error, URLError) else error
    if isinstance(cause, TimeoutError):
        return "no complete response in time"
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return f"the response is not usable ({type(cause).__name__})"


class _Response(HTTPResponse):
    """A response with one deadline for all of its bytes. The timeout of a socket counts again for each receive."""

    def __init__(self, sock: socket.socket, *arguments: Any, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        self.fp.close()
        self.fp = io.BufferedReader(_Incoming(sock))


class _Incoming(io.RawIOBase):
    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._raw = sock.makefile("rb", buffering=0)  # keeps the socket open after its owner has closed it
        self._deadline_s = time.monotonic() + (sock.gettimeout() or 0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._socket.settimeout(left_s)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


class _Redirects(HTTPRedirectHandler):
    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Request | None:
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        is_weaker = following is not None and req.type == "https" and following.type != "https"
        return None if is_weaker else following


class _Connection(HTTPConnection):
    response_class = _Response

    def __init__(self, reading: Reading, host: str, **options: Any) -> None:
        super().__init__(host, **options)
        self._create_connection = reading.connect


class _TlsConnection(HTTPSConnection):
    response_class = _Response

    def __init__(self, reading: Reading, host: str, **options: Any) -> None:
        super().__init__(host, **options)
        self._create_connection = reading.connect


class _Http(HTTPHandler):
    def __init__(self, reading: Reading) -> None:
        super().__init__()
        self._reading = reading

    def http_open(self, req: Request) -> HTTPResponse:
        return self.do_open(partial(_Connection, self._reading), req)


class _Https(HTTPSHandler):
    def __init__(self, reading: Reading) -> None:
        super().__init__()
        self._reading = reading

    def https_open(self, req: Request) -> HTTPResponse:
        return self.do_open(partial(_TlsConnection, self._reading), req)
