"""Configurations as DescribeConfigs shows them: each value with its source and its synonyms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from enum import IntEnum
from typing import Final

from klamm.config.definition import AnyKey, UpdateMode
from klamm.config.kafka_config import BROKER_KEYS, broker_key
from klamm.config.repository import ConfigRepository
from klamm.config.shown_url import shown_url
from klamm.config.topic_config import effective_topic_config
from klamm.config.topic_keys import TOPIC_KEYS
from klamm.config.values import ConfigType, to_text
from klamm.lazy_dataclass import lazy_dataclass

_BROKER_SYNONYMS: Final = {
    "log.retention.ms": ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    "log.retention.minutes": ("log.retention.minutes", "log.retention.hours"),
    "log.roll.ms": ("log.roll.ms", "log.roll.hours"),
    "log.roll.jitter.ms": ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    "log.flush.interval.ms": ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
}
"""Broker keys whose default is another broker key, strongest first."""
_LISTENER_KEYS: Final = frozenset({"listeners", "advertised.listeners", "listener.security.protocol.map"})
"""Not read-only in Kafka, so tools that compare brokers expect the same here. They change by a restart (0020)."""


_ADDRESSES: Final = ("sasl.oauthbearer.jwks.endpoint.url", "sasl.oauthbearer.token.endpoint.url")
"""Keys, also with the prefix of a listener, whose value may contain a secret."""


class ConfigSource(IntEnum):
    """The numbers are those of DescribeConfigs on the wire."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6


@lazy_dataclass(frozen=True, slots=True)
class ConfigSynonym:
    name: str
    value: str | None
    source: ConfigSource


@lazy_dataclass(frozen=True, slots=True)
class ConfigEntry:
    """`value` is None for a key without a value and for a sensitive one."""

    name: str
    value: str | None
    source: ConfigSource
    is_read_only: bool
    is_sensitive: bool
    synonyms: tuple[ConfigSynonym, ...]
    kind: ConfigType
    documentation: str


def topic_entries(
    configs: ConfigRepository, overrides: Mapping[str, str], names: Iterable[str] | None = None
) -> Iterator[ConfigEntry]:
    """Return every topic key (or those of `names` that exist) with its value for a topic with these overrides."""
    effective = effective_topic_config(overrides, configs.config)
    for key in _chosen(TOPIC_KEYS.values(), names):
        synonyms = tuple(s for synonym in key.synonyms for s in _broker_synonyms(configs, synonym))
        if key.name in overrides:
            own = ConfigSynonym(key.name, overrides[key.name], ConfigSource.DYNAMIC_TOPIC_CONFIG)
            synonyms = (own, *synonyms)
        yield _entry(key, effective[key.name], synonyms, is_read_only=False)


def broker_entries(configs: ConfigRepository, names: Iterable[str] | None = None) -> Iterator[ConfigEntry]:
    """Return every broker key (or those of `names` that exist) with its value for this broker."""
    for key in _chosen(BROKER_KEYS.values(), names):
        chain = _BROKER_SYNONYMS.get(key.name, (key.name,))
        synonyms = tuple(s for synonym in chain for s in _broker_synonyms(configs, synonym))
        value = configs.config[key.name]
        text = None if value is None else to_text(value)
        is_read_only = key.update_mode is UpdateMode.READ_ONLY and key.name not in _LISTENER_KEYS
        yield _entry(key, text, synonyms, is_read_only=is_read_only)
    yield from _listener_entries(configs, names)


def _listener_entries(configs: ConfigRepository, names: Iterable[str] | None) -> Iterator[ConfigEntry]:
    """Return the settings with the prefix of a listener, as far as they are set."""
    given = {**configs.config.static, **configs.config.dynamic}
    prefixed = sorted(name for name in given if name not in BROKER_KEYS)
    keys = (replace(key, name=name) for name in prefixed if (key := broker_key(name)) is not None)
    for key in _chosen(keys, names):
        is_read_only = key.update_mode is UpdateMode.READ_ONLY
        synonyms = tuple(_set_synonyms(configs, key.name))
        yield _entry(key, given[key.name], synonyms, is_read_only=is_read_only)


def default_broker_entries(configs: ConfigRepository, names: Iterable[str] | None = None) -> Iterator[ConfigEntry]:
    """Return the dynamic defaults of all brokers."""
    given = configs.default_broker_overrides
    for key in _chosen((BROKER_KEYS[name] for name in sorted(given) if name in BROKER_KEYS), names):
        own = ConfigSynonym(key.name, given[key.name], ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
        yield _entry(key, given[key.name], (own,), is_read_only=False)


def _chosen(keys: Iterable[AnyKey], names: Iterable[str] | None) -> Iterator[AnyKey]:
    wanted = None if names is None else frozenset(names)
    return (key for key in keys if wanted is None or key.name in wanted)


def _broker_synonyms(configs: ConfigRepository, name: str) -> Iterator[ConfigSynonym]:
    """Return the sources in which a broker key has a value, strongest first."""
    key = BROKER_KEYS[name]
    yield from _set_synonyms(configs, name)
    if key.default_text is not None:
        yield ConfigSynonym(name, key.default_text, ConfigSource.DEFAULT_CONFIG)


def _set_synonyms(configs: ConfigRepository, name: str) -> Iterator[ConfigSynonym]:
    if name in configs.broker_overrides:
        yield ConfigSynonym(name, configs.broker_overrides[name], ConfigSource.DYNAMIC_BROKER_CONFIG)
    if name in configs.default_broker_overrides:
        yield ConfigSynonym(name, configs.default_broker_overrides[name], ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
    if name in configs.config.static:
        yield ConfigSynonym(name, configs.config.static[name], ConfigSource.STATIC_BROKER_CONFIG)


def _entry(key: AnyKey, value: str | None, synonyms: tuple[ConfigSynonym, ...], *, is_read_only: bool) -> ConfigEntry:
    if key.is_sensitive:
        value, synonyms = None, tuple(ConfigSynonym(s.name, None, s.source) for s in synonyms)
    elif value is not None and key.name.endswith(_ADDRESSES):
        value = shown_url(value)
        synonyms = tuple(ConfigSynonym(s.name, s.value and shown_url(s.value), s.source) for s in synonyms)
    return ConfigEntry(
        key.name,
        value,
        synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
        is_read_only,
        key.is_sensitive,
        synonyms,
        key.kind,
        key.doc,
    )
