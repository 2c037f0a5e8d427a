"""LoginSettings: the settings of brokers that decide which users can log in, and which of them brokers need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from klamm.model import SecurityProtocol
from klamm.security.sasl.mechanisms import SCRAM

if TYPE_CHECKING:
    from klamm.config import KafkaConfig

_SASL: Final = (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)
_MECHANISMS: Final = "sasl.enabled.mechanisms"
_KEYS: Final = frozenset(
    {
        "listeners",
        "advertised.listeners",
        "listener.security.protocol.map",
        "inter.broker.listener.name",
        "security.inter.broker.protocol",
        "control.plane.listener.name",
        "sasl.mechanism.inter.broker.protocol",
        "super.users",
        _MECHANISMS,
    }
)


@dataclass(frozen=True, slots=True)
class LoginSettings:
    """`mechanisms` are those of the listeners with SASL; without one there are none.

    `between_brokers` is the SASL mechanism by which brokers log in to each other, and `brokers_user` their name. It is
    None if it is unknown, because brokers do not show it.
    """

    mechanisms: tuple[str, ...]
    super_users: frozenset[str]
    between_brokers: str | None
    brokers_user: str | None = None

    @property
    def scram(self) -> list[str]:
        return [each for each in SCRAM if each in self.mechanisms]


def of_config(config: KafkaConfig) -> LoginSettings:
    """Return the settings of one broker's configuration."""
    from klamm.config.authorizer_keys import super_users

    found: dict[str, None] = {}
    between = None
    for endpoint in config.endpoints:
        if endpoint.security_protocol in _SASL:
            enabled = config.listener_settings(endpoint.listener).value(_MECHANISMS)
            assert isinstance(enabled, tuple)
            found.update(dict.fromkeys(map(str.upper, enabled)))
            if endpoint.listener == config.inter_broker_listener:
                between = config.sasl_mechanism_inter_broker_protocol.upper()
    supers = frozenset(each.removeprefix("User:") for each in super_users(config.super_users))
    return LoginSettings(tuple(found), supers, between, _brokers_user(config, between))


def _brokers_user(config: KafkaConfig, mechanism: str | None) -> str | None:
    from klamm.errors import ConfigError
    from klamm.security.sasl.jaas import parse_jaas

    settings = config.listener_settings(config.inter_broker_listener)
    text = None if mechanism is None else settings.value("sasl.jaas.config", mechanism)
    if text is None:
        return None
    try:
        return parse_jaas("sasl.jaas.config", str(text)).options.get("username")
    except ConfigError:
        return None


def of_brokers(servers: str) -> LoginSettings | None:
    """Ask the first broker that answers; None if its settings cannot be read, for example without the right to.

    Fails with a sentence if no broker answers.
    """
    from klamm.cli.broker_requests import ask_any, broker_settings
    from klamm.cli.client import TIMEOUT_S
    from klamm.config import KafkaConfig
    from klamm.errors import ConfigError, ErrorCode
    from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse

    request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
    for node in ask_any(servers, request, 9, MetadataResponse).brokers:
        try:
            result = broker_settings((node.host, node.port), node.node_id, None, TIMEOUT_S)
        except OSError:
            continue
        if result.error_code != ErrorCode.NONE:
            return None
        given = {entry.name: entry.value for entry in result.configs if entry.value and _is_needed(entry.name)}
        try:
            return of_config(KafkaConfig(given))
        except ConfigError:
            return None
    return None


def _is_needed(name: str) -> bool:
    return name in _KEYS or name.endswith(f".{_MECHANISMS}")
