"""One address cannot fill the broker's log, whatever its connections are closed for."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from klamm.model import SecurityProtocol
from klamm.network import ConnectionLimits
from klamm.network.hoard import Hoard
from klamm.protocol.messages.api_versions import ApiVersionsRequest
from klamm.security.failure_log import LINES, SAME_LINES
from klamm.security.tls.principal_mapping import PrincipalMapper
from tests.unit.network.harness import ManualClock, api_versions_api, until
from tests.unit.network.secured_harness import CLIENT, SecuredServer, beat

PLAINTEXT, SASL, SSL = SecurityProtocol.PLAINTEXT, SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SSL
Refusal = Callable[[SecuredServer], Awaitable[None]]


async def send(server: SecuredServer, data: bytes) -> None:
    """Send bytes that end the connection."""
    client = await server.client()
    client.writer.write(data)
    assert await client.receive_end() == b""


async def send_negative_size(server: SecuredServer) -> None:
    await send(server, struct.pack(">i", -1))


async def send_broken_request(server: SecuredServer) -> None:
    """ApiVersions passes before the login; this one announces more bytes than it has."""
    body = struct.pack(">hhih", ApiVersionsRequest.KEY, 3, 0, -1) + b"\0" + b"\x64"
    await send(server, struct.pack(">i", len(body)) + body)


async def be_silent(server: SecuredServer) -> None:
    server.security.timeout_s = 0.001
    await send(server, b"")


async def connect_without_rule(server: SecuredServer) -> None:
    server.security.mapper = PrincipalMapper.parse("RULE:^nobody$/x/")
    failed = server.security.counts.failed
    with contextlib.suppress(OSError):
        await (await server.tls_client(CLIENT)).receive_end()
    await until(lambda: server.security.counts.failed == failed + 1)


async def connect_once_more(server: SecuredServer) -> None:
    if not server.connection_count:
        await beat(await server.client())
    await send(server, b"")


@pytest.mark.parametrize(
    ("protocol", "refusal", "text"),
    [
        (PLAINTEXT, send_negative_size, "a frame announces the negative size -1"),
        (SASL, send_negative_size, "a frame announces the negative size -1"),
        (SASL, send_broken_request, "99 bytes announced, 0 remain"),
        (SASL, be_silent, "it has not authenticated in time"),
        (SSL, connect_without_rule, "no rule of ssl.principal.mapping.rules matches its certificate"),
        (PLAINTEXT, connect_once_more, "too many connections from its address"),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_equal_refusals_of_an_address_are_logged_a_few_times(
    protocol: SecurityProtocol, refusal: Refusal, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def scenario() -> None:
        limits = ConnectionLimits(max_connections_per_ip=1)
        async with SecuredServer(protocol, api_versions_api(), limits=limits, clock=ManualClock()) as server:
            for _ in range(SAME_LINES + 5):
                await refusal(server)
                if refusal is not connect_once_more:
                    await until(lambda: server.connection_count == 0)

    uvloop.run(scenario())
    lines = [record.getMessage() for record in caplog.records if text in record.getMessage()]
    assert len(lines) == SAME_LINES
    assert lines[-1].endswith("; equal failures of this address are not logged for a minute")


def test_a_peer_that_varies_its_frames_is_limited_too(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with SecuredServer(SASL, clock=clock) as server:
            for number in range(LINES + 20):
                await send(server, struct.pack(">i", -1 - number))
            clock.seconds += 60
            await send_negative_size(server)

    uvloop.run(scenario())
    lines = [record.getMessage() for record in caplog.records if "negative size" in record.getMessage()]
    assert len(lines) == LINES + 1
    assert lines[-1].endswith("; 20 more failures of this address were not logged")


def test_connections_that_hoard_memory_are_limited_too(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with SecuredServer(PLAINTEXT, clock=ManualClock()) as server:
            server.network.channel.unfinished = Hoard("unfinished requests", 1_000, lambda: float("inf"))
            for _ in range(SAME_LINES + 5):
                await send(server, struct.pack(">i", 10_000_000) + bytes(100))

    uvloop.run(scenario())
    assert sum("bytes of unfinished requests" in record.getMessage() for record in caplog.records) == SAME_LINES
