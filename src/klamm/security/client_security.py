"""ClientSecurity: how a client protects its connections and proves who it is.

    ClientSecurity.from_properties({"security.protocol": "SASL_SSL", "ssl.ca.location": "ca.pem",
        "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "alice", "sasl.password": "..."})

Kafka's keys and librdkafka's are both accepted. Files are read once, so the value can be sent to other processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from klamm.errors import ConfigError
from klamm.lazy_dataclass import lazy_dataclass
from klamm.model import SecurityProtocol
from klamm.security.sasl.client_mechanisms import SaslCredentials, TokenProvider
from klamm.security.sasl.jaas import parse_jaas
from klamm.security.sasl.mechanisms import FOR_CLIENTS, OAUTHBEARER
from klamm.security.secret import Secret
from klamm.security.tls.contexts import TlsSettings
from klamm.security.tls.stores import KeyPair, StoreSource, load_certificates, load_key_pair

TLS: Final = frozenset({SecurityProtocol.SSL, SecurityProtocol.SASL_SSL})
SASL: Final = frozenset({SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL})
PROPERTIES: Final = frozenset(
    {
        "security.protocol",
        *("ssl.truststore.location", "ssl.truststore.type", "ssl.truststore.password", "ssl.truststore.certificates"),
        *("ssl.keystore.location", "ssl.keystore.type", "ssl.keystore.password", "ssl.keystore.key"),
        *("ssl.keystore.certificate.chain", "ssl.key.password", "ssl.ca.location", "ssl.ca.pem"),
        *("ssl.certificate.location", "ssl.certificate.pem", "ssl.key.location", "ssl.key.pem"),
        *("ssl.endpoint.identification.algorithm", "enable.ssl.certificate.verification"),
        *("ssl.enabled.protocols", "ssl.cipher.suites"),
        *("sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password", "sasl.jaas.config"),
        "sasl.oauthbearer.token.endpoint.url",
    }
)
"""The keys that `from_properties` reads. It ignores all others."""
SECRET_PROPERTIES: Final = frozenset(
    {
        *("ssl.truststore.password", "ssl.keystore.password", "ssl.key.password", "ssl.keystore.key", "ssl.key.pem"),
        *("sasl.password", "sasl.jaas.config"),
    }
)


@lazy_dataclass(frozen=True, slots=True)
class ClientSecurity:
    """`tls` is None without TLS, `sasl` is None without SASL.

    With `peer` a broker proves its id to other klamm brokers after that. Brokers that do not know the proof, such as
    Kafka's, are used without it.
    """

    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    tls: TlsSettings | None = None
    sasl: SaslCredentials | None = None
    peer: SaslCredentials | None = None

    @classmethod
    def from_properties(
        cls, properties: Mapping[str, object], token_provider: TokenProvider | None = None
    ) -> ClientSecurity:
        """Read the settings and the files that they name. Raises ConfigError."""
        given = {name: str(value).strip() for name, value in properties.items() if value is not None}
        name = given.get("security.protocol", "PLAINTEXT").upper()
        if name not in SecurityProtocol.__members__:
            known = ", ".join(SecurityProtocol.__members__)
            raise ConfigError(f"security.protocol cannot be {name!r}: expected one of {known}.")
        protocol = SecurityProtocol[name]
        return cls(
            protocol,
            _tls(given) if protocol in TLS else None,
            sasl_credentials(given, token_provider) if protocol in SASL else None,
        )


PLAINTEXT: Final = ClientSecurity()


def _tls(given: Mapping[str, str]) -> TlsSettings:
    algorithm = given.get("ssl.endpoint.identification.algorithm", "https").lower()
    if algorithm not in ("https", "", "none"):
        raise ConfigError(f"ssl.endpoint.identification.algorithm cannot be {algorithm!r}: expected https or nothing.")
    suites = given.get("ssl.cipher.suites", "").replace(":", ",")
    return TlsSettings(
        key_pair=client_key_pair(given),
        trusted=client_trust(given),
        checks_hostname=algorithm == "https",
        checks_certificate=given.get("enable.ssl.certificate.verification", "true").lower() != "false",
        protocols=_list(given.get("ssl.enabled.protocols")) or ("TLSv1.2", "TLSv1.3"),
        cipher_suites=_list(suites),
    )


def client_trust(given: Mapping[str, str]) -> bytes | None:
    """Return the certificates that a side trusts, None if no key names any."""
    for key in ("ssl.truststore.certificates", "ssl.ca.pem"):
        if given.get(key):
            return load_certificates(StoreSource(key, text=Secret(_pem_text(given[key]))))
    for key in ("ssl.truststore.location", "ssl.ca.location"):
        if given.get(key):
            kind = given.get("ssl.truststore.type") if key.startswith("ssl.truststore") else "PEM"
            password = _secret(given.get("ssl.truststore.password"))
            return load_certificates(StoreSource(key, path=given[key], kind=kind, password=password))
    return None


def client_key_pair(given: Mapping[str, str]) -> KeyPair | None:
    """Return the key and certificate of a side, None if no key names any."""
    key_password = _secret(given.get("ssl.key.password"))
    for key, chain in (("ssl.keystore.key", "ssl.keystore.certificate.chain"), ("ssl.key.pem", "ssl.certificate.pem")):
        if given.get(key):
            text, chain_text = Secret(_pem_text(given[key])), _pem_text(given.get(chain, ""))
            return load_key_pair(StoreSource(key, text=text, chain_text=chain_text, key_password=key_password))
    if given.get("ssl.keystore.location"):
        return load_key_pair(
            StoreSource(
                "ssl.keystore.location",
                path=given["ssl.keystore.location"],
                kind=given.get("ssl.keystore.type"),
                password=_secret(given.get("ssl.keystore.password")),
                key_password=key_password,
            )
        )
    if given.get("ssl.key.location"):
        return _split_key_pair(given, key_password)
    return None


def _split_key_pair(given: Mapping[str, str], key_password: Secret[str] | None) -> KeyPair:
    if not given.get("ssl.certificate.location"):
        raise ConfigError("ssl.key.location requires ssl.certificate.location.")
    return load_key_pair(
        StoreSource(
            "ssl.key.location",
            text=Secret(_text_of("ssl.key.location", given["ssl.key.location"])),
            chain_text=_text_of("ssl.certificate.location", given["ssl.certificate.location"]),
            key_password=key_password,
        )
    )


def _text_of(key: str, path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not PEM"
        raise ConfigError(f"{key} ({path}) cannot be used: {reason}.") from None


def _pem_text(text: str) -> str:
    """PEM in a setting may have its line breaks escaped."""
    return text.replace("\\n", "\n")


def sasl_credentials(given: Mapping[str, str], token_provider: TokenProvider | None = None) -> SaslCredentials:
    """Return the credentials of a client. Raises ConfigError."""
    mechanism = (given.get("sasl.mechanism") or given.get("sasl.mechanisms") or "").upper()
    if mechanism not in FOR_CLIENTS:
        shown = repr(mechanism) if mechanism else "missing"
        what = f"sasl.mechanism is {shown}" if not mechanism else f"sasl.mechanism cannot be {shown}"
        raise ConfigError(f"{what}: expected one of {', '.join(FOR_CLIENTS)}.")
    jaas = parse_jaas("sasl.jaas.config", given["sasl.jaas.config"]) if given.get("sasl.jaas.config") else None
    options = {} if jaas is None else jaas.options
    if mechanism == OAUTHBEARER:
        from klamm.security.sasl import token_source  # slow to import, and few clients need it

        url = given.get("sasl.oauthbearer.token.endpoint.url")
        provider = token_provider or token_source.provider(url, options)
        extensions = tuple(
            (name.removeprefix("extension_"), value) for name, value in options.items() if name.startswith("extension_")
        )
        return SaslCredentials(mechanism, token=provider, extensions=extensions)
    username = given.get("sasl.username") or options.get("username")
    password = given.get("sasl.password") or options.get("password")
    if not username or not password:
        raise ConfigError(
            f"{mechanism} needs a user and a password: set sasl.username and sasl.password, or sasl.jaas.config."
        )
    return SaslCredentials(mechanism, username, Secret(password))


def _list(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _secret(text: str | None) -> Secret[str] | None:
    return Secret(text) if text else None
