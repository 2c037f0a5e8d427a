"""ListenerSecurity: how the connections of one listener are encrypted, and how their peers prove who they are."""

from __future__ import annotations

import ssl
from typing import Final

from klamm.model import SecurityProtocol
from klamm.security.failure_budget import FailureBudget
from klamm.security.failure_log import FailureLog
from klamm.security.sasl.server_authenticator import SaslSettings
from klamm.security.tls.principal_mapping import PrincipalMapper, distinguished_name

ANONYMOUS: Final = "User:ANONYMOUS"


class AuthenticationCounts:
    """The outcomes of the authentications of one listener. Only the gates of its connections write it."""

    __slots__ = ("expired", "failed", "failed_again", "succeeded", "succeeded_again", "without_reauthentication")

    def __init__(self) -> None:
        self.succeeded = self.failed = 0
        self.succeeded_again = self.failed_again = 0
        """Of connections that authenticated again."""
        self.without_reauthentication = 0
        """Successes of clients that do not know re-authentication."""
        self.expired = 0
        """Connections that were closed because their session had ended."""


class ListenerSecurity:
    """Owner: the broker loop. `context`, `sasl` and `mapper` are replaced when their settings change.

    Connections that are open keep what they were made with.
    """

    def __init__(
        self,
        protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT,
        *,
        timeout_s: float = 30.0,
        failure_delay_s: float = 0.1,
        peer: SaslSettings | None = None,
        budget: FailureBudget | None = None,
        failures: FailureLog | None = None,
    ) -> None:
        self.protocol = protocol
        self.has_tls = protocol in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)
        self.has_sasl = protocol in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)
        self.timeout_s = timeout_s
        """A connection that has not proved who it is after this time is closed."""
        self.failure_delay_s = failure_delay_s
        self.peer = peer
        """How brokers of this cluster prove their id, besides the listener's own mechanisms."""
        self.budget = budget if budget is not None else FailureBudget(max_wait_s=timeout_s / 2)
        self.failures = failures if failures is not None else FailureLog()
        self.counts = AuthenticationCounts()
        self.context: ssl.SSLContext | None = None
        self.mapper = PrincipalMapper.parse("DEFAULT")
        self.sasl: SaslSettings | None = None

    def principal_of(self, certificate_der: bytes | None) -> str | None:
        """Return the principal of a client's certificate; None if no rule matches."""
        if certificate_der is None:
            return ANONYMOUS
        try:
            name = self.mapper.name_of(distinguished_name(certificate_der))
        except ValueError:
            return None
        return None if name is None else f"User:{name}"
