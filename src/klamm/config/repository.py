"""The current configurations: the broker's static one, the dynamic ones above it, and the topics' overrides.

Owner: the broker loop. `/config/...` of ZooKeeper is the truth. Its readers pass the decoded properties to `set_topic`
and `set_broker`, which replace the frozen values and then call the listeners. A topic or broker whose configuration
has not changed costs nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from klamm.config.definition import AnyKey, Support, UpdateMode, did_you_mean
from klamm.config.kafka_config import BROKER_KEYS, KafkaConfig
from klamm.config.topic_config import effective_topic_config
from klamm.config.topic_keys import TOPIC_KEYS
from klamm.config.unsupported import unsupported
from klamm.errors import ConfigError

if TYPE_CHECKING:
    import asyncio

DEFAULT_BROKER: Final = "<default>"
_THREAD_COUNTS: Final = frozenset({"num.io.threads", "num.network.threads"})
TOPIC_DEFAULT_KEYS: Final = frozenset(synonym for key in TOPIC_KEYS.values() for synonym in key.synonyms)
"""The broker keys that give topics their defaults: a change of one concerns every log."""
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})

Reconfigure = Callable[[KafkaConfig, KafkaConfig], None]
RefreshTopics = Callable[[Iterable[str]], "asyncio.Future[None]"]
TopicListener = Callable[[str, Mapping[str, str]], None]

log = logging.getLogger("klamm.config")


class ConfigRepository:
    """`broker_id` is needed when ZooKeeper generated it; else the configuration says it."""

    def __init__(self, config: KafkaConfig, broker_id: int | None = None) -> None:
        self._config = config
        self._broker_name = str(config.broker_id if broker_id is None else broker_id)
        self._default: Mapping[str, str] = _NOTHING
        self._own: Mapping[str, str] = _NOTHING
        self._dynamic: Mapping[str, str] = _NOTHING
        self._topics: dict[str, Mapping[str, str]] = {}
        self._reconfigurables: list[tuple[frozenset[str], Reconfigure]] = []
        self._topic_listeners: list[TopicListener] = []
        self.refresh_topics: RefreshTopics | None = None
        """Reads topics' overrides again; a broker awaits it before it hosts a topic for the first time."""

    @property
    def config(self) -> KafkaConfig:
        """The broker's configuration now. Read it when a value is needed; do not keep it."""
        return self._config

    @property
    def default_broker_overrides(self) -> Mapping[str, str]:
        return self._default

    @property
    def broker_overrides(self) -> Mapping[str, str]:
        return self._own

    def topic_overrides(self, topic: str) -> Mapping[str, str]:
        return self._topics.get(topic, _NOTHING)

    def topics_with_overrides(self) -> tuple[str, ...]:
        return tuple(self._topics)

    def topic_config(self, topic: str) -> dict[str, str]:
        """The value of every topic key as text, for `LogConfig.from_properties`."""
        return effective_topic_config(self.topic_overrides(topic), self._config)

    def on_change(self, keys: Iterable[str], reconfigure: Reconfigure) -> None:
        """Calls `reconfigure(old, new)` after a change of one of the broker keys."""
        names = frozenset(keys)
        assert names <= BROKER_KEYS.keys()
        self._reconfigurables.append((names, reconfigure))

    def on_topic_change(self, listener: TopicListener) -> None:
        """Calls `listener(topic, effective config)` after a change of the topic's overrides."""
        self._topic_listeners.append(listener)

    def set_topic(self, topic: str, overrides: Mapping[str, str] | None, *, is_news: bool = True) -> bool:
        """Replaces a topic's overrides (None or empty: none are left); says whether anything changed.

        Without `is_news` the log does not tell of it: a broker that starts reads what may have been set long ago.
        """
        new = MappingProxyType(dict(overrides or {}))
        old = self.topic_overrides(topic)
        if new == old:
            return False
        if is_news:
            _log_changes(f"topic {topic}", old, new, TOPIC_KEYS)
        if new:
            self._topics[topic] = new
        else:
            del self._topics[topic]
        effective = self.topic_config(topic)
        for listener in self._topic_listeners:
            listener(topic, effective)
        return True

    def set_broker(self, name: str, overrides: Mapping[str, str] | None) -> bool:
        """Replaces the dynamic settings of this broker or of `<default>`; those of other brokers are not kept.

        A value that cannot be used (another tool wrote it) is logged and left out; the rest holds.
        """
        new = MappingProxyType(dict(overrides or {}))
        if name == DEFAULT_BROKER:
            changed, self._default = new != self._default, new
        elif name == self._broker_name:
            changed, self._own = new != self._own, new
        else:
            return False
        if changed:
            self._rebuild()
        return changed

    def settle(self, name: str, value: str) -> None:
        """Set a value that the broker's file left open, so that queries return the real one."""
        self._config = self._config.with_static({name: value})

    def _rebuild(self) -> None:
        old = self._config
        before, self._dynamic = self._dynamic, usable(old, {**self._default, **self._own})
        self._config = new = old.with_dynamic(self._dynamic)
        _log_changes(f"broker {self._broker_name}", before, self._dynamic, BROKER_KEYS)
        changed = {name for name in BROKER_KEYS if old[name] != new[name]}
        for keys, reconfigure in self._reconfigurables:
            if keys & changed:
                reconfigure(old, new)


def _log_changes(whose: str, before: Mapping[str, str], after: Mapping[str, str], keys: Mapping[str, AnyKey]) -> None:
    """One line for every setting that came, changed or went."""
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) == after.get(name):
            continue
        if name not in after:
            log.info("Configuration of %s: %s is no longer set", whose, name)
            continue
        log.info("Configuration of %s: %s is now %s", whose, name, after[name])
        if name in keys and keys[name].support is Support.NO_EFFECT:
            log.warning("Configuration of %s: %s is accepted but has no effect in klamm", whose, name)


def usable(config: KafkaConfig, dynamic: Mapping[str, str]) -> dict[str, str]:
    """The dynamic settings that parse and that a running broker may take."""
    good: dict[str, str] = {}
    for name, value in dynamic.items():
        key = BROKER_KEYS.get(name)
        try:
            if key is None or key.update_mode is UpdateMode.READ_ONLY:
                raise ConfigError(f"{name} cannot be changed while the broker runs.")
            new = config.with_dynamic({**good, name: value})
            if (problem := _lockout(new, {name})) is not None:
                raise ConfigError(problem)
        except ConfigError as error:
            log.warning("A dynamic setting in ZooKeeper is left out: %s", error)
        else:
            good[name] = value
    return good


def validate_broker_config(
    config: KafkaConfig, overrides: Mapping[str, str | None], *, per_broker: bool, current: Mapping[str, str]
) -> str | None:
    """None when a running broker can take these dynamic settings, else the sentence that goes with the error.

    `current` are the settings in place before the change: only what differs from them is checked for its size of step.
    """
    for name, value in overrides.items():
        if (problem := _refusal(name, value, per_broker=per_broker)) is not None:
            return problem
    try:
        new = config.with_dynamic({name: value for name, value in overrides.items() if value is not None})
    except ConfigError as error:
        return str(error).removeprefix("dynamic configuration: ")
    if (problem := _lockout(new, overrides.keys())) is not None:
        return problem
    for name in sorted(_THREAD_COUNTS & overrides.keys()):
        old_count, count = config[name], new[name]
        assert isinstance(old_count, int) and isinstance(count, int)
        if overrides[name] != current.get(name) and not old_count / 2 <= count <= old_count * 2:
            return (
                f"{name} cannot go from {old_count} to {count} at once: "
                f"expected a number from {-(-old_count // 2)} to {old_count * 2}."
            )
    return None


def _lockout(config: KafkaConfig, names: Collection[str]) -> str | None:
    """Why these settings may only stand in the broker's file: no client could take them back."""
    if "max.connections.per.ip" in names and config.max_connections_per_ip < 1:
        return "max.connections.per.ip cannot be 0 while the broker runs: nobody could connect to change it back."
    overrides = config.max_connections_per_ip_by_address
    if "max.connections.per.ip.overrides" in names and any(limit < 1 for limit in overrides.values()):
        return "max.connections.per.ip.overrides cannot have a limit of 0 while the broker runs: set it in its file."
    return None


def _refusal(name: str, value: str | None, *, per_broker: bool) -> str | None:
    key = BROKER_KEYS.get(name)
    if key is None:
        what = unsupported(name)
        if what is not None:
            return f"{name} is not available: klamm does not support {what} yet."
        return f"{name} is not a broker configuration.{did_you_mean(name, BROKER_KEYS)}"
    if key.update_mode is UpdateMode.READ_ONLY:
        return f"{name} cannot be changed while the broker runs: set it in the broker's file and restart."
    if key.update_mode is UpdateMode.PER_BROKER and not per_broker:
        return f"{name} cannot be the default of the cluster: set it for each broker."
    if value is None:
        return f"{name} has no value: expected a value, or leave the key out for the default."
    return None
