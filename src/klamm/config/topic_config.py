"""Topic configurations: validation of overrides, and the effective values with the broker's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from klamm.config.definition import AnyKey, did_you_mean
from klamm.config.kafka_config import BROKER_KEYS, KafkaConfig
from klamm.config.topic_keys import TOPIC_KEYS
from klamm.config.values import Value, to_text
from klamm.errors import ConfigError

_HOURS = 3_600_000
_SYNONYM_UNITS = {
    "log.retention.minutes": 60_000,
    "log.retention.hours": _HOURS,
    "log.roll.hours": _HOURS,
    "log.roll.jitter.hours": _HOURS,
}
KEEP_RECORDS: Final = MappingProxyType({"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"})
"""Used for a topic whose configuration cannot be decoded: the default could delete records that the topic keeps.

Compaction deletes records, too, so a default policy of `compact` does not apply.
"""
_LONGEST_MS: Final = str(100 * 365 * 24 * _HOURS)
"""Its sum with a time fits into 64 bits."""
SAFE_VALUES: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "retention.ms": {"retention.ms": "-1"},
        "retention.bytes": {"retention.bytes": "-1"},
        "cleanup.policy": KEEP_RECORDS,
        "delete.retention.ms": {"delete.retention.ms": _LONGEST_MS},
        "min.compaction.lag.ms": {"min.compaction.lag.ms": _LONGEST_MS},
    }
)
"""By setting: those that delete nothing, in place of an invalid value. A former value, as in Kafka, would differ
between brokers and be unknown after a restart (decision 0050)."""


def validate_topic_config(overrides: Mapping[str, str | None]) -> str | None:
    """Return the message for INVALID_CONFIG, or None if the overrides are valid."""
    for name, raw in overrides.items():
        if name not in TOPIC_KEYS:
            return f"{name} is not a topic configuration.{did_you_mean(name, TOPIC_KEYS)}"
        if raw is None:
            return f"{name} has no value: expected a value, or leave the key out for the default."
    try:
        typed = {name: TOPIC_KEYS[name].parse(raw) for name, raw in overrides.items()}
    except ConfigError as error:
        return str(error)
    return _relations(typed)


def _relations(typed: Mapping[str, Value]) -> str | None:
    low, high = typed.get("min.compaction.lag.ms", 0), typed.get("max.compaction.lag.ms")
    if isinstance(low, int) and isinstance(high, int) and low > high:
        return f"min.compaction.lag.ms cannot be {low}: expected at most max.compaction.lag.ms ({high})."
    return None


def effective_topic_config(overrides: Mapping[str, str], broker: KafkaConfig) -> dict[str, str]:
    """Return the value of every topic key as text, for `LogConfig.from_properties`.

    An unknown or invalid override, written to ZooKeeper by another tool, is ignored, but an invalid value never leads
    to the deletion of records.
    """
    effective = {name: topic_default(key, broker) for name, key in TOPIC_KEYS.items()}
    invalid = invalid_overrides(overrides)
    for name, raw in overrides.items():
        if name in TOPIC_KEYS and name not in invalid:
            effective[name] = TOPIC_KEYS[name].parse(raw)
    for name in invalid:
        for kept, text in SAFE_VALUES.get(name, {}).items():
            effective[kept] = TOPIC_KEYS[kept].parse(text)
    return {name: to_text(value) for name, value in effective.items()}


def invalid_overrides(overrides: Mapping[str, str]) -> dict[str, str]:
    """Return the reasons why overrides of known keys are invalid, by key."""
    invalid: dict[str, str] = {}
    for name, raw in overrides.items():
        if name in TOPIC_KEYS:
            try:
                TOPIC_KEYS[name].parse(raw)
            except ConfigError as error:
                invalid[name] = str(error)
    return invalid


def topic_default(key: AnyKey, broker: KafkaConfig) -> Value:
    """Return the default of a topic key: the strongest broker key that is set, in the topic key's unit."""
    for synonym in key.synonyms:
        value = synonym_value(synonym, broker[synonym])
        if value is not None:
            return value
    default: Value = key.default
    return default


def synonym_value(synonym: str, value: Value) -> Value:
    """Return a broker key's value in the unit of the topic key: hours and minutes become milliseconds."""
    unit = _SYNONYM_UNITS.get(synonym)
    if unit is None or not isinstance(value, int):
        return value
    return -1 if value < 0 else value * unit


assert all(synonym in BROKER_KEYS for key in TOPIC_KEYS.values() for synonym in key.synonyms)
