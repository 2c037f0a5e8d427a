"""SecurityChoice: the arguments `tls`, `sasl` and `acls` of a LocalCluster, checked. Pure."""

from __future__ import annotations

from typing import Final, Literal

from klamm.lazy_dataclass import lazy_dataclass
from klamm.model import SecurityProtocol
from klamm.security.sasl.mechanisms import PLAIN, SCRAM_SHA_256, SCRAM_SHA_512

Tls = bool | Literal["mutual"]
MECHANISMS: Final = (SCRAM_SHA_256, SCRAM_SHA_512, PLAIN)
BROKER: Final = "broker"
ADMIN: Final = "admin"
_AUTHORIZER: Final = "kafka.security.authorizer.AclAuthorizer"
_MODULES: Final = {PLAIN: "org.apache.kafka.common.security.plain.PlainLoginModule"}
_SCRAM_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"


@lazy_dataclass(frozen=True, slots=True)
class SecurityChoice:
    """`mutual`: clients prove themselves by certificates."""

    tls: bool = False
    mutual: bool = False
    sasl: str | None = None
    acls: bool = False

    @classmethod
    def of(cls, tls: Tls, sasl: str | None, acls: bool) -> SecurityChoice:
        """Mechanisms may have any case. Raises ValueError, which names the argument."""
        if tls not in (True, False, "mutual"):
            raise ValueError(f'tls cannot be {tls!r}: expected True, False or "mutual".')
        mechanism = None if sasl is None else str(sasl).upper()
        if mechanism is not None and mechanism not in MECHANISMS:
            raise ValueError(f"sasl cannot be {sasl!r}: expected one of {', '.join(MECHANISMS)}.")
        if tls == "mutual" and sasl is not None:
            raise ValueError('tls cannot be "mutual" with sasl: the user of SASL would hide that of the certificate.')
        if acls and not tls and sasl is None:
            raise ValueError("acls requires sasl or tls: without them, every client is the same user.")
        return cls(bool(tls), tls == "mutual" or (acls and bool(tls) and sasl is None), mechanism, acls)

    def options(self) -> str:
        """Return the options of `klamm up` that make this choice."""
        sasl = () if self.sasl is None else (f"--sasl {self.sasl}",)
        return " ".join((*(("--tls",) if self.tls else ()), *sasl, *(("--acls",) if self.acls else ())))

    def covers(self, other: SecurityChoice) -> bool:
        """Whether clients must prove at least as much, and are allowed no more, as with the other choice."""
        proves_client = self.mutual or self.sasl is not None or not other.mutual
        return self.tls >= other.tls and other.sasl in (None, self.sasl) and self.acls >= other.acls and proves_client

    @property
    def is_on(self) -> bool:
        return self.tls or self.sasl is not None

    @property
    def protocol(self) -> SecurityProtocol:
        if self.sasl is not None:
            return SecurityProtocol.SASL_SSL if self.tls else SecurityProtocol.SASL_PLAINTEXT
        return SecurityProtocol.SSL if self.tls else SecurityProtocol.PLAINTEXT

    @property
    def listener(self) -> str:
        return self.protocol.name

    @property
    def has_scram(self) -> bool:
        return self.sasl is not None and self.sasl != PLAIN

    def broker_keys(self) -> dict[str, object]:
        """The keys that do not depend on files and passwords."""
        keys: dict[str, object] = {}
        if self.is_on:
            keys["inter.broker.listener.name"] = self.listener
        if self.tls:
            keys["ssl.client.auth"] = "required" if self.mutual else "none"
            keys["ssl.principal.mapping.rules"] = "RULE:^CN=([^,]+).*$/$1/,DEFAULT"
        if self.sasl is not None:
            keys["sasl.enabled.mechanisms"] = self.sasl
            keys["sasl.mechanism.inter.broker.protocol"] = self.sasl
        if self.acls:
            keys["authorizer.class.name"] = _AUTHORIZER
            keys["super.users"] = f"User:{BROKER};User:{ADMIN}"
        return keys

    def jaas(self, username: str, password: str, users: dict[str, str] | None = None) -> str:
        """Return the value of `sasl.jaas.config`; `users` are those that a PLAIN listener knows."""
        module = _MODULES.get(self.sasl or "", _SCRAM_MODULE)
        known = "".join(f" user_{name}={_quoted(word)}" for name, word in (users or {}).items())
        return f"{module} required username={_quoted(username)} password={_quoted(password)}{known};"


UNSECURED: Final = SecurityChoice()


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
