"""Keys and tokens of OAUTHBEARER by HTTP: rotation, and servers that answer wrongly, slowly or not at all."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey

from klamm.errors import ConfigError
from klamm.security.http_document import DocumentError, read_document
from klamm.security.reading import Reading
from klamm.security.sasl.client_mechanisms import SaslFailure
from klamm.security.sasl.jwt_verifier import JwtVerifier, TokenRules
from klamm.security.sasl.server_mechanisms import SaslMisuse
from klamm.security.sasl.token_source import provider
from klamm.server import sasl_mechanisms
from klamm.server.sasl_mechanisms import KeySource, refresh_keys
from tests.support.certificates import write_tls_files
from tests.support.scripted_http import SILENCE, ScriptedHttp, response, scripted_http

FIRST, SECOND = (ECKey.generate_key("P-256", {"kid": name}, private=True) for name in ("first", "second"))
OPTIONS = {"clientId": "carol", "clientSecret": "carol-secret", "scope": "kafka"}
LARGEST = 1 << 20
DEEP = b"[" * 200_000
UNUSABLE = {
    "garbage": b"\x15\x03\x03\x00\x02\x02\x50\r\n",
    "another protocol": b"220 mail.example ESMTP\r\n",
    "no bytes of a header": b"\r\n\r\n",
    "an early end": response(b"{}")[:20],
    "half of the body": response(b"x" * 1000)[:-500],
    "a wrong length": b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n{",
    "a broken chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "many headers": b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 1000 + b"\r\n",
    "a long header": b"HTTP/1.1 200 OK\r\na: " + b"b" * 100_000 + b"\r\n\r\n",
    "an error": response(b"<html>secret-of-the-server</html>", "500 secret-of-the-server"),
    "a redirect without an address": response(b"", "302 Found"),
    "a redirect to another protocol": response(b"", "302 Found", "Location: ftp://127.0.0.1:1/keys"),
    "a redirect to itself": response(b"", "302 Found", "Location: /path"),
    "a redirect to nowhere": response(b"", "302 Found", "Location: http://[::1"),
    "a redirect to a file": response(b"", "302 Found", "Location: file:///etc/hostname"),
    "a page": response(b"<html>secret-of-the-server</html>"),
    "deep JSON": response(DEEP),
    "too much": response(b" " * LARGEST + b"{}"),
    "an empty object": response(b"{}"),
    "a list": response(b"[1]"),
    "bytes that are not text": response(b"\xff\xfe\xfd"),
}


def jwks(*keys: ECKey) -> bytes:
    return response(json.dumps({"keys": [key.as_dict(private=False) for key in keys]}).encode())


def token(key: ECKey) -> str:
    claims = {"sub": "carol", "exp": int(time.time()) + 600}
    return jwt.encode({"alg": "ES256", "kid": key.kid}, claims, key, algorithms=["ES256"])


@pytest.fixture
def server() -> Iterator[ScriptedHttp]:
    with scripted_http() as made:
        yield made


class Keys:
    """A broker's keys from an address, which it reads again every few milliseconds."""

    def __init__(self, server: ScriptedHttp) -> None:
        self._server = server
        self._verifier = JwtVerifier(TokenRules())
        self._task = asyncio.ensure_future(
            refresh_keys(KeySource(f"{server.url}?key=secret-of-the-server", 0.002, self._verifier))
        )

    def accepts(self, key: ECKey) -> bool:
        try:
            return self._verifier.verify(token(key), int(time.time() * 1000)).user == "carol"
        except SaslMisuse:
            return False

    async def wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            assert not self._task.done(), self._task.exception()
            await asyncio.sleep(0.001)

    async def read_with(self, answer: bytes, drips: bool = False) -> None:
        """Let the server give this answer until at least one attempt with it has ended."""
        self._server.answer, self._server.drips = answer, drips
        seen = len(self._server.requests)
        await self.wait(lambda: len(self._server.requests) > seen + 2)

    async def __aenter__(self) -> Keys:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


def test_keys_survive_every_unusable_answer(
    server: ScriptedHttp, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sasl_mechanisms, "TIMEOUT_S", 0.2)
    asyncio.run(_answer_badly(server, caplog))


async def _answer_badly(server: ScriptedHttp, caplog: pytest.LogCaptureFixture) -> None:
    server.answer = jwks(FIRST)
    async with Keys(server) as keys:
        await keys.wait(lambda: keys.accepts(FIRST))
        assert not keys.accepts(SECOND)
        for name, answer in (UNUSABLE | {"silence": SILENCE}).items():
            caplog.clear()
            await keys.read_with(answer)
            line = f"reading the keys of OAUTHBEARER from {server.url}?[hidden] failed"
            await keys.wait(lambda line=line: line in caplog.text)  # type: ignore[misc]
            assert "secret-of-the-server" not in caplog.text, name
            assert keys.accepts(FIRST), name
        await keys.read_with(b"HTTP/1.1 200 OK\r\na: b", drips=True)
        assert keys.accepts(FIRST)
        await keys.read_with(jwks(FIRST, SECOND))
        await keys.wait(lambda: keys.accepts(SECOND))
        assert keys.accepts(FIRST), "both keys are in force while an issuer rotates"
        await keys.read_with(jwks(SECOND))
        await keys.wait(lambda: not keys.accepts(FIRST))
        assert keys.accepts(SECOND)


def test_keys_are_read_when_their_server_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(_lose_the_server(caplog))


async def _lose_the_server(caplog: pytest.LogCaptureFixture) -> None:
    with scripted_http() as server:
        async with Keys(server) as keys:
            await keys.read_with(response(b"", "503 Unavailable"))
            assert not keys.accepts(FIRST), "without keys no token is accepted"
            await keys.read_with(jwks(FIRST))
            await keys.wait(lambda: keys.accepts(FIRST))
            server.close()
            await keys.wait(lambda: "Connection refused" in caplog.text)
            assert keys.accepts(FIRST)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_broker_stops_while_a_silent_server_holds_its_request(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the loop waits for the reading thread: it must not wait for the server."""
    monkeypatch.setattr(sasl_mechanisms, "TIMEOUT_S", 3600)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"{scheme}://127.0.0.1:{listening.getsockname()[1]}/keys"
        held, first = asyncio.run(_stop_during_a_read(listening, url))
        with held:
            while first:  # what the server receives ends only because the broker has left
                first = held.recv(65536)


async def _stop_during_a_read(listening: socket.socket, url: str) -> tuple[socket.socket, bytes]:
    task = asyncio.ensure_future(refresh_keys(KeySource(url, 3600, JwtVerifier(TokenRules()))))
    held, _ = await asyncio.to_thread(listening.accept)
    first = await asyncio.to_thread(held.recv, 1)
    assert first, "the request, or the beginning of a TLS handshake"
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    return held, first


def test_a_read_that_was_cancelled_before_it_began_fails(server: ScriptedHttp) -> None:
    reading = Reading()
    reading.cancel()
    with pytest.raises(DocumentError):
        read_document(server.url, timeout_s=3600, largest=LARGEST, reading=reading)
    assert not server.requests


def test_deep_json_is_not_a_key_set() -> None:
    with pytest.raises(ConfigError, match="RecursionError"):
        JwtVerifier(TokenRules()).load_keys(DEEP)


@pytest.mark.parametrize(("start", "drips"), [(SILENCE, False), (b"H", True), (response(b"x" * 999)[:-998], True)])
def test_a_slow_answer_ends_at_its_deadline(server: ScriptedHttp, start: bytes, drips: bool) -> None:
    server.answer, server.drips = start, drips
    with pytest.raises(DocumentError, match="no complete response in time"):
        read_document(server.url, timeout_s=0.05, largest=LARGEST)


def test_a_document_may_have_its_largest_size(server: ScriptedHttp) -> None:
    server.answer = response(b"x" * 1000)
    assert len(read_document(server.url, timeout_s=60, largest=1000)) == 1000
    server.answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    assert read_document(server.url, timeout_s=60, largest=5) == b"hello"
    for largest in (4, 999):
        server.answer = response(b"x" * (largest + 1))
        with pytest.raises(DocumentError, match=f"larger than {largest} bytes"):
            read_document(server.url, timeout_s=60, largest=largest)


def test_keys_may_be_elsewhere_but_a_client_secret_stays(server: ScriptedHttp) -> None:
    with scripted_http() as other:
        other.answer = response(b'{"access_token": "a.b.c"}')
        server.answer = response(b"", "302 Found", f"Location: {other.url}")
        assert read_document(server.url, timeout_s=60, largest=LARGEST) == b'{"access_token": "a.b.c"}'
        assert len(other.requests) == 1
        with pytest.raises(SaslFailure, match="status 302"):
            provider(server.url, OPTIONS)()
        assert len(other.requests) == 1, "the secret must not follow a redirect"


def test_https_trusts_only_known_authorities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write_tls_files(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(files.broker)
    with scripted_http(tls) as server:
        server.answer = response(b'{"access_token": "a.b.c"}')
        with pytest.raises(SaslFailure, match="The authorization server gave no token"):
            provider(server.url, OPTIONS)()
        assert not server.requests, "the secret must not be sent to a server that proved nothing"
        monkeypatch.setenv("SSL_CERT_FILE", str(files.ca))
        assert provider(server.url, OPTIONS)() == "a.b.c"


def test_keys_of_a_proven_server_are_not_read_in_clear_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever answers in clear text could give other keys, and sign tokens with them."""
    files = write_tls_files(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(files.broker)
    monkeypatch.setenv("SSL_CERT_FILE", str(files.ca))
    with scripted_http(tls) as server, scripted_http() as other:
        server.answer = response(b"", "302 Found", f"Location: {other.url}")
        other.answer = response(b"{}")
        with pytest.raises(DocumentError, match="status 302"):
            read_document(server.url, timeout_s=10, largest=LARGEST)
        assert not other.requests
        other.answer = response(b"", "302 Found", f"Location: {server.url}")
        server.answer = response(b"{}")
        assert read_document(other.url, timeout_s=10, largest=LARGEST) == b"{}"


def test_a_client_gets_its_token_from_an_authorization_server(server: ScriptedHttp) -> None:
    get = provider(server.url, OPTIONS)
    for key in (FIRST, SECOND):
        text = token(key)
        server.answer = response(json.dumps({"access_token": text, "expires_in": 600}).encode())
        assert get() == text, "each connection asks for a new token"
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /path ")
    assert b"Authorization: Basic " + base64.b64encode(b"carol:carol-secret") in head
    assert body == b"grant_type=client_credentials&scope=kafka"


@pytest.mark.parametrize(
    "answer",
    [
        *UNUSABLE.values(),
        *(response(json.dumps({"access_token": bad}).encode()) for bad in (None, 7, "", " ", ["a"], "a\x01b", "é")),
    ],
)
def test_an_answer_without_a_token_is_a_failed_login(server: ScriptedHttp, answer: bytes) -> None:
    server.answer = answer
    get = provider(server.url, OPTIONS)
    with pytest.raises(SaslFailure, match="The authorization server gave no token") as raised:
        get()
    assert "secret" not in str(raised.value)
    server.answer = response(b'{"access_token": "a.b.c"}')
    assert get() == "a.b.c", "the next connection asks again"
