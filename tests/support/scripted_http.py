"""ScriptedHttp: a loopback HTTP server whose answers are bytes that the test chooses, also such as no server sends."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Final

SILENCE: Final = b""
"""An answer: accept the request and send nothing until the client closes the connection."""


def response(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


class ScriptedHttp:
    """Answers every request with `answer`. With `drips`, it repeats the last byte until the client closes."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.answer = SILENCE
        self.drips = False
        self.requests: list[bytes] = []
        self._tls = tls
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, name="scripted-http")
        self._thread.start()

    @property
    def url(self) -> str:
        scheme, host = ("https", "localhost") if self._tls is not None else ("http", "127.0.0.1")
        return f"{scheme}://{host}:{self._socket.getsockname()[1]}/path"

    def close(self) -> None:
        if self._thread.is_alive():
            self._socket.shutdown(socket.SHUT_RDWR)
            self._thread.join()
            self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), client, self._stream(client) as stream:  # the client may leave
                self._answer(stream)

    def _stream(self, client: socket.socket) -> socket.socket:
        return client if self._tls is None else self._tls.wrap_socket(client, server_side=True)

    def _answer(self, stream: socket.socket) -> None:
        request = bytearray()
        while b"\r\n\r\n" not in request or len(request) < _expected(request):
            if not (received := stream.recv(65536)):
                return
            request += received
        answer, drips = self.answer, self.drips
        self.requests.append(bytes(request))
        stream.sendall(answer)
        if drips:
            left = threading.Event()
            while not left.wait(0.002):
                stream.sendall(answer[-1:])
        if not answer:
            stream.recv(1)


def _expected(request: bytearray) -> int:
    head, _, _ = bytes(request).partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return len(head) + 4 + (int(lengths[0]) if lengths else 0)


@contextlib.contextmanager
def scripted_http(tls: ssl.SSLContext | None = None) -> Iterator[ScriptedHttp]:
    server = ScriptedHttp(tls)
    try:
        yield server
    finally:
        server.close()
