"""The security of the connection with ZooKeeper, derived from a broker's configuration.

Errors raise ConfigError and do not show secrets.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from klamm.config import KafkaConfig
from klamm.errors import ConfigError
from klamm.model import is_loopback
from klamm.server import file_limit
from klamm.zk.client.zk_security import Login, ZkSecurity

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from klamm.security.secret import Secret
    from klamm.security.tls.contexts import TlsSettings
    from klamm.zk.server.server import ServerOptions

_LATEST: Final = "TLSv1.3"


def client(config: KafkaConfig) -> ZkSecurity:
    tls = None
    if config.zookeeper_ssl_client_enable:
        from klamm.security.tls.contexts import client_context

        tls = client_context(_tls(config))
    return ZkSecurity(tls, _digest(config), _sasl(config), config.zookeeper_set_acl)


def embedded_server(config: KafkaConfig) -> ServerOptions:
    """Return the options of the embedded server: it requires the digest of its brokers, and uses TLS if they do.

    Its connections have a share of the broker's file descriptors.
    """
    from klamm.zk.server.server import ServerOptions
    from klamm.zk.server.shared_secret import OPEN_GATE, Gate

    _digest(config)
    secret = config.klamm_zookeeper_digest
    tls = None
    if config.zookeeper_ssl_client_enable:
        from klamm.security.tls.contexts import server_context

        tls = server_context(_tls(config))
    elif not is_loopback(host := config.klamm_zookeeper_embedded_host):
        log.warning(
            "the embedded ZooKeeper listens on %s without TLS: klamm.zookeeper.digest crosses the network in clear "
            "text. Set zookeeper.ssl.client.enable=true on all brokers.",
            host,
        )
    gate = OPEN_GATE if secret is None else Gate(secret)
    room = file_limit.zookeeper_connections()
    return ServerOptions(max_connections=room, gate=gate, guards_znodes=config.zookeeper_set_acl, tls=tls)


def _digest(config: KafkaConfig) -> Login | None:
    text = config.klamm_zookeeper_digest
    if text is None:
        return None
    try:
        return Login.parse(text)
    except ValueError as error:
        raise ConfigError(f"klamm.zookeeper.digest cannot be [hidden]: expected {error}.") from None


def _sasl(config: KafkaConfig) -> Login | None:
    key, text = "klamm.zookeeper.sasl.jaas.config", config.klamm_zookeeper_sasl_jaas_config
    if text is None:
        return None
    from klamm.security.sasl.jaas import parse_jaas

    options = parse_jaas(key, text).options
    username, password = options.get("username"), options.get("password")
    if not username or not password:
        raise ConfigError(f"{key} is incomplete: expected the options username and password.")
    return Login(username, password)


def _tls(config: KafkaConfig) -> TlsSettings:
    from klamm.security.tls.contexts import TlsSettings
    from klamm.security.tls.stores import StoreSource, load_certificates, load_key_pair

    keystore, truststore = config.zookeeper_ssl_keystore_location, config.zookeeper_ssl_truststore_location
    pair = None
    if keystore:
        kind, password = config.zookeeper_ssl_keystore_type, _secret(config.zookeeper_ssl_keystore_password)
        pair = load_key_pair(StoreSource("zookeeper.ssl.keystore.location", keystore, kind, password))
    trusted = None
    if truststore:
        kind, password = config.zookeeper_ssl_truststore_type, _secret(config.zookeeper_ssl_truststore_password)
        trusted = load_certificates(StoreSource("zookeeper.ssl.truststore.location", truststore, kind, password))
    first = config.zookeeper_ssl_protocol
    return TlsSettings(
        key_pair=pair,
        trusted=trusted,
        checks_hostname=config.zookeeper_ssl_endpoint_identification_algorithm.upper() == "HTTPS",
        protocols=config.zookeeper_ssl_enabled_protocols or ((_LATEST,) if first == _LATEST else ("TLSv1.2", _LATEST)),
        cipher_suites=config.zookeeper_ssl_cipher_suites,
    )


def _secret(text: str | None) -> Secret[str] | None:
    from klamm.security.secret import Secret

    return Secret(text) if text else None
