"""A SocketServer with one secured listener, and clients that shake hands and log in by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from cryptography.x509.oid import NameOID

from klamm.clock import Clock
from klamm.errors import ErrorCode
from klamm.model import EndPoint, SecurityProtocol
from klamm.network import ConnectionLimits, RequestContext, SocketServer, SocketServerConfig
from klamm.protocol.frames import decode_response_header
from klamm.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from klamm.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from klamm.protocol.wire import Message, decode
from klamm.security.listener_security import ListenerSecurity
from klamm.security.sasl.mechanisms import PLAIN
from klamm.security.secret import Secret
from klamm.security.tls.contexts import TlsSettings, client_context, server_context
from klamm.security.tls.stores import KeyPair
from tests.support.certificates import Authority, Issued
from tests.unit.network.harness import RawClient, ScriptedApi, Server, heartbeat, heartbeat_api
from tests.unit.security import sasl_peer

AUTHORITY = Authority()
BROKER = AUTHORITY.issue()
CLIENT = AUTHORITY.issue((NameOID.ORGANIZATION_NAME, "klamm"), (NameOID.COMMON_NAME, "Alice"))

plain_and_secured = pytest.mark.parametrize(
    "protocol", [SecurityProtocol.PLAINTEXT, SecurityProtocol.SASL_SSL], ids=lambda protocol: protocol.name
)


def pair(issued: Issued) -> KeyPair:
    return KeyPair(issued.certificate_pem, Secret(issued.key_pem))


def sasl_apis(on_handshake: Callable[[RequestContext, Any], SaslHandshakeResponse] | None) -> list[ScriptedApi]:
    """Handlers like those of a broker, for SASL requests that are out of place."""
    return [
        ScriptedApi(
            SaslHandshakeRequest,
            SaslHandshakeResponse,
            on_handshake or (lambda _, r: SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)),
        ),
        ScriptedApi(
            SaslAuthenticateRequest,
            SaslAuthenticateResponse,
            lambda _, r: SaslAuthenticateResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=None, auth_bytes=r.auth_bytes
            ),
        ),
    ]


class SecuredServer(Server):
    """A server with one secured listener; `principals` are those of the Heartbeats that it served."""

    def __init__(
        self,
        protocol: SecurityProtocol,
        *apis: ScriptedApi,
        limits: ConnectionLimits | None = None,
        config: SocketServerConfig | None = None,
        clock: Clock | None = None,
        started: bool = True,
        on_handshake: Callable[[RequestContext, Any], SaslHandshakeResponse] | None = None,
        **options: Any,
    ) -> None:
        self.security = ListenerSecurity(protocol, **options)
        if self.security.has_tls:
            self.security.context = server_context(TlsSettings(pair(BROKER), AUTHORITY.pem, "requested"))
        if self.security.has_sasl:
            self.security.sasl = sasl_peer.settings()
        self.principals: list[str] = []
        super().__init__(clock=clock, started=started)
        script = heartbeat_api().script

        def remember(ctx: RequestContext, request: Any) -> Any:
            self.principals.append(ctx.principal)
            return script(ctx, request)

        self.network = SocketServer(
            (EndPoint("SECURED", "127.0.0.1", 0, protocol),),
            [heartbeat_api(remember), *sasl_apis(on_handshake), *apis],
            loop=asyncio.get_running_loop(),
            clock=self.clock,
            registry=self.registry,
            config=replace(
                config if config is not None else SocketServerConfig(),
                security={"SECURED": self.security},
                connection_limits=limits or ConnectionLimits(),
            ),
        )

    async def tls_client(self, certificate: Issued | None = None, *, address: str = "127.0.0.1") -> RawClient:
        settings = TlsSettings(None if certificate is None else pair(certificate), AUTHORITY.pem)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1",
            self.port,
            ssl=client_context(settings),
            server_hostname="localhost",
            local_addr=(address, 0),
        )
        self._clients.append(RawClient(reader, writer))
        return self._clients[-1]

    async def user(self) -> RawClient:
        """A client that has done all that the listener asks for."""
        client = await (self.tls_client() if self.security.has_tls else self.client())
        if self.security.has_sasl:
            assert (await log_in(client)).error_code == ErrorCode.NONE
        return client


async def ask(client: RawClient, request: Message, response: type[Message], version: int = 1) -> Any:
    client.send(request, version)
    frame = await client.receive()
    _, position = decode_response_header(request.KEY, version, frame)
    return decode(response, version, frame, position)[0]


async def beat(client: RawClient, number: int = 7) -> int:
    client.send(heartbeat(number))
    return (await client.receive_heartbeat())[1]


async def log_in(client: RawClient, password: str = "alice-secret") -> SaslAuthenticateResponse:
    await ask(client, SaslHandshakeRequest(mechanism=PLAIN), SaslHandshakeResponse)
    token = b"\0alice\0" + password.encode()
    response: SaslAuthenticateResponse = await ask(
        client, SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse
    )
    return response
