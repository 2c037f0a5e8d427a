"""Ports that belong to other programs: commands fail with a sentence, at once if an answer proves it."""

from __future__ import annotations

import contextlib
import io
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from klamm.cli import client
from klamm.cli.client import admin_client, unreachable
from klamm.cli.cluster import ask_metadata
from klamm.cli.output import Failure
from klamm.client.patience import Patience
from klamm.errors import KlammError
from tests.support.certificates import Authority

LONG = Patience(600_000, request_ms=600_000)
"""Longer than any test may take: a command that waits for silence fails the test by its time limit."""


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QUICK_ANSWER", "EXAMINATION"):
        monkeypatch.setattr(client, name, LONG)


@contextmanager
def serving(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """Call `serve` with each connection, in a thread; yield the address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held: list[socket.socket] = []

        def run(connection: socket.socket) -> None:
            with contextlib.suppress(OSError):
                serve(connection)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    held.append(server.accept()[0])
                    threading.Thread(target=run, args=(held[-1],), daemon=True).start()

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in held:
                connection.close()


@contextmanager
def web_server() -> Iterator[str]:
    """It reads a line before it answers."""

    class Quiet(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def http_and_hold(connection: socket.socket) -> None:
    """A proxy that answers the end of a request and keeps the connection."""
    received = b""
    while b"\r\n\r\n" not in received:
        if not (more := connection.recv(1000)):
            return
        received += more
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
    connection.recv(1)


def greet(connection: socket.socket) -> None:
    connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
    connection.recv(1)


def rejected(servers: str) -> tuple[str, str]:
    """Return the sentences of a command that uses librdkafka, and of one that asks the broker itself."""
    with pytest.raises(Failure) as first:
        admin_client(servers)
    with pytest.raises(KlammError) as second:
        host, port = servers.split(":")
        ask_metadata((host, int(port)), LONG.request_s)
    return str(first.value), str(second.value)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    ("server", "begin"),
    [(web_server, "<!DOCTYP"), (lambda: serving(http_and_hold), "HTTP/1.1"), (lambda: serving(greet), "SSH-2.0-")],
)
def test_an_answer_proves_it_at_once(server: Callable[[], contextlib.AbstractContextManager[str]], begin: str) -> None:
    with server() as servers:
        for sentence in rejected(servers):
            assert sentence.startswith(f"{servers} does not speak Kafka's protocol: its answer begins with ")
            assert begin in sentence
        assert unreachable(servers).endswith("Compare the port with the broker's listeners.")


@pytest.mark.usefixtures("patient")
def test_another_protocol_in_tls(tmp_path: Path) -> None:
    path = tmp_path / "server.pem"
    path.write_bytes(Authority().issue().pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)

    def serve(connection: socket.socket) -> None:
        with connection, context.wrap_socket(connection, server_side=True) as encrypted:
            http_and_hold(encrypted)

    with serving(serve) as servers, pytest.raises(Failure, match=r"does not speak Kafka's protocol: .*HTTP/1\.1"):
        admin_client(servers)


def test_silence_in_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "server.pem"
    path.write_bytes(Authority().issue().pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)

    def serve(connection: socket.socket) -> None:
        with connection, context.wrap_socket(connection, server_side=True) as encrypted:
            while encrypted.recv(1000):
                pass

    with serving(serve) as servers:
        for seconds in (0.05, 0.5, 5.0, 50.0):  # as long as this machine needs for a handshake
            monkeypatch.setattr(client, "EXAMINATION", Patience(int(1000 * seconds), request_ms=int(1000 * seconds)))
            if "TLS" in (reported := unreachable(servers)):
                break
        assert reported.startswith(f"{servers} speaks TLS, and no broker answers within it. ")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_silent_port_is_named_while_the_command_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    short = Patience(20, request_ms=20)
    for name in ("QUICK_ANSWER", "EXAMINATION"):
        monkeypatch.setattr(client, name, short)
    terminal, pipe = Terminal(), io.StringIO()
    with socket.create_server(("127.0.0.1", 0)) as server:
        servers = f"127.0.0.1:{server.getsockname()[1]}"
        for stream in (terminal, pipe):
            monkeypatch.setattr("sys.stderr", stream)
            reported = unreachable(servers)
            assert f"No broker answers at {servers}. The port accepts connections" in reported
    assert f"Waiting for {servers}, which accepts connections and does not answer" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K"), "the line is erased"
    assert pipe.getvalue() == ""
