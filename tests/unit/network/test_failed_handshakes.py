"""Connections that do not prove who they are: failures take from the budget of their address."""

from __future__ import annotations

import asyncio
import contextlib
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import aiofastnet
import pytest

from klamm.errors import ErrorCode
from klamm.model import SecurityProtocol
from klamm.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from klamm.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from klamm.security.failure_budget import MAX_ADDRESSES, MAX_WAIT_S, FailureBudget
from klamm.security.listener_security import ListenerSecurity
from klamm.security.sasl.mechanisms import PLAIN
from klamm.security.tls.contexts import TlsSettings, client_context, server_context
from klamm.security.tls.principal_mapping import PrincipalMapper
from tests.support.certificates import Authority, Issued
from tests.support.tls_flights import Side
from tests.unit.network.harness import ManualClock, both_loops, muted, settled, until
from tests.unit.network.secured_harness import AUTHORITY, BROKER, CLIENT, SecuredServer, ask, beat, log_in, pair

Run = Callable[[Any], None]

ADDRESS = "127.0.0.1"
OTHER_AUTHORITY = Authority("Other CA")
STRANGER = OTHER_AUTHORITY.issue()
CHANGE_CIPHER_SPEC = b"\x14\x03\x03\x00\x01\x01"
"""The record of TLS 1.2 that follows the signature of a client."""


def demand(server: SecuredServer, client_auth: str = "requested", rules: str = "DEFAULT") -> None:
    """Set what the listener asks of the certificates of its clients."""
    server.security.context = server_context(TlsSettings(pair(BROKER), AUTHORITY.pem, client_auth))
    server.security.mapper = PrincipalMapper.parse(rules)


async def fail(server: SecuredServer, certificate: Issued | None) -> None:
    """Connect with a certificate that the broker refuses."""
    failed = server.security.counts.failed
    with contextlib.suppress(OSError):  # In TLS 1.3 the client learns of it when it reads.
        client = await server.tls_client(certificate)
        await client.receive_end()
    await until(lambda: server.security.counts.failed == failed + 1)


@both_loops
@pytest.mark.parametrize(
    ("certificate", "client_auth", "rules"),
    [(None, "required", "DEFAULT"), (STRANGER, "requested", "DEFAULT"), (CLIENT, "requested", "RULE:^nobody$/x/")],
    ids=["missing", "of another authority", "without a rule"],
)
def test_an_address_with_many_refused_certificates_waits_before_its_handshake(
    run: Run, certificate: Issued | None, client_auth: str, rules: str
) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        budget = FailureBudget(burst=2, per_second=1_000)
        async with SecuredServer(SecurityProtocol.SSL, clock=clock, budget=budget) as server:
            demand(server, client_auth, rules)
            await fail(server, certificate)
            assert budget.wait_s(ADDRESS, clock.seconds) == 0
            await fail(server, certificate)
            demand(server)
            waiting = asyncio.ensure_future(server.tls_client(CLIENT))
            await until(lambda: muted(server) == {"not-admitted": 1, "authentication": 1})
            assert await beat(await server.tls_client(CLIENT, address="127.0.0.2")) == 7, "other addresses do not wait"
            assert not waiting.done() and muted(server)["authentication"] == 1
            clock.seconds += 1
            assert await beat(await waiting) == 7 and muted(server) == {}

    run(scenario())


@both_loops
def test_a_stolen_certificate_without_its_key_takes_from_the_budget(run: Run) -> None:
    """The broker checks the signature of a client after its certificate: both are costly."""

    async def scenario() -> None:
        clock = ManualClock()
        budget = FailureBudget(burst=1)
        async with SecuredServer(SecurityProtocol.SSL, clock=clock, budget=budget) as server:
            thief = Side(
                client_context(TlsSettings(pair(CLIENT), AUTHORITY.pem, protocols=("TLSv1.2",))), is_server=False
            )
            connection = await server.client()
            connection.writer.write(thief.receive(b""))
            while not (flight := thief.receive(await connection.reader.read(65536))):
                assert thief.error is None
            signature_end = flight.rindex(CHANGE_CIPHER_SPEC) - 1
            connection.writer.write(
                flight[:signature_end] + bytes([flight[signature_end] ^ 1]) + flight[signature_end + 1 :]
            )
            await connection.receive_end()
            await until(lambda: server.security.counts.failed == 1)
            assert budget.wait_s(ADDRESS, clock.seconds) > 0

    run(scenario())


@both_loops
def test_a_connection_waits_as_long_as_an_authentication_may_take(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    async def scenario() -> None:
        clock = ManualClock()
        budget = FailureBudget(burst=1, per_second=0.1)
        async with SecuredServer(SecurityProtocol.SSL, clock=clock, budget=budget) as server:
            await fail(server, STRANGER)
            server.security.timeout_s = 0.01
            late = await server.client()
            await until(lambda: muted(server).get("authentication") == 1)
            clock.seconds += 1
            assert await late.receive_end() == b"" and server.security.counts.failed == 2
            server.security.timeout_s = 600
            aborted = await server.client()
            await until(lambda: muted(server).get("authentication") == 1)
            (connection,) = server.network.acceptors[0].processor.connections
            connection.abort()
            assert await aborted.receive_end() == b"" and server.security.counts.failed == 2
            await until(lambda: server.network.quotas.total == 0)

    run(scenario())
    assert "its TLS handshake failed: too many authentications of its address have failed" in caplog.text


@both_loops
def test_other_failures_of_a_handshake_take_nothing_from_the_budget(run: Run) -> None:
    """Probes of a load balancer must not delay the clients behind it."""

    async def scenario() -> None:
        clock = ManualClock()
        budget = FailureBudget(burst=1)
        async with SecuredServer(SecurityProtocol.SSL, clock=clock, budget=budget) as server:
            for start in (b"", b"\x16\x03\x01\x00\x05hello", b"GET / HTTP/1.1\r\n\r\n"):
                client = await server.client()
                client.writer.write(start)
                await client.close()
            distrustful = client_context(TlsSettings(None, OTHER_AUTHORITY.pem))
            with contextlib.suppress(OSError):
                await asyncio.open_connection(ADDRESS, server.port, ssl=distrustful, server_hostname="localhost")
            await until(lambda: server.security.counts.failed == 4)
            assert budget.wait_s(ADDRESS, clock.seconds) == 0

    run(scenario())


@both_loops
@pytest.mark.parametrize("is_encrypted", [False, True], ids=["during the handshake", "after it"])
def test_an_unexpected_error_of_a_handshake_closes_the_connection(
    run: Run, is_encrypted: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It stayed open for ever, with its descriptor and its place in the quotas."""

    def fail(*_: object, **options: object) -> Any:
        raise LookupError("injected")

    async def scenario() -> None:
        async with SecuredServer(SecurityProtocol.SSL) as server:
            with monkeypatch.context() as injected:
                if is_encrypted:
                    injected.setattr(server.security, "principal_of", fail)
                else:
                    injected.setattr(aiofastnet, "connect_accepted_socket", fail)
                client = await (server.tls_client(CLIENT) if is_encrypted else server.client())
                with contextlib.suppress(OSError):
                    assert await client.receive_end() == b""
                await until(lambda: server.network.quotas.open_connections == server.network.quotas.total == 0)
                assert server.security.counts.failed == 1
            assert await beat(await server.tls_client(CLIENT)) == 7

    run(scenario())
    (record,) = (each for each in caplog.records if "its TLS handshake failed unexpectedly" in each.getMessage())
    assert record.exc_info and isinstance(record.exc_info[1], LookupError)


@both_loops
def test_a_connection_without_a_login_takes_from_the_budget_unless_the_broker_let_it_wait(run: Run) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        budget = FailureBudget(burst=1, per_second=0.1)
        async with SecuredServer(SecurityProtocol.SASL_PLAINTEXT, clock=clock, budget=budget) as server:
            long_s, server.security.timeout_s = server.security.timeout_s, 0.01
            silent = await server.client()
            assert await silent.receive_end() == b""
            missing = budget._missing(ADDRESS, clock.seconds)
            assert missing > 0
            server.security.timeout_s = long_s
            client = await server.client()
            response = await ask(client, SaslHandshakeRequest(mechanism=PLAIN), SaslHandshakeResponse)
            assert response.error_code == ErrorCode.NONE
            client.send(SaslAuthenticateRequest(auth_bytes=b"\0alice\0alice-secret"), 1)
            await until(lambda: muted(server) == {"authentication": 1})
            (connection,) = server.network.acceptors[0].processor.connections
            connection._on_late()
            assert await client.receive_end() == b"" and server.security.counts.failed == 2
            assert budget._missing(ADDRESS, clock.seconds) == missing

    run(scenario())


@both_loops
@pytest.mark.parametrize("protocol", [SecurityProtocol.SSL, SecurityProtocol.SASL_PLAINTEXT])
def test_waiting_attempts_of_an_address_begin_one_after_the_other(run: Run, protocol: SecurityProtocol) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        budget = FailureBudget(burst=1)
        async with SecuredServer(protocol, clock=clock, budget=budget) as server:
            budget.note_failure(ADDRESS, clock.seconds)
            waiting: list[asyncio.Future[Any]]
            if protocol is SecurityProtocol.SSL:
                waiting = [asyncio.ensure_future(server.tls_client(CLIENT)) for _ in range(3)]
            else:
                waiting = [asyncio.ensure_future(log_in(await server.client())) for _ in range(3)]
            await until(lambda: muted(server).get("authentication") == 3)
            for begun in (1, 2, 3):
                clock.seconds += 0.2001
                await asyncio.wait([task for task in waiting if not task.done()], return_when=asyncio.FIRST_COMPLETED)
                await settled()
                assert sum(task.done() for task in waiting) == begun
            assert muted(server) == {}

    run(scenario())


def test_every_attempt_has_its_turn_within_half_the_time_of_an_authentication() -> None:
    budget = FailureBudget()
    for _ in range(1_000):
        budget.note_failure(ADDRESS, 50.0)
    begin = [budget.begin_at(ADDRESS, 50.0) - 50.0 for _ in range(3_000)]
    assert min(begin) > 0 and max(begin) <= MAX_WAIT_S + 0.001
    per_second = Counter(int(at) for at in begin)
    assert max(per_second.values()) <= 2 * len(begin) / MAX_WAIT_S, "they are spread"
    assert budget.begin_at(ADDRESS, 120.0) == 120.0


def test_turns_are_those_of_returning_tokens_until_half_of_them_are_back() -> None:
    """Once, every attempt took a turn as long as another one waited: each new one waited for the one before, without
    an end if more than five logins per second came, although nothing had failed for hours.
    """
    budget = FailureBudget(burst=4, per_second=1.0)
    for _ in range(4):
        budget.note_failure(ADDRESS, 100.0)
    assert [budget.begin_at(ADDRESS, 100.0) for _ in range(3)] == [101.0, 102.0, 103.0]
    assert budget.wait_s(ADDRESS, 101.5) == 0 and budget.begin_at(ADDRESS, 101.5) == 104.0, "others wait already"
    assert budget.begin_at("another", 101.5) == 101.5
    assert [budget.begin_at(ADDRESS, 102.0) for _ in range(3)] == [102.0] * 3, "although others wait until 104.0"


@pytest.mark.parametrize("failures_per_second", [0, 3])
def test_logins_that_succeed_do_not_wait_for_each_other_after_a_burst_of_failures(failures_per_second: int) -> None:
    """More of them come than there are turns, while a few clients keep trying an old password."""
    budget = FailureBudget()
    for _ in range(200):
        budget.note_failure(ADDRESS, 100.0)
    failing: deque[float] = deque()
    waits: list[float] = []
    for tenth in range(1_000, 2_000):
        now = tenth / 10
        while failing and failing[0] <= now:
            budget.note_failure(ADDRESS, failing.popleft())
        if tenth % 10 < failures_per_second:
            insort(failing, budget.begin_at(ADDRESS, now))
        waits.append(budget.begin_at(ADDRESS, now) - now)
    assert waits[0] > 0 and max(waits) <= MAX_WAIT_S + 0.001
    assert max(waits[600:]) == 0, "ten logins per second, a minute after the burst"


def test_the_last_turn_comes_before_the_time_of_its_authentication_ends() -> None:
    security = ListenerSecurity(SecurityProtocol.SASL_PLAINTEXT, timeout_s=2.0)
    for _ in range(1_000):
        security.budget.note_failure(ADDRESS, 50.0)
    turns = [security.budget.begin_at(ADDRESS, 50.0) for _ in range(1_000)]
    assert max(turns) <= 50.0 + security.timeout_s / 2
    assert max(turns) > 50.5, "they are spread"


def test_the_memory_for_turns_is_bounded() -> None:
    budget = FailureBudget(burst=1)
    for number in range(2 * MAX_ADDRESSES):
        budget.note_failure(str(number), 100.0)
        assert budget.begin_at(str(number), 100.0) > 100.0
    assert len(budget._last_turn) <= MAX_ADDRESSES
