"""SaslMechanisms: the SASL mechanisms of each listener, with the users, credentials and keys that they use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from klamm.config import KafkaConfig
from klamm.config.listener_settings import ListenerSettings
from klamm.config.shown_url import shown_url
from klamm.config.user_credentials import UserCredentials
from klamm.errors import ConfigError, KlammError
from klamm.security.reading import Reading
from klamm.security.sasl.jaas import parse_jaas
from klamm.security.sasl.jwt_verifier import JwtVerifier, TokenRules
from klamm.security.sasl.mechanisms import FOR_CLIENTS, OAUTHBEARER, PLAIN
from klamm.security.sasl.scram_credential import ScramCredential, decoy_credential, parse_credential
from klamm.security.sasl.server_authenticator import SaslSettings
from klamm.security.sasl.server_mechanisms import OAuthServer, PlainServer, SaslServer, ScramServer
from klamm.security.secret import Secret

log = logging.getLogger(__name__)

RETRY_S: Final = 10.0
TIMEOUT_S: Final = 10.0
LARGEST_JWKS: Final = 1 << 20


class KeySource:
    """Where the keys of one listener's tokens are, and the verifier that uses them."""

    def __init__(self, url: str, refresh_s: float, verifier: JwtVerifier) -> None:
        self.url = url
        self.refresh_s = refresh_s
        self.verifier = verifier


class SaslMechanisms:
    """Makes the mechanisms of a listener. `refresh_keys` keeps the keys of tokens up to date."""

    def __init__(self, credentials: UserCredentials, secret: Secret[str]) -> None:
        """`secret` is the same on all brokers of a cluster."""
        self._credentials = credentials
        self._secret = secret
        self._sources: list[KeySource] = []
        self._parsed: dict[tuple[str, str], tuple[str, ScramCredential]] = {}
        """The credentials of users that logged in, with the text that each was read from."""

    @property
    def key_sources(self) -> tuple[KeySource, ...]:
        return tuple(self._sources)

    def settings_of(self, settings: ListenerSettings, config: KafkaConfig) -> SaslSettings:
        """Raises ConfigError if a mechanism lacks a setting that it needs."""
        enabled = settings.value("sasl.enabled.mechanisms")
        assert isinstance(enabled, tuple)
        names = [name.upper() for name in enabled]
        unknown = [name for name in names if name not in FOR_CLIENTS]
        if not names or unknown:
            shown = ", ".join(unknown) or "nothing"
            raise ConfigError(f"sasl.enabled.mechanisms has {shown}: expected some of {', '.join(FOR_CLIENTS)}.")
        reauth = {name: _number(settings, "connections.max.reauth.ms", name) for name in names}
        size = _number(settings, "sasl.server.max.receive.size", None)
        return SaslSettings({name: self._maker(name, settings, config) for name in names}, reauth, size)

    def _maker(self, name: str, settings: ListenerSettings, config: KafkaConfig) -> Callable[[], SaslServer]:
        if name == PLAIN:
            users = _plain_users(settings)
            return lambda: PlainServer(users)
        if name == OAUTHBEARER:
            verifier = self._verifier(settings, config)
            return lambda: OAuthServer(verifier.verify)
        credentials, decoys = partial(self._credential, name), partial(self._decoy, name)
        return lambda: ScramServer(name, credentials, decoys)

    def _decoy(self, mechanism: str, user: str) -> ScramCredential:
        return decoy_credential(self._secret.reveal(), mechanism, user)

    def _credential(self, mechanism: str, user: str) -> ScramCredential | None:
        text = self._credentials.get(mechanism, user)
        if text is None:
            self._parsed.pop((mechanism, user), None)
            return None
        parsed = self._parsed.get((mechanism, user))
        if parsed is not None and parsed[0] == text:
            return parsed[1]
        try:
            credential = parse_credential(text)
            self._parsed[mechanism, user] = (text, credential)
            return credential
        except ValueError as error:
            log.warning("a %s credential in ZooKeeper is not usable: %s", mechanism, error)
            return None

    def _verifier(self, settings: ListenerSettings, config: KafkaConfig) -> JwtVerifier:
        def text(key: str) -> str | None:
            value = settings.value(key, OAUTHBEARER)
            return None if value is None else str(value)

        audiences = settings.value("sasl.oauthbearer.expected.audience", OAUTHBEARER)
        assert isinstance(audiences, tuple)
        skew_s = _number(settings, "sasl.oauthbearer.clock.skew.seconds", OAUTHBEARER)
        refresh_ms = _number(settings, "sasl.oauthbearer.jwks.endpoint.refresh.ms", OAUTHBEARER)
        accepts_unsecured = config.klamm_sasl_oauthbearer_unsecured_tokens
        issuer, claim = text("sasl.oauthbearer.expected.issuer"), text("sasl.oauthbearer.sub.claim.name")
        verifier = JwtVerifier(TokenRules(issuer, audiences, skew_s, claim or "sub", accepts_unsecured))
        url = text("sasl.oauthbearer.jwks.endpoint.url")
        if url is None:
            if not accepts_unsecured:
                raise ConfigError(
                    "sasl.oauthbearer.jwks.endpoint.url is missing: OAUTHBEARER needs the keys of its issuer."
                )
            return verifier
        if urlsplit(url).scheme not in ("file", "http", "https"):
            raise ConfigError("sasl.oauthbearer.jwks.endpoint.url must begin with file:, http: or https:.")
        self._sources.append(KeySource(url, refresh_ms / 1000, verifier))
        return verifier


def _number(settings: ListenerSettings, name: str, mechanism: str | None) -> int:
    value = settings.value(name, mechanism)
    assert isinstance(value, int)
    return value


def _plain_users(settings: ListenerSettings) -> dict[str, str]:
    key = f"listener.name.{settings.listener.lower()}.plain.sasl.jaas.config"
    text = settings.value("sasl.jaas.config", PLAIN)
    if text is None:
        raise ConfigError(f'{key} is missing. Set it to: PlainLoginModule required user_NAME="PASSWORD";')
    return parse_jaas(key, str(text)).users


async def load_keys(source: KeySource) -> None:
    """Read a JWKS in a thread, which ends soon if this is cancelled. Raises KlammError and OSError."""
    reading = Reading()
    try:
        document = await asyncio.get_running_loop().run_in_executor(None, _read, source.url, reading)
    except asyncio.CancelledError:
        reading.cancel()  # The end of the loop waits for its threads, and a silent server would hold this one.
        raise
    source.verifier.load_keys(document)


async def refresh_keys(source: KeySource) -> None:
    """Read the keys periodically. A failed attempt leaves the old keys in use."""
    while True:
        try:
            await load_keys(source)
        except (KlammError, OSError) as error:
            log.warning("reading the keys of OAUTHBEARER from %s failed: %s", shown_url(source.url), error)
            await asyncio.sleep(min(RETRY_S, source.refresh_s))
        else:
            await asyncio.sleep(source.refresh_s)


def _read(url: str, reading: Reading) -> bytes:
    parts = urlsplit(url)
    if parts.scheme == "file":
        return Path(parts.path).read_bytes()
    from klamm.security.http_document import read_document  # slow to import

    return read_document(url, timeout_s=TIMEOUT_S, largest=LARGEST_JWKS, reading=reading)
