"""Refuses to start a broker that others could use without proving who they are. Pure.

A listener that only this machine reaches needs no authentication. Any other one needs SASL, or TLS with certificates of
clients, unless `klamm.allow.unauthenticated.listeners` accepts the risk. Tokens without a signature are not
authentication: everybody can make them.
"""

from __future__ import annotations

from typing import Final

from klamm.config import KafkaConfig
from klamm.errors import ConfigError
from klamm.model import EndPoint, SecurityProtocol, is_loopback
from klamm.security.sasl.mechanisms import OAUTHBEARER

_SASL: Final = (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)
_ACCEPT: Final = "klamm.allow.unauthenticated.listeners=true"


def refuse_exposure(config: KafkaConfig) -> None:
    """Raise ConfigError, with the settings that solve the problem."""
    if config.klamm_allow_unauthenticated_listeners:
        return
    for endpoint in config.endpoints:
        if not is_loopback(endpoint.host) and not _is_authenticated(config, endpoint):
            accepts_unsigned = _accepts_unsigned_tokens(config, endpoint)
            raise ConfigError(_unsigned_sentence(endpoint) if accepts_unsigned else _sentence(endpoint))
    if config.klamm_metrics_port >= 0 and not is_loopback(config.klamm_metrics_host):
        _refuse_open_metrics(config)


def _is_authenticated(config: KafkaConfig, endpoint: EndPoint) -> bool:
    if endpoint.security_protocol in _SASL:
        return not _accepts_unsigned_tokens(config, endpoint) or _requires_own_certificate(config, endpoint)
    return endpoint.security_protocol is SecurityProtocol.SSL and _requires_certificate(config, endpoint.listener)


def _requires_certificate(config: KafkaConfig, listener: str) -> bool:
    return config.listener_settings(listener).value("ssl.client.auth") == "required"


def _requires_own_certificate(config: KafkaConfig, endpoint: EndPoint) -> bool:
    """Whether a listener with SASL and TLS requires a certificate too: by a setting of its own (KIP-684)."""
    settings = config.listener_settings(endpoint.listener)
    return endpoint.security_protocol is SecurityProtocol.SASL_SSL and settings.own("ssl.client.auth") == "required"


def _accepts_unsigned_tokens(config: KafkaConfig, endpoint: EndPoint) -> bool:
    if endpoint.security_protocol not in _SASL or not config.klamm_sasl_oauthbearer_unsecured_tokens:
        return False
    mechanisms = config.listener_settings(endpoint.listener).value("sasl.enabled.mechanisms")
    assert isinstance(mechanisms, tuple)
    return OAUTHBEARER in map(str.upper, mechanisms)


def _host(endpoint: EndPoint) -> str:
    return f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host


def _others(endpoint: EndPoint) -> str:
    return "every address of this machine" if not endpoint.host else f"{_host(endpoint)}, which is not loopback"


def _unsigned_sentence(endpoint: EndPoint) -> str:
    host = _host(endpoint)
    return (
        f"The listener {endpoint.listener}://{host}:{endpoint.port} would accept unsigned OAUTHBEARER tokens, which "
        f"everybody can make, on {_others(endpoint)}. To require signed tokens:\n"
        "  klamm.sasl.oauthbearer.unsecured.tokens=false\n"
        "  sasl.oauthbearer.jwks.endpoint.url=URL\n"
        "To serve this machine only:\n"
        f"  listeners={endpoint.listener}://localhost:{endpoint.port}\n"
        "To accept that everyone who can connect may act as any user:\n"
        f"  {_ACCEPT}"
    )


def _sentence(endpoint: EndPoint) -> str:
    host = _host(endpoint)
    return (
        f"The listener {endpoint.listener}://{host}:{endpoint.port} would accept clients without authentication on "
        f"{_others(endpoint)}. "
        "To require a user and a password, set these lines (docs/how-to/security.md has the rest):\n"
        f"  listeners=SASL_SSL://{host}:{endpoint.port}\n"
        "  sasl.enabled.mechanisms=SCRAM-SHA-512\n"
        "To serve this machine only:\n"
        f"  listeners={endpoint.listener}://localhost:{endpoint.port}\n"
        "To accept that everyone who can connect may read, write and delete everything:\n"
        f"  {_ACCEPT}"
    )


def _refuse_open_metrics(config: KafkaConfig) -> None:
    missing = []
    if not config.klamm_metrics_ssl_enable:
        missing.append("  klamm.metrics.ssl.enable=true")
    if config.klamm_metrics_basic_auth is None:
        missing.append("  klamm.metrics.basic.auth=USER:PASSWORD")
    if missing:
        lines = "\n".join(missing)
        raise ConfigError(
            f"The metrics endpoint on {config.klamm_metrics_host}, which is not loopback, needs TLS and a password:\n"
            f"{lines}\nTo accept that everyone who can connect may read the metrics:\n  {_ACCEPT}"
        )
