"""Attacks on the metrics endpoint before any password: a scraper is answered, and silent connections end."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from klamm.metrics import MetricsRegistry, MetricsServer, http, http_places
from klamm.metrics.http import REQUEST_TIMEOUT_S, HttpConnection
from klamm.metrics.http_places import Places
from klamm.security.certificates.certificate_store import CertificateStore
from klamm.security.failure_budget import BURST, PER_SECOND
from klamm.security.failure_log import SAME_LINES, FailureLog
from klamm.server.metrics_logins import MetricsLogins
from tests.support.one_broker import ManualClock
from tests.unit.network.harness import both_loops
from tests.unit.test_metrics import RecordingTransport, StoppedTime

Run = Callable[[Any], None]
LOGIN = "eva:s3cret"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> CertificateStore:
    made = CertificateStore.create(tmp_path_factory.mktemp("certificates"), 1)
    made.issue_broker("broker", (), 1)
    return made


def contexts(store: CertificateStore, has_tls: bool) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    """Of the server, and of its client."""
    if not has_tls:
        return None, None
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(store.keystore_path("broker"))
    return served, ssl.create_default_context(cafile=store.ca_path)


def request_of(login: str | None) -> bytes:
    credential = "" if login is None else f"Authorization: Basic {b64encode(login.encode()).decode()}\r\n"
    return f"GET /metrics HTTP/1.1\r\n{credential}\r\n".encode()


async def scrape(port: int, tls: ssl.SSLContext | None, login: str = LOGIN) -> bytes:
    name = None if tls is None else "localhost"
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=name)
    writer.write(request_of(login))
    answer = await reader.read()
    writer.close()
    return answer[:12]


async def silent(port: int, count: int, number: int = 1) -> list[socket.socket]:
    """Connect from an address of this machine."""
    clients = []
    for _ in range(count):
        client = socket.socket()
        client.setblocking(False)
        client.bind((f"127.0.0.{number}", 0))
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
        clients.append(client)
    return clients


async def are_closed(clients: list[socket.socket]) -> None:
    for client in clients:
        with suppress(ConnectionResetError):
            assert await asyncio.get_running_loop().sock_recv(client, 1) == b""


def close(clients: list[socket.socket]) -> None:
    for client in clients:
        client.close()


@pytest.mark.parametrize("has_tls", [False, True], ids=["plain", "TLS"])
@both_loops
def test_silent_connections_keep_no_scraper_out(
    run: Run, store: CertificateStore, has_tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one address, and of many; the oldest ones make room. A handshake that does not begin is silent too."""
    monkeypatch.setattr(http, "REQUEST_TIMEOUT_S", 3_600)  # Only others end a connection.
    served, trusting = contexts(store, has_tls)

    async def scenario() -> None:
        server = MetricsServer(MetricsRegistry(ManualClock()), "127.0.0.1", 0, tls=served, login=LOGIN)
        await server.start()
        first = await silent(server.port, 40)
        assert await scrape(server.port, trusting) == b"HTTP/1.1 200"
        await are_closed(first[:24])
        assert len(server.places.connections) <= 16
        many = [client for number in range(2, 12) for client in await silent(server.port, 16, number)]
        assert await scrape(server.port, trusting) == b"HTTP/1.1 200"
        assert len(many) == 160 and len(server.places.connections) <= http_places.MAX_CONNECTIONS
        await server.stop()
        await are_closed(first + many)
        close(first + many)

    run(scenario())


@pytest.mark.parametrize("has_tls", [False, True], ids=["plain", "TLS"])
@both_loops
def test_silent_connections_end(
    run: Run, store: CertificateStore, has_tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit begins when the connection is accepted, so it includes the TLS handshake."""
    assert REQUEST_TIMEOUT_S == 10
    monkeypatch.setattr(http, "REQUEST_TIMEOUT_S", 0.2)
    served, _ = contexts(store, has_tls)

    async def scenario() -> None:
        server = MetricsServer(MetricsRegistry(ManualClock()), "127.0.0.1", 0, tls=served, login=LOGIN)
        await server.start()
        clients = await silent(server.port, 10)
        await are_closed(clients)
        close(clients)
        await server.stop()
        assert not server.places.connections

    run(scenario())


class Asking:
    """A connection as `Places` sees it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.is_admitted = self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


def test_requests_that_are_answered_are_not_replaced() -> None:
    places = Places(16)
    scrapers = [Asking("a") for _ in range(4)]
    assert all(map(places.take, scrapers))
    for scraper in scrapers[1:]:
        scraper.is_admitted = True
    assert places.take(Asking("a"))
    assert [scraper.is_aborted for scraper in scrapers] == [True, False, False, False]
    for each in places.connections:
        each.is_admitted = True
    assert not places.take(Asking("a"))
    others = [Asking(address) for address in "bbbbccccdddd"]
    assert all(map(places.take, others)) and len(places.connections) == 16
    assert places.take(Asking("e")), "the oldest of an address with four makes room"
    assert [other.is_aborted for other in others] == [True] + [False] * 11
    assert places.take(Asking("f")) and others[4].is_aborted and not others[1].is_aborted


async def settled() -> None:
    """Return after what is ready has been done: the time of these tests stands still."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_wrong_passwords_are_delayed_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """As on the listeners: a guesser of many passwords waits for its turn, whatever the password is."""
    caplog.set_level(logging.INFO)
    loop = StoppedTime()

    async def scenario() -> None:
        logins = MetricsLogins(FailureLog(), 0.1, loop.time)
        server = MetricsServer(MetricsRegistry(ManualClock()), "127.0.0.1", 0, login=LOGIN, logins=logins)

        async def ask(login: str | None, address: str = "10.0.0.1") -> RecordingTransport:
            connection, transport = HttpConnection(loop, server, address), RecordingTransport()
            connection.connection_made(transport)
            connection.data_received(request_of(login))
            await settled()
            return transport

        assert (await ask(None)).written[0].startswith(b"HTTP/1.1 401"), "a client that knows no password yet"
        guesses = [await ask("eva:wrong") for _ in range(BURST)]
        assert not any(guess.written for guess in guesses), "the answer comes after a delay"
        right = await ask(LOGIN)
        other = await ask(LOGIN, "10.0.0.2")
        assert other.written[0].startswith(b"HTTP/1.1 200") and not right.written
        loop.now_s += max(0.1, 1 / PER_SECOND) + 0.01
        await settled()
        assert all(guess.written[0].startswith(b"HTTP/1.1 401") for guess in guesses)
        assert right.written[0].startswith(b"HTTP/1.1 200")

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(scenario())
    assert caplog.text.count("the user or the password is wrong") == SAME_LINES
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize("arrives_s", [0.0, REQUEST_TIMEOUT_S - 0.05], ids=["at once", "late"])
def test_a_scraper_behind_the_address_of_guessers_has_its_turn_before_its_time_ends(arrives_s: float) -> None:
    """Turns were those of the listeners, up to 15 s away, and the endpoint closes a connection after 10 s."""
    loop = StoppedTime()

    async def scenario() -> None:
        logins = MetricsLogins(FailureLog(), 0.1, loop.time)
        server = MetricsServer(MetricsRegistry(ManualClock()), "127.0.0.1", 0, login=LOGIN, logins=logins)
        scrapers = [RecordingTransport() for _ in range(100)]
        connections = [HttpConnection(loop, server, "10.0.0.1") for _ in scrapers]
        loop.now_s += arrives_s
        for _ in range(1_000):
            logins.on_failure("10.0.0.1")
        assert logins.turn_wait_s("10.0.0.1") > 0
        for connection, transport in zip(connections, scrapers, strict=True):
            connection.connection_made(transport)
            connection.data_received(request_of(LOGIN))
        await settled()
        assert not any(scraper.written for scraper in scrapers)
        for _ in range(int(10 * REQUEST_TIMEOUT_S)):
            loop.now_s += 0.1
            await settled()
        assert not any(scraper.is_aborted for scraper in scrapers)
        assert all(scraper.written[0].startswith(b"HTTP/1.1 200") for scraper in scrapers)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(scenario())
