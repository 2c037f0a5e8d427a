"""A client's side of a gate, frame by frame: for tests that send what no real client would."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from klamm.model import SecurityProtocol
from klamm.network.gate import Answer, Gate
from klamm.network.request_context import ChannelContext
from klamm.protocol.frames import RequestHeader, encode_request_header
from klamm.protocol.messages.api_versions import ApiVersionsRequest
from klamm.protocol.messages.metadata import MetadataRequest
from klamm.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from klamm.protocol.messages.sasl_handshake import SaslHandshakeRequest
from klamm.protocol.wire import Message, encode_bytes
from klamm.security.listener_security import ListenerSecurity
from klamm.security.sasl.client_mechanisms import SaslClient, SaslCredentials, sasl_client
from klamm.security.sasl.jwt_verifier import JwtVerifier, TokenRules
from klamm.security.sasl.mechanisms import KLAMM_PEER, OAUTHBEARER, PLAIN, SCRAM_SHA_256, SCRAM_SHA_512
from klamm.security.sasl.scram_credential import ScramCredential, credential_of, decoy_credential, salted_password
from klamm.security.sasl.server_authenticator import SaslSettings
from klamm.security.sasl.server_mechanisms import OAuthServer, PeerServer, PlainServer, ScramServer
from klamm.security.secret import Secret

PASSWORDS = {"alice": "alice-secret", "bob": "bob-secret"}
PEER_SECRET = "the secret of the cluster"
SALT = b"salt of sixteen."
START_MS = 1_700_000_000_000


def credential(mechanism: str, password: str) -> ScramCredential:
    return credential_of(mechanism, salted_password(mechanism, password, SALT, 4096), SALT, 4096)


CREDENTIALS = {
    (mechanism, user): credential(mechanism, password)
    for mechanism in (SCRAM_SHA_256, SCRAM_SHA_512)
    for user, password in PASSWORDS.items()
}
PEER_CREDENTIAL = credential(SCRAM_SHA_256, PEER_SECRET)
PEER = SaslSettings({KLAMM_PEER: lambda: PeerServer(PEER_CREDENTIAL)})


def settings(max_reauth_ms: Mapping[str, int] | None = None) -> SaslSettings:
    """All mechanisms, with unsigned tokens."""
    verifier = JwtVerifier(TokenRules(accepts_unsecured=True))

    def scram(mechanism: str) -> ScramServer:
        return ScramServer(
            mechanism,
            lambda user: CREDENTIALS.get((mechanism, user)),
            lambda user: decoy_credential(PEER_SECRET, mechanism, user),
        )

    return SaslSettings(
        {
            PLAIN: lambda: PlainServer(PASSWORDS),
            SCRAM_SHA_256: lambda: scram(SCRAM_SHA_256),
            SCRAM_SHA_512: lambda: scram(SCRAM_SHA_512),
            OAUTHBEARER: lambda: OAuthServer(verifier.verify),
        },
        max_reauth_ms or {},
    )


class Peer:
    """One connection to a listener. `now_ms` is the broker's clock."""

    def __init__(
        self, protocol: SecurityProtocol = SecurityProtocol.SASL_PLAINTEXT, sasl: SaslSettings | None = None
    ) -> None:
        self.security = ListenerSecurity(protocol, peer=PEER)
        self.security.sasl = sasl if sasl is not None else settings()
        self.context = ChannelContext()
        self.gate = Gate(self.security, self.context)
        self.now_ms = START_MS
        self.corrected_ms = 0
        """How far the wall clock was moved."""

    def send(self, request: Message, version: int) -> Answer | None:
        header = encode_request_header(RequestHeader(request.KEY, version, 7, "client"))
        return self.send_bytes(header + encode_bytes(request, version))

    def send_bytes(self, frame: bytes) -> Answer | None:
        """Send a frame as the network layer does: an open gate sees only SASL requests."""
        if not self.gate.is_closed and frame[:2] not in (b"\0\x11", b"\0\x24"):
            return None
        return self.gate.receive(frame, self.now_ms + self.corrected_ms, self.now_ms / 1000)

    def handshake(self, mechanism: str, version: int = 1) -> Any:
        answer = self.send(SaslHandshakeRequest(mechanism=mechanism), version)
        return None if answer is None else answer.message

    def authenticate(self, token: bytes, version: int = 1) -> Any:
        answer = self.send(SaslAuthenticateRequest(auth_bytes=token), version)
        return None if answer is None else answer.message

    def metadata(self) -> Answer | None:
        return self.send(MetadataRequest(topics=[]), 1)

    def api_versions(self) -> Answer | None:
        return self.send(ApiVersionsRequest(), 0)

    def log_in(self, mechanism: str, user: str = "alice", password: str | None = None, version: int = 1) -> Any:
        """Run a whole exchange; returns the last response."""
        response = self.handshake(mechanism)
        if response is None or response.error_code:
            return response
        client = client_of(mechanism, user, password)
        token: bytes | None = client.first()
        while token is not None:
            response = self.authenticate(token, version)
            if response is None or response.error_code:
                return response
            token = client.step(bytes(response.auth_bytes))
        return response


def client_of(mechanism: str, user: str = "alice", password: str | None = None) -> SaslClient:
    if mechanism == OAUTHBEARER:
        return sasl_client(SaslCredentials(mechanism, token=lambda: unsigned_token(user)))
    secret = PEER_SECRET if mechanism == KLAMM_PEER else PASSWORDS.get(user, "nothing")
    return sasl_client(SaslCredentials(mechanism, user, Secret(secret if password is None else password)))


def unsigned_token(user: str, expires_s: int = START_MS // 1000 + 3600, **claims: object) -> str:
    from klamm.security.sasl.token_source import unsecured_token

    return unsecured_token({"sub": user, "iat": START_MS // 1000, "exp": expires_s, **claims})
