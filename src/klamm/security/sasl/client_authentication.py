"""The client's side of authentication in Kafka's messages, without I/O: SaslHandshake, then SaslAuthenticate."""

from __future__ import annotations

from typing import Any, Final

from klamm.errors import ErrorCode
from klamm.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from klamm.protocol.messages.sasl_handshake import SaslHandshakeRequest
from klamm.protocol.wire import Message
from klamm.security.sasl.client_mechanisms import SaslClient, SaslCredentials, SaslFailure, sasl_client
from klamm.security.sasl.mechanisms import KLAMM_PEER, OAUTHBEARER, SCRAM

HANDSHAKE_VERSION: Final = 1
AUTHENTICATE_VERSION: Final = 1
"""The first one with the lifetime of a session. Every broker that klamm knows has it, so nothing is negotiated."""


class ClientAuthentication:
    """Send `request` in `version` and pass the response to `receive`, until `request` is None.

    `receive` may take milliseconds (SCRAM) or wait for a token (OAUTHBEARER).
    """

    def __init__(self, credentials: SaslCredentials) -> None:
        self._credentials = credentials
        self._client: SaslClient | None = None
        self.request: Message | None = SaslHandshakeRequest(mechanism=credentials.mechanism)
        self.version = HANDSHAKE_VERSION
        self.session_lifetime_ms = 0
        """After this time the broker closes the connection, unless the client authenticates again. 0: never."""

    @property
    def has_begun(self) -> bool:
        """Whether the broker has accepted the mechanism."""
        return self._client is not None

    @property
    def is_slow(self) -> bool:
        """Whether the next `receive` may block or take milliseconds."""
        mechanism = self._credentials.mechanism
        return self._client is None if mechanism == OAUTHBEARER else mechanism in (*SCRAM, KLAMM_PEER)

    def receive(self, response: Any) -> None:
        """Raises SaslFailure."""
        if self._client is None:
            self._begin(response)
            return
        if response.error_code != ErrorCode.NONE:
            detail = response.error_message or _name(response.error_code)
            raise SaslFailure(f"The broker refused the authentication with {self._credentials.mechanism}: {detail}")
        token = self._client.step(bytes(response.auth_bytes))
        if token is None:
            self.request = None
            self.session_lifetime_ms = response.session_lifetime_ms
        else:
            self.request = SaslAuthenticateRequest(auth_bytes=token)

    def _begin(self, response: Any) -> None:
        mechanism = self._credentials.mechanism
        if response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            offered = ", ".join(response.mechanisms) or "none"
            raise SaslFailure(f"The broker does not accept {mechanism}. It offers: {offered}.")
        if response.error_code != ErrorCode.NONE:
            raise SaslFailure(f"The broker refused to begin with {mechanism}: {_name(response.error_code)}.")
        self._client = sasl_client(self._credentials)
        self.request = SaslAuthenticateRequest(auth_bytes=self._client.first())
        self.version = AUTHENTICATE_VERSION


def _name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"
