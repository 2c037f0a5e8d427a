"""Why a broker and a client do not accept each other: an attempt to log in, and a look at the broker's listener."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from typing import Final, NamedTuple

from klamm.client.blocking_connection import (
    BROKER_CLOSED,
    LINE_ENDS,
    Address,
    BlockingConnection,
    ForeignAnswerError,
    NotKafkaError,
)
from klamm.client.client_errors import AuthenticationError
from klamm.errors import ErrorCode
from klamm.model import SecurityProtocol
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from klamm.security.client_security import PLAINTEXT, ClientSecurity
from klamm.security.tls.contexts import TlsSettings, client_context

_CLIENT_ID: Final = "klamm-diagnosis"
_UNVERIFIED: Final = ClientSecurity(SecurityProtocol.SSL, TlsSettings(checks_certificate=False))
"""Only for asking which security the listener has: no secret is sent, and no answer is trusted."""
_AFTER_HANDSHAKE: Final = ("CERTIFICATE_REQUIRED", "UNEXPECTED_EOF", BROKER_CLOSED)
"""How a connection without the required certificate ends. Not every broker sends TLS's own reason before it closes."""
_FIRST_OF_TLS: Final = (b"\x15", b"\x16")
"""The first byte of a record of TLS: an alert, or a message of the handshake."""
_ADVICE: Final = (
    ("invalid credentials", "Check the user and the password {where}"),
    ("Invalid username or password", "Check the user and the password {where}"),
    ("ILLEGAL_SASL_STATE", "The listener has no SASL: set security.protocol=PLAINTEXT or SSL {where}"),
    ("It offers:", "Set sasl.mechanism to one of these {where}"),
    ("mismatch", "Connect with a name that the certificate has, or issue one for this name: klamm tls issue --host"),
    ("has expired", "Issue a new certificate for the broker: klamm tls issue"),
    ("not yet valid", "Compare the clocks of both machines"),
    ("is not trusted", "Set ssl.truststore.location {where} to the certificate of the authority that issued it"),
)


class Problem(NamedTuple):
    """A reason and an advice, both without a full stop. `{where}` in the advice stands for the client's settings."""

    reason: str
    advice: str
    is_kafka: bool = True
    """Whether the address belongs to a broker."""


class Listener(NamedTuple):
    """The security of a listener. If it requires a certificate first, SASL behind it stays unknown."""

    protocol: SecurityProtocol
    mechanisms: tuple[str, ...] = ()
    needs_certificate: bool = False

    def __str__(self) -> str:
        text = f"security.protocol={self.protocol.name}"
        if self.mechanisms:
            text += f" with sasl.mechanism={' or '.join(self.mechanisms)}"
        return f"{text} and a certificate of the client" if self.needs_certificate else text


def examine(
    address: Address, security: ClientSecurity, timeout_s: float, first_answer_s: float | None = None
) -> Problem | None:
    """Connect, log in and ask for metadata: None if the broker answers. Raises OSError if nothing answers there.

    `first_answer_s` is a shorter wait for the first answer, after which TimeoutError is raised.
    """
    try:
        with _connect(address, security, timeout_s if first_answer_s is None else first_answer_s) as connection:
            connection.ask(MetadataRequest(topics=[]), MetadataResponse, 1)
        return None
    except AuthenticationError as error:
        reason = str(error).rstrip(".")
        return Problem(reason, advice_for(reason))
    except (ConnectionRefusedError, TimeoutError):
        raise
    except OSError as error:
        try:
            found = None if _is_foreign(error) else find_listener(address, timeout_s)
        except NotKafkaError as foreign:
            return _not_kafka(foreign)
        if found is not None:
            return _mismatch(f"{address[0]}:{address[1]}", security, found)
        if isinstance(error, NotKafkaError):
            return _not_kafka(error)
        if _speaks_tls(address, timeout_s):
            return _not_kafka(NotKafkaError(f"{address[0]}:{address[1]} speaks TLS, and no broker answers within it"))
        raise


def _connect(address: Address, security: ClientSecurity, timeout_s: float) -> BlockingConnection:
    return BlockingConnection(
        address,
        client_id=_CLIENT_ID,
        timeout_ms=timeout_s * 1000,
        security=security,
        first_correlation_id=LINE_ENDS,
    )


def advice_for(reason: str) -> str:
    """Return the advice for a failed authentication."""
    return next((text for sign, text in _ADVICE if sign in reason), "Check the settings of security {where}")


def _is_foreign(error: OSError) -> bool:
    """Whether the answer proves that the address belongs to another program. The first byte of TLS does not."""
    cause = error.__cause__
    return isinstance(cause, ForeignAnswerError) and cause.begin[:1] not in _FIRST_OF_TLS


def _not_kafka(error: NotKafkaError) -> Problem:
    return Problem(str(error), "Compare the port with the broker's listeners", is_kafka=False)


def _mismatch(where: str, security: ClientSecurity, found: Listener) -> Problem:
    if found.needs_certificate and security.tls is not None:
        if security.tls.key_pair is None:
            return Problem(
                f"The broker at {where} requires a certificate of its clients", "Set ssl.keystore.location {where}"
            )
        return Problem(
            f"The broker at {where} does not trust the certificate of this client",
            "Use an unexpired certificate of an authority in the broker's ssl.truststore.location",
        )
    own = f"security.protocol={security.protocol.name}"
    if found.protocol is not security.protocol:
        return Problem(f"The broker at {where} expects {found}, and this client has {own}", f"Set {found} {{where}}")
    return Problem(f"The broker at {where} ended the connection of this client", "See the broker's log")


def find_listener(address: Address, timeout_s: float) -> Listener | None:
    """Return the security of the listener at an address; None if no attempt shows it.

    Raises NotKafkaError if the address speaks another protocol, alone or within TLS.
    """
    for security in (PLAINTEXT, _UNVERIFIED):
        try:
            return _listener(address, security, timeout_s)
        except OSError as error:
            if _is_foreign(error):
                raise
            is_ended = security.tls is not None and any(sign in str(error) for sign in _AFTER_HANDSHAKE)
            if is_ended and _speaks_tls(address, timeout_s):
                return Listener(SecurityProtocol.SSL, needs_certificate=True)
    return None


def _speaks_tls(address: Address, timeout_s: float) -> bool:
    """Return whether the address answers the first message of TLS. One that closes every connection does not."""
    received, to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
    assert _UNVERIFIED.tls is not None
    with suppress(ssl.SSLWantReadError):
        client_context(_UNVERIFIED.tls).wrap_bio(received, to_send).do_handshake()
    try:
        with socket.create_connection(address, timeout_s) as connection:
            connection.sendall(to_send.read())
            return connection.recv(1) in _FIRST_OF_TLS
    except OSError:
        return False


def _listener(address: Address, security: ClientSecurity, timeout_s: float) -> Listener:
    """Offer a mechanism that nobody has: a SASL listener answers with those that it accepts."""
    with _connect(address, security, timeout_s) as connection:
        answer = connection.ask(SaslHandshakeRequest(mechanism=""), SaslHandshakeResponse, 1)
    if answer.error_code != ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        return Listener(security.protocol)
    has_tls = security.tls is not None
    protocol = SecurityProtocol.SASL_SSL if has_tls else SecurityProtocol.SASL_PLAINTEXT
    return Listener(protocol, tuple(answer.mechanisms))
