"""TLS and SASL over real sockets: handshakes that never end, quotas, failed logins, sessions, new certificates."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from klamm.client.asyncio_connection import BrokerConnection
from klamm.errors import ErrorCode
from klamm.model import SecurityProtocol
from klamm.network import ConnectionLimits, RequestContext
from klamm.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from klamm.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from klamm.security.client_security import ClientSecurity
from klamm.security.failure_budget import MAX_WAIT_S, FailureBudget
from klamm.security.sasl.client_mechanisms import SaslCredentials
from klamm.security.sasl.mechanisms import KLAMM_PEER, OAUTHBEARER, PLAIN, SCRAM_SHA_256
from klamm.security.secret import Secret
from klamm.security.tls.contexts import TlsSettings, client_context, server_context
from klamm.security.tls.principal_mapping import PrincipalMapper
from tests.support.tls_flights import Side, damage
from tests.unit.network.harness import RawClient, both_loops, heartbeat, muted, until
from tests.unit.network.secured_harness import AUTHORITY, BROKER, CLIENT, SecuredServer, ask, beat, log_in, pair
from tests.unit.security import sasl_peer

Run = Callable[[Any], None]


@both_loops
def test_a_certificate_names_the_principal(run: Run) -> None:
    async def scenario() -> None:
        async with SecuredServer(SecurityProtocol.SSL) as server:
            assert await beat(await server.tls_client()) == 7
            assert await beat(await server.tls_client(CLIENT)) == 7
            server.security.mapper = PrincipalMapper.parse("RULE:^CN=(.*?),.*$/$1/L")
            assert await beat(await server.tls_client(CLIENT)) == 7
            assert server.principals == ["User:ANONYMOUS", "User:CN=Alice,O=klamm", "User:alice"]
            server.security.mapper = PrincipalMapper.parse("RULE:^nobody$/x/")
            refused = await server.tls_client(CLIENT)
            assert await refused.receive_end() == b""

    run(scenario())


@both_loops
def test_large_frames_pass_both_ways(run: Run) -> None:
    async def scenario() -> None:
        async with SecuredServer(SecurityProtocol.SSL) as server:
            client = await server.tls_client()
            payload = bytes(range(256)) * 16_384
            request = SaslAuthenticateRequest(auth_bytes=payload)
            for _ in range(3):
                response = await ask(client, request, SaslAuthenticateResponse)
                assert response.auth_bytes == payload

    run(scenario())


@both_loops
def test_a_handshake_that_does_not_end_is_cut_off_and_counts_in_the_quota(run: Run) -> None:
    async def scenario() -> None:
        limits = ConnectionLimits(max_connections_per_ip=2)
        async with SecuredServer(SecurityProtocol.SSL, limits=limits) as server:
            patient, garbling = await server.client(), await server.client()
            await until(lambda: server.connections_of("127.0.0.1") == 2)
            third = await server.client()
            assert await third.receive_end() == b"", "the address has reached its limit during the handshakes"
            garbling.writer.write(b"\x16\x03\x01\x00\x05hello")
            await garbling.receive_end()
            await until(lambda: server.connections_of("127.0.0.1") == 1)
            long_s, server.security.timeout_s = server.security.timeout_s, 0.3
            silent = await server.client()
            assert await silent.receive_end() == b"", "the broker ends a handshake that takes too long"
            await patient.close()
            await until(lambda: server.network.quotas.total == 0 and server.security.counts.failed == 3)
            server.security.timeout_s = long_s
            assert await beat(await server.tls_client()) == 7

    run(scenario())


@both_loops
def test_peers_that_hang_up_in_their_handshake_are_not_errors(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with SecuredServer(SecurityProtocol.SSL) as server:
            for start in (b"", b"\x16\x03\x01\x00\x05hello", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00"):
                client = await server.client()
                client.writer.write(start)
                await client.writer.drain()
                client.writer.transport.abort()
            await until(lambda: server.security.counts.failed == 4 and server.network.quotas.total == 0)
            assert await beat(await server.tls_client()) == 7

    run(scenario())
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


async def shake_hands_badly(server: SecuredServer, context: ssl.SSLContext, rng: Random) -> bool:
    """Send one damaged flight, and then the end. Return whether the flight was changed."""
    client, damaged = Side(context, is_server=False), rng.randrange(2)
    connection = await server.client()
    flight = client.receive(b"")
    if damaged:
        connection.writer.write(flight)
        while not (flight := client.receive(await connection.reader.read(65536))):
            assert client.error is None
    sent = damage(rng, flight)
    connection.writer.write(sent)
    connection.writer.write_eof()
    with contextlib.suppress(ConnectionError):
        await connection.reader.read()
    connection.writer.transport.abort()
    return sent != flight


@both_loops
def test_damaged_flights_end_connections_and_nothing_else(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with SecuredServer(SecurityProtocol.SSL) as server:
            rng = Random(7)
            for protocol in ("TLSv1.2", "TLSv1.3"):
                context = client_context(TlsSettings(pair(CLIENT), AUTHORITY.pem, protocols=(protocol,)))
                for _ in range(100):
                    await shake_hands_badly(server, context, rng)
            await until(lambda: server.network.quotas.total == 0)
            assert server.security.counts.failed > 100, "most damage is noticed in the handshake"
            assert server.principals == []
            assert await beat(await server.tls_client(CLIENT)) == 7

    run(scenario())
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


@both_loops
def test_a_connection_can_be_aborted_in_its_handshake(run: Run) -> None:
    async def scenario() -> None:
        async with SecuredServer(SecurityProtocol.SSL) as server:
            processor = server.network.acceptors[0].processor
            for _ in range(3):
                client = await server.client()
                await until(lambda: len(processor.connections) == 1)
                client.writer.write(b"\x16\x03\x01\x02\x00")
                await asyncio.sleep(0)
                next(iter(processor.connections)).abort()
                assert await client.receive_end() == b""
                await until(lambda: server.network.quotas.total == 0)
            assert await beat(await server.tls_client()) == 7
            await server.client()
            await until(lambda: len(processor.connections) == 2)

    run(scenario())


@both_loops
def test_a_new_certificate_serves_new_connections_only(run: Run) -> None:
    async def scenario() -> None:
        def serial(client: RawClient) -> str:
            certificate: dict[str, Any] = client.writer.get_extra_info("ssl_object").getpeercert()
            return str(certificate["serialNumber"])

        async with SecuredServer(SecurityProtocol.SSL) as server:
            old = await server.tls_client()
            await beat(old)
            server.security.context = server_context(TlsSettings(pair(AUTHORITY.issue())))
            new = await server.tls_client()
            assert await beat(new) == await beat(old) == 7
            assert serial(old) != serial(new)

    run(scenario())


@both_loops
@pytest.mark.parametrize("protocol", [SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL])
def test_a_user_logs_in(run: Run, protocol: SecurityProtocol) -> None:
    async def scenario() -> None:
        async with SecuredServer(protocol) as server:
            client = await (server.tls_client() if server.security.has_tls else server.client())
            assert (await log_in(client)).error_code == ErrorCode.NONE
            assert await beat(client) == 7 and server.principals == ["User:alice"]
            again = await ask(client, SaslHandshakeRequest(mechanism=PLAIN), SaslHandshakeResponse)
            assert again.error_code == ErrorCode.ILLEGAL_SASL_STATE
            assert await beat(client, 8) == 8, "a handshake out of place does not end the connection"
            tags = {"listener": "SECURED", "networkProcessor": "0"}
            group = "kafka.server"
            assert server.value("socket-server-metrics", "successful-authentication-total", group, **tags) == 1

    run(scenario())


@both_loops
@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
@pytest.mark.parametrize("nonce_bytes", [24, 2000])
def test_answers_of_a_login_are_measured(
    run: Run, level: int, nonce_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Small answers are written directly, large and logged ones like all responses: both count the same."""
    caplog.set_level(level, logger="klamm.request")

    async def scenario() -> None:
        async with SecuredServer(SecurityProtocol.SASL_PLAINTEXT) as server:
            client = await server.client()
            client.send(SaslHandshakeRequest(mechanism=SCRAM_SHA_256), 1)
            received = 4 + len(await client.receive())
            client.send(SaslAuthenticateRequest(auth_bytes=b"n,,n=alice,r=" + b"a" * nonce_bytes), 1)
            challenge = await client.receive()
            received += 4 + len(challenge)
            assert b"a" * nonce_bytes in challenge
            for api, size in (("SaslHandshake", 1), ("SaslAuthenticate", 1)):
                tags = {"request": api}
                assert server.value("RequestMetrics", "RequestsPerSec", **tags, version="1") == size
                assert server.value("RequestMetrics", "ErrorsPerSec", **tags, error="NONE") == size
                assert server.value("RequestMetrics", "TotalTimeMs", **tags) == size
            tags = {"listener": "SECURED", "networkProcessor": "0"}
            sent = server.value("socket-server-metrics", "outgoing-byte-total", "kafka.server", **tags)
            assert sent == received
            assert server.network.channel.in_flight == 0 and server.network.channel.unsent_bytes == 0

    run(scenario())
    logged = [record for record in caplog.records if record.name == "klamm.request"]
    assert len(logged) == (2 if level == logging.DEBUG else 0)


@both_loops
def test_pipelined_requests_keep_their_order(run: Run) -> None:
    """A client that does not wait for its login: the requests behind it count as the user's."""

    async def scenario() -> None:
        async with SecuredServer(SecurityProtocol.SASL_PLAINTEXT) as server:
            client = await server.client()
            client.send(SaslHandshakeRequest(mechanism=PLAIN), 1)
            client.send(SaslAuthenticateRequest(auth_bytes=b"\0alice\0alice-secret"), 1)
            client.send(heartbeat(3))
            for _ in range(2):
                await client.receive()
            assert (await client.receive_heartbeat())[1] == 3 and server.principals == ["User:alice"]

    run(scenario())


@both_loops
def test_a_failed_login_is_answered_late_and_ends_the_connection(run: Run) -> None:
    async def scenario() -> None:
        async with SecuredServer(SecurityProtocol.SASL_PLAINTEXT, failure_delay_s=0.2) as server:
            client = await server.client()
            loop = asyncio.get_running_loop()
            began = loop.time()
            response = await log_in(client, "wrong")
            assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert round(loop.time() - began, 3) >= 0.2  # uvloop counts in milliseconds
            assert await client.receive_end() == b"" and server.security.counts.failed == 1
        async with SecuredServer(SecurityProtocol.SASL_PLAINTEXT, failure_delay_s=600) as server:
            answer = asyncio.ensure_future(log_in(await server.client(), "wrong"))
            await until(lambda: muted(server) == {"authentication": 1})
            answer.cancel()

    run(scenario())


@both_loops
def test_a_client_that_sends_on_after_a_failure_and_leaves_is_not_an_error(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with SecuredServer(SecurityProtocol.SASL_PLAINTEXT, failure_delay_s=30) as server:
            client = await server.client()
            client.send(SaslHandshakeRequest(mechanism=PLAIN), 1)
            for _ in range(3):
                client.send(SaslAuthenticateRequest(auth_bytes=b"\0alice\0wrong"), 1)
            await until(lambda: server.security.counts.failed == 1)
            client.writer.transport.abort()
            (connection,) = server.network.acceptors[0].processor.connections
            connection.abort()
            await until(lambda: server.network.quotas.total == 0)
            assert server.security.counts.failed == 1

    run(scenario())
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@both_loops
def test_requests_before_the_login_are_not_served(run: Run) -> None:
    async def scenario() -> None:
        async with SecuredServer(SecurityProtocol.SASL_PLAINTEXT, failure_delay_s=0) as server:
            client = await server.client()
            client.send(heartbeat(1))
            assert await client.receive_end() == b"" and server.principals == []
            large = await server.client()
            large.writer.write((600_000).to_bytes(4, "big"))
            assert await large.receive_end() == b"", "frames of strangers are small"

    run(scenario())


class TestReceiveSize:
    """`sasl.server.max.receive.size` limits the frames of a connection that has not logged in."""

    LIMIT = 1_000
    LARGER = bytes(LIMIT)
    """With a header or a length around it, too large for a stranger."""

    def server(self) -> SecuredServer:
        server = SecuredServer(SecurityProtocol.SASL_PLAINTEXT)
        assert server.security.sasl is not None
        server.security.sasl = replace(server.security.sasl, max_receive_bytes=self.LIMIT)
        return server

    async def is_cut_off(self, server: SecuredServer, client: RawClient) -> bool:
        """The broker closes the connection without an answer, and nothing was served."""
        return await client.receive_end() == b"" and server.principals == []

    @both_loops
    def test_the_first_frame(self, run: Run) -> None:
        async def scenario() -> None:
            async with self.server() as server:
                client = await server.client()
                client.writer.write((self.LIMIT + 1).to_bytes(4, "big"))
                assert await self.is_cut_off(server, client), "the length alone is enough"
                whole = await server.client()
                whole.send(SaslHandshakeRequest(mechanism="P" * self.LIMIT), 1)
                assert await self.is_cut_off(server, whole)

        run(scenario())

    @both_loops
    def test_a_sasl_authenticate(self, run: Run) -> None:
        async def scenario() -> None:
            async with self.server() as server:
                client = await server.client()
                await ask(client, SaslHandshakeRequest(mechanism=PLAIN), SaslHandshakeResponse)
                client.send(SaslAuthenticateRequest(auth_bytes=self.LARGER), 1)
                assert await self.is_cut_off(server, client)

        run(scenario())

    @both_loops
    def test_a_bare_token(self, run: Run) -> None:
        """After SaslHandshake v0, tokens come without a header: one of exactly the limit is read, and refused."""

        async def scenario() -> None:
            async with self.server() as server:
                server.security.failure_delay_s = 0
                for size, failures in ((self.LIMIT, 1), (self.LIMIT + 1, 1)):
                    client = await server.client()
                    await ask(client, SaslHandshakeRequest(mechanism=PLAIN), SaslHandshakeResponse, 0)
                    client.writer.write(size.to_bytes(4, "big") + bytes(size))
                    assert await self.is_cut_off(server, client)
                    assert server.security.counts.failed == failures

        run(scenario())

    @both_loops
    def test_a_user_sends_larger_frames(self, run: Run) -> None:
        async def scenario() -> None:
            async with self.server() as server:
                client = await server.user()
                request = SaslAuthenticateRequest(auth_bytes=50 * self.LARGER)
                response = await ask(client, request, SaslAuthenticateResponse)
                assert response.auth_bytes == 50 * self.LARGER
                assert await beat(client) == 7

        run(scenario())


@both_loops
def test_a_connection_without_a_login_is_closed_in_time(run: Run) -> None:
    async def scenario() -> None:
        async with SecuredServer(SecurityProtocol.SASL_PLAINTEXT) as server:
            user = await server.client()
            await log_in(user)
            server.security.timeout_s = 0.3
            idle = await server.client()
            assert await idle.receive_end() == b""
            assert await beat(user) == 7

    run(scenario())


@both_loops
def test_an_address_with_many_failures_waits_before_its_password_is_checked(run: Run) -> None:
    async def scenario() -> None:
        budget = FailureBudget(burst=2, per_second=4)
        async with SecuredServer(SecurityProtocol.SASL_PLAINTEXT, failure_delay_s=0, budget=budget) as server:
            loop = asyncio.get_running_loop()
            began = loop.time()
            for _ in range(2):
                await log_in(await server.client(), "wrong")
            assert (await log_in(await server.client())).error_code == ErrorCode.NONE
            assert loop.time() - began >= 0.1, "the right password waits as well"

    run(scenario())


@both_loops
@pytest.mark.parametrize("leaves", [False, True], ids=["it acknowledges", "it leaves"])
def test_a_refused_token_is_logged_and_counts_once(run: Run, caplog: pytest.LogCaptureFixture, leaves: bool) -> None:
    """A client reads that its token is not valid before the exchange ends, and need not wait for the end."""
    caplog.set_level(logging.INFO, "klamm.network.guarded")

    async def scenario() -> None:
        budget = FailureBudget(burst=2, per_second=0.01)
        async with SecuredServer(SecurityProtocol.SASL_PLAINTEXT, failure_delay_s=0, budget=budget) as server:
            for attempt in (1, 2):
                client = await server.client()
                await ask(client, SaslHandshakeRequest(mechanism=OAUTHBEARER), SaslHandshakeResponse)
                token = SaslAuthenticateRequest(auth_bytes=b"n,,\x01auth=Bearer not.a.token\x01\x01")
                first = await ask(client, token, SaslAuthenticateResponse)
                assert first.error_code == ErrorCode.NONE and b"invalid_token" in bytes(first.auth_bytes)
                if leaves:
                    client.writer.transport.abort()
                    await until(lambda: server.network.quotas.total == 0)
                else:
                    last = await ask(client, SaslAuthenticateRequest(auth_bytes=b"\x01"), SaslAuthenticateResponse)
                    assert last.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
                assert server.security.counts.failed == attempt
                waits = budget.wait_s("127.0.0.1", server.clock.monotonic()) > 0
                assert waits == (attempt == 2), "a burst of two failures, not of one"

    run(scenario())
    lines = [line for line in caplog.messages if line.startswith("Failed authentication")]
    assert len(lines) == 2 and all("(the token is malformed)" in line for line in lines)


@both_loops
def test_a_client_that_waits_after_a_refused_token_is_closed_in_time(run: Run) -> None:
    async def scenario() -> None:
        async with SecuredServer(SecurityProtocol.SASL_PLAINTEXT, timeout_s=600) as server:
            client = await server.client()
            await ask(client, SaslHandshakeRequest(mechanism=OAUTHBEARER), SaslHandshakeResponse)
            (connection,) = server.network.acceptors[0].processor.connections
            begun = connection._deadline
            token = SaslAuthenticateRequest(auth_bytes=b"n,,\x01auth=Bearer not.a.token\x01\x01")
            await ask(client, token, SaslAuthenticateResponse)
            deadline = connection._deadline
            assert deadline is not None and deadline is begun and not deadline.cancelled()
            deadline.cancel()  # The rest of the time passes.
            asyncio.get_running_loop().call_soon(connection._on_late)
            assert await client.receive_end() == b"" and server.security.counts.failed == 1

    run(scenario())


@both_loops
def test_a_session_ends_unless_it_is_renewed(run: Run) -> None:
    async def scenario() -> None:
        async with SecuredServer(SecurityProtocol.SASL_PLAINTEXT) as server:
            assert server.security.sasl is not None
            server.security.sasl = replace(server.security.sasl, max_reauth_ms={PLAIN: 60_000})
            client = await server.client()
            assert (await log_in(client)).session_lifetime_ms == 60_000
            server.security.sasl = replace(server.security.sasl, max_reauth_ms={PLAIN: 300})
            assert (await log_in(client)).session_lifetime_ms == 300
            (connection,) = server.network.acceptors[0].processor.connections
            await until(lambda: connection.gate.is_closed)
            client.send(heartbeat(1))
            assert await client.receive_end() == b"" and server.security.counts.expired == 1

    run(scenario())


async def is_renewed(server: SecuredServer, security: ClientSecurity, session_ms: int) -> bool:
    """Send requests until the client has authenticated again; return whether that was before the session ended."""
    assert server.security.sasl is not None
    server.security.sasl = replace(server.security.sasl, max_reauth_ms={SCRAM_SHA_256: session_ms})
    connections = server.network.acceptors[0].processor.connections
    await until(lambda: not connections)
    connection = await BrokerConnection.connect("localhost", server.port, security=security)
    (accepted,) = connections
    assert (accepted.context.principal, accepted.context.peer_broker_id) == ("User:alice", 5)
    numbers = 0
    try:
        while server.security.counts.succeeded_again == 0:
            numbers += 1
            responses = [connection.send(heartbeat(n), 1) for n in (numbers, numbers + 1)]
            assert [(await response).error_code for response in responses] == [numbers, numbers + 1]
    except ConnectionError:
        assert server.security.counts.expired
        return False
    assert accepted.context.peer_broker_id == 5
    connection.close()
    await connection.closed
    return True


@both_loops
def test_a_broker_proves_itself_and_renews_its_session(run: Run) -> None:
    """klamm's own client: SASL first, then the proof of a broker; requests continue while it authenticates again."""

    async def scenario() -> None:
        async with SecuredServer(SecurityProtocol.SASL_SSL, peer=sasl_peer.PEER) as server:
            security = ClientSecurity(
                SecurityProtocol.SASL_SSL,
                TlsSettings(trusted=AUTHORITY.pem),
                SaslCredentials(SCRAM_SHA_256, "alice", Secret("alice-secret")),
                SaslCredentials(KLAMM_PEER, "5", Secret(sasl_peer.PEER_SECRET)),
            )
            # The last tenth of a session is left for its renewal: a longer one follows if the loop stood still then.
            for session_ms in (1_500, 6_000, 24_000):
                if await is_renewed(server, security, session_ms):
                    break
            else:
                raise AssertionError("the client never renews its session in time")
            forged = replace(security, peer=SaslCredentials(KLAMM_PEER, "5", Secret("guessed")))
            with pytest.raises(ConnectionError, match="KLAMM-PEER"):
                await BrokerConnection.connect("localhost", server.port, security=forged)
            wrong = replace(security, sasl=SaslCredentials(PLAIN, "alice", Secret("guessed")))
            with pytest.raises(ConnectionError, match="Invalid username or password"):
                await BrokerConnection.connect("localhost", server.port, security=wrong)

    run(scenario())


@both_loops
@pytest.mark.parametrize("closes", [False, True])
def test_a_broker_without_the_proof_is_used_all_the_same(run: Run, closes: bool) -> None:
    """Kafka answers ILLEGAL_SASL_STATE on an open connection. If its sessions end, it closes the connection instead."""

    def refuse(ctx: RequestContext, _: Any) -> SaslHandshakeResponse:
        if not closes:
            return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
        ctx.close_connection()
        return SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM)

    async def scenario() -> None:
        async with SecuredServer(SecurityProtocol.PLAINTEXT, on_handshake=refuse) as server:
            security = ClientSecurity(peer=SaslCredentials(KLAMM_PEER, "5", Secret("anything")))
            connection = await BrokerConnection.connect("localhost", server.port, security=security)
            assert (await connection.send(heartbeat(4), 1)).error_code == 4
            connection.close()
            await connection.closed

    run(scenario())


def test_the_budget_is_bounded() -> None:
    budget = FailureBudget(burst=3, per_second=1.0)
    for _ in range(3):
        assert budget.wait_s("a", 100.0) == 0
        budget.note_failure("a", 100.0)
    assert budget.wait_s("a", 100.0) == 1.0 and budget.wait_s("a", 100.5) == 0.5 and budget.wait_s("b", 100.0) == 0
    assert budget.wait_s("a", 101.1) == 0
    for number in range(20_000):
        budget.note_failure(f"address {number}", 200.0 + number)
    assert budget.wait_s("a", 30_000.0) == 0


def test_failures_in_the_same_moment_do_not_lock_their_address_out() -> None:
    """Such as thousands of silent connections whose time to log in ends together, or an hour of them."""
    budget = FailureBudget()
    for _ in range(100_000):
        budget.note_failure("a", 50.0)
    assert 0 < budget.wait_s("a", 50.0) <= MAX_WAIT_S + 0.001
    assert budget.wait_s("a", 50.001 + MAX_WAIT_S) == 0


def test_an_old_protocol_is_refused() -> None:
    context = server_context(TlsSettings(pair(BROKER)))
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
