"""Refuses to start a broker that others could use without proving who they are. Pure.

A listener that only this machine reaches needs no authentication. Any other one needs SASL, or TLS with certificates of
clients, unless `klamm.allow.unauthenticated.listeners` accepts the risk.
"""

from __future__ import annotations

from typing import Final

from klamm.config import KafkaConfig
from klamm.errors import ConfigError
from klamm.model import EndPoint, SecurityProtocol, is_loopback

_SASL: Final = (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)
_ACCEPT: Final = "klamm.allow.unauthenticated.listeners=true"


def refuse_exposure(config: KafkaConfig) -> None:
    """Raise ConfigError, with the settings that solve the problem."""
    if config.klamm_allow_unauthenticated_listeners:
        return
    for endpoint in config.endpoints:
        if not is_loopback(endpoint.host) and not _is_authenticated(config, endpoint):
            raise ConfigError(_sentence(endpoint))
    if config.klamm_metrics_port >= 0 and not is_loopback(config.klamm_metrics_host):
        _refuse_open_metrics(config)


def _is_authenticated(config: KafkaConfig, endpoint: EndPoint) -> bool:
    if endpoint.security_protocol in _SASL:
        return True
    return endpoint.security_protocol is SecurityProtocol.SSL and _requires_certificate(config, endpoint.listener)


def _requires_certificate(config: KafkaConfig, listener: str) -> bool:
    return config.listener_settings(listener).value("ssl.client.auth") == "required"


def _sentence(endpoint: EndPoint) -> str:
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    where = f"{endpoint.listener}://{host}:{endpoint.port}"
    others = "every address of this machine" if not endpoint.host else f"{host}, which is not loopback"
    return (
        f"The listener {where} would accept clients without authentication on {others}. "
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
