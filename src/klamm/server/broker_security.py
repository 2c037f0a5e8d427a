"""BrokerSecurity: the security of every listener and of the connections to other brokers, from the configuration.

It reads keystores at the start and when AlterConfigs changes one of them, or names the same file again. Connections
that are open keep their certificates.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from hashlib import sha256
from ssl import SSLContext, SSLObject, SSLSocket
from typing import Final, NamedTuple, TypeVar

from klamm.config import ConfigRepository, KafkaConfig
from klamm.config.listener_settings import LISTENER_KEYS, ListenerSettings
from klamm.config.user_credentials import UserCredentials
from klamm.config.values import to_text
from klamm.errors import ConfigError
from klamm.model import SecurityProtocol
from klamm.security.client_security import SASL, TLS, ClientSecurity, client_key_pair, client_trust
from klamm.security.failure_budget import FailureBudget
from klamm.security.failure_log import FailureLog
from klamm.security.listener_security import ListenerSecurity
from klamm.security.outgoing import OutgoingSecurity
from klamm.security.sasl.client_mechanisms import SaslCredentials
from klamm.security.sasl.mechanisms import KLAMM_PEER, SCRAM_SHA_256
from klamm.security.sasl.scram_credential import MIN_ITERATIONS, credential_of, salted_password
from klamm.security.sasl.server_authenticator import SaslSettings
from klamm.security.sasl.server_mechanisms import PeerServer
from klamm.security.secret import Secret
from klamm.security.tls.contexts import TlsSettings, client_context, server_context
from klamm.security.tls.key_checks import check_successor, check_trusted
from klamm.security.tls.principal_mapping import PrincipalMapper
from klamm.security.tls.stores import KeyPair
from klamm.server.exposure import refuse_exposure
from klamm.server.sasl_mechanisms import SaslMechanisms

log = logging.getLogger(__name__)

T = TypeVar("T")
_CLIENT_AUTH: Final = "ssl.client.auth"
TLS_KEYS: Final = tuple(name for name in LISTENER_KEYS if name.startswith("ssl."))


class _Material(NamedTuple):
    """The key material of one configuration, ready for use, by listener."""

    tls: Mapping[str, TlsSettings]
    contexts: Mapping[str, SSLContext]
    mappers: Mapping[str, PrincipalMapper]
    outgoing: Mapping[str, ClientSecurity]


class BrokerSecurity:
    """Owner: the broker loop. The network layer holds `listeners`, the clients of other brokers `outgoing`."""

    def __init__(self, configs: ConfigRepository, broker_id: int, cluster_id: str, secret: Secret[str]) -> None:
        """Raises ConfigError if a listener cannot be secured as it is configured."""
        config = configs.config
        self._configs = configs
        self._peer = SaslCredentials(KLAMM_PEER, str(broker_id), secret)
        self.mechanisms = SaslMechanisms(configs.user_credentials, secret)
        self._tls: Mapping[str, TlsSettings] = {}
        self._metrics: tuple[SSLContext, KeyPair | None] | None = None
        """The TLS of new connections to the metrics endpoint, and its key pair."""
        timeout_s = config.klamm_authentication_timeout_ms / 1000
        self.budget = FailureBudget(max_wait_s=timeout_s / 2)
        self.failures, peer = FailureLog(), _peer_settings(cluster_id, secret)
        self.listeners = {
            endpoint.listener: ListenerSecurity(
                endpoint.security_protocol,
                timeout_s=timeout_s,
                failure_delay_s=config.connection_failed_authentication_delay_ms / 1000,
                peer=peer,
                budget=self.budget,
                failures=self.failures,
            )
            for endpoint in config.endpoints
        }
        self.outgoing = OutgoingSecurity()
        for name, security in self.listeners.items():
            if security.has_sasl:
                settings = config.listener_settings(name)
                security.sasl = _naming(name, partial(self.mechanisms.settings_of, settings, config))
        self._apply(self._prepare(config, self._load(config)))
        configs.check = self._check
        configs.reload_files = self._reload

    def _prepare(self, config: KafkaConfig, tls: Mapping[str, TlsSettings]) -> _Material:
        """Read the key material that new connections need. Raises ConfigError."""
        if any(name.endswith(_CLIENT_AUTH) for name in config.dynamic):
            refuse_exposure(config)  # The start has checked the value of the broker's file only.
        contexts = {name: _naming(name, partial(server_context, settings)) for name, settings in tls.items()}
        mappers = {name: _mapper(config.listener_settings(name)) for name in tls}
        outgoing = self._outgoing(config)
        inter_broker = outgoing[config.inter_broker_listener].tls
        if inter_broker is not None:
            context = contexts[config.inter_broker_listener]
            host = _advertised_host(config)
            _naming(config.inter_broker_listener, partial(check_trusted, context, client_context(inter_broker), host))
        return _Material(tls, contexts, mappers, outgoing)

    def _apply(self, material: _Material) -> None:
        self._tls = material.tls
        for name, context in material.contexts.items():
            self.listeners[name].context = context
            self.listeners[name].mapper = material.mappers[name]
        self.outgoing.replace(material.outgoing)

    def _load(self, config: KafkaConfig) -> dict[str, TlsSettings]:
        return {
            name: _naming(name, partial(_server_tls, config.listener_settings(name), has_sasl=security.has_sasl))
            for name, security in self.listeners.items()
            if security.has_tls
        }

    def _outgoing(self, config: KafkaConfig) -> dict[str, ClientSecurity]:
        names = filter(None, (config.inter_broker_listener, config.control_plane_listener))
        return {
            name: replace(
                _naming(name, partial(_client_security, config, config.listener_settings(name))), peer=self._peer
            )
            for name in names
        }

    def metrics_context(self) -> SSLContext:
        """Return the TLS of the metrics endpoint: the broker's own keystore, also a later one. Raises ConfigError."""
        context, _ = self._metrics = _metrics_tls(self._configs.config)
        context.sni_callback = self._use_current
        return context

    def _use_current(self, connection: SSLObject | SSLSocket, _name: str | None, _context: SSLContext) -> None:
        """Give a new connection the last certificate. OpenSSL calls this also if the client names no host."""
        if self._metrics is not None:
            connection.context = self._metrics[0]

    def _check(self, config: KafkaConfig) -> None:
        """Raises ConfigError if the key material of a new configuration cannot replace the present one."""
        self._succeed(config, self._load(config))
        if self._metrics is not None:
            _metrics_tls(config)

    def _succeed(self, config: KafkaConfig, tls: Mapping[str, TlsSettings]) -> _Material:
        for name, new in tls.items():
            _naming(name, partial(_check_successor, config.listener_settings(name), self._tls[name], new))
        return self._prepare(config, tls)

    def _reload(self) -> None:
        """Read the files again. If nothing has changed, nothing else is done."""
        for reload in (self._reload_listeners, self._reload_metrics):
            try:
                changed = reload(self._configs.config)
            except ConfigError as error:
                log.error("new certificates are not used, the old ones stay in use: %s", error)
            else:
                if changed:
                    log.info("new connections to %s use new key material", changed)

    def _reload_listeners(self, config: KafkaConfig) -> str:
        """Return the names of the listeners that changed."""
        before = self._tls
        loaded = self._load(config)
        if loaded == before:
            return ""
        self._apply(self._succeed(config, loaded))
        return ", ".join(name for name, settings in loaded.items() if settings != before[name])

    def _reload_metrics(self, config: KafkaConfig) -> str:
        if self._metrics is None:
            return ""
        new = _metrics_tls(config)
        if new[1] == self._metrics[1]:
            return ""
        self._metrics = new
        return "the metrics endpoint"


def _metrics_tls(config: KafkaConfig) -> tuple[SSLContext, KeyPair | None]:
    given = {name: to_text(value) for name in TLS_KEYS if (value := config[name]) is not None}

    def make() -> tuple[SSLContext, KeyPair | None]:
        pair = client_key_pair(given)
        return server_context(TlsSettings(key_pair=pair)), pair

    return _naming("of the metrics", make)


def check_security(config: KafkaConfig) -> None:
    """Check what cannot change while a broker runs, before it uses ZooKeeper or a disk. Raises ConfigError.

    Keystores are checked later: ZooKeeper may name others than the broker's file.
    """
    if config.klamm_admit_unproven_peers:
        log.warning("klamm.admit.unproven.peers is set: this broker accepts peers without proof of their id")
    mechanisms = SaslMechanisms(UserCredentials(), Secret(""))
    for endpoint in config.endpoints:
        if endpoint.security_protocol in SASL:
            settings = config.listener_settings(endpoint.listener)
            _naming(endpoint.listener, partial(mechanisms.settings_of, settings, config))


def _naming(listener: str, make: Callable[[], T]) -> T:
    try:
        return make()
    except ConfigError as error:
        raise ConfigError(f"Listener {listener}: {error}") from None


def _texts(settings: ListenerSettings) -> dict[str, str]:
    return {name: to_text(value) for name, value in settings.tls_values().items()}


def _server_tls(settings: ListenerSettings, *, has_sasl: bool) -> TlsSettings:
    """With SASL, certificates of clients are asked for only by a setting of the listener itself (KIP-684)."""
    given = _texts(settings)
    if has_sasl and settings.own("ssl.client.auth") is None:
        given["ssl.client.auth"] = "none"
    return TlsSettings(
        key_pair=client_key_pair(given),
        trusted=client_trust(given),
        client_auth=given["ssl.client.auth"],
        protocols=tuple(given["ssl.enabled.protocols"].split(",")),
        cipher_suites=tuple(filter(None, given["ssl.cipher.suites"].split(","))),
    )


def _check_successor(settings: ListenerSettings, old: TlsSettings, new: TlsSettings) -> None:
    if old.key_pair is not None and new.key_pair is not None and old.key_pair != new.key_pair:
        check_successor(
            old.key_pair,
            new.key_pair,
            allows_subject=settings.value("ssl.allow.dn.changes") is True,
            allows_names=settings.value("ssl.allow.san.changes") is True,
        )


def _mapper(settings: ListenerSettings) -> PrincipalMapper:
    try:
        return PrincipalMapper.parse(to_text(settings.value("ssl.principal.mapping.rules")))
    except ValueError as error:
        raise ConfigError(
            f"Listener {settings.listener}: ssl.principal.mapping.rules is malformed: expected {error}."
        ) from None


def _client_security(config: KafkaConfig, settings: ListenerSettings) -> ClientSecurity:
    """Return how this broker connects to the same listener of other brokers."""
    protocol = config.security_protocol_map[settings.listener]
    if protocol is SecurityProtocol.PLAINTEXT:
        return ClientSecurity()
    given = _texts(settings) if protocol in TLS else {}
    mechanism = config.sasl_mechanism_inter_broker_protocol
    given |= {"security.protocol": protocol.name, "sasl.mechanism": mechanism}
    for name in ("sasl.jaas.config", "sasl.oauthbearer.token.endpoint.url"):
        if (value := settings.value(name, mechanism)) is not None:
            given[name] = to_text(value)
    return ClientSecurity.from_properties(given)


def _advertised_host(config: KafkaConfig) -> str:
    name = config.inter_broker_listener
    return next(endpoint.host for endpoint in config.advertised_endpoints if endpoint.listener == name)


def _peer_settings(cluster_id: str, secret: Secret[str]) -> SaslSettings:
    """The salt may be public and the same for all brokers: the secret is long and random."""
    salt = sha256(f"klamm peers of {cluster_id}".encode()).digest()
    salted = salted_password(SCRAM_SHA_256, secret.reveal(), salt, MIN_ITERATIONS)
    credential = credential_of(SCRAM_SHA_256, salted, salt, MIN_ITERATIONS)
    return SaslSettings({KLAMM_PEER: lambda: PeerServer(credential)})
