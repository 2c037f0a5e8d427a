"""The current configurations: the broker's static one, the dynamic ones above it, and the topics' overrides.

Owner: the broker loop. `/config/...` in ZooKeeper is authoritative. Its readers pass the decoded properties to
`set_topic` and `set_broker`, which replace the frozen values and then call the listeners. A topic or broker whose
configuration has not changed costs nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from klamm.config.client_quotas import ClientQuotas
from klamm.config.definition import AnyKey, Support, UpdateMode, did_you_mean
from klamm.config.kafka_config import BROKER_KEYS, KafkaConfig, broker_key
from klamm.config.listener_settings import LISTENER_KEYS
from klamm.config.topic_config import KEEP_RECORDS, SAFE_VALUES, effective_topic_config, invalid_overrides
from klamm.config.topic_keys import TOPIC_KEYS
from klamm.config.unsupported import unsupported
from klamm.config.user_credentials import UserCredentials
from klamm.errors import ConfigError

if TYPE_CHECKING:
    import asyncio

DEFAULT_BROKER: Final = "<default>"
_THREAD_COUNTS: Final = frozenset({"num.io.threads", "num.network.threads"})
TOPIC_DEFAULT_KEYS: Final = frozenset(synonym for key in TOPIC_KEYS.values() for synonym in key.synonyms)
"""The broker keys that give topics their defaults: a change of one concerns every log."""
_SAFE_DEFAULTS: Final = {
    TOPIC_KEYS[name].synonyms[0]: {TOPIC_KEYS[kept].synonyms[0]: value for kept, value in values.items()}
    for name, values in SAFE_VALUES.items()
}
_DEFAULT_POLICY: Final = TOPIC_KEYS["cleanup.policy"].synonyms[0]
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})

Reconfigure = Callable[[KafkaConfig, KafkaConfig], None]
RefreshTopics = Callable[[Iterable[str]], "asyncio.Future[None]"]
TopicListener = Callable[[str, Mapping[str, str]], None]

log = logging.getLogger("klamm.config")


class ConfigRepository:
    """`broker_id` is needed if ZooKeeper generated it; otherwise the configuration contains it."""

    def __init__(self, config: KafkaConfig, broker_id: int | None = None) -> None:
        self._config = config
        self._broker_name = str(config.broker_id if broker_id is None else broker_id)
        self._default: Mapping[str, str] = _NOTHING
        self._own: Mapping[str, str] = _NOTHING
        self._dynamic: Mapping[str, str] = _NOTHING
        self._is_policy_invalid = False
        """Whether the default `cleanup.policy` is invalid: perhaps it ignored the retention that topics have set."""
        self._topics: dict[str, Mapping[str, str]] = {}
        self.client_quotas: Final = ClientQuotas()
        self.user_credentials: Final = UserCredentials()
        self.check: Callable[[KafkaConfig], None] = lambda _: None
        """Raises ConfigError if the broker cannot use the files that a configuration names."""
        self.reload_files: Callable[[], None] = lambda: None
        """Reads the files again that the configuration names."""
        self._reconfigurables: list[tuple[frozenset[str], Reconfigure]] = []
        self._topic_listeners: list[TopicListener] = []
        self.refresh_topics: RefreshTopics | None = None
        """Reads overrides of topics again. A broker waits for it before it hosts a topic for the first time."""

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
        """Return the value of every topic key as text, for `LogConfig.from_properties`."""
        overrides = self.topic_overrides(topic)
        if self._is_policy_invalid and "cleanup.policy" not in overrides:
            overrides = {**overrides, **KEEP_RECORDS}
        return effective_topic_config(overrides, self._config)

    def on_change(self, keys: Iterable[str], reconfigure: Reconfigure) -> None:
        """Call `reconfigure(old, new)` after every change of one of the broker keys."""
        names = frozenset(keys)
        assert names <= BROKER_KEYS.keys()
        self._reconfigurables.append((names, reconfigure))

    def on_topic_change(self, listener: TopicListener) -> None:
        """Call `listener(topic, effective config)` after every change of a topic's overrides."""
        self._topic_listeners.append(listener)

    def set_topic(self, topic: str, overrides: Mapping[str, str] | None, *, is_news: bool = True) -> bool:
        """Replace a topic's overrides; None or an empty mapping removes them.

        Return whether anything changed. Without `is_news` the change is not logged: a starting broker reads settings
        that may be old.
        """
        new = MappingProxyType(dict(overrides or {}))
        old = self.topic_overrides(topic)
        if new == old:
            return False
        if is_news:
            _log_changes(f"topic {topic}", old, new, TOPIC_KEYS.get)
        for name, problem in invalid_overrides(new).items():
            log.warning("ignoring a setting of topic %s in ZooKeeper: %s", topic, problem)
            if name in SAFE_VALUES:
                kept = ", ".join(f"{key}={value}" for key, value in SAFE_VALUES[name].items())
                log.error("topic %s uses %s until %s is valid: the default could delete records", topic, kept, name)
        if new:
            self._topics[topic] = new
        else:
            del self._topics[topic]
        effective = self.topic_config(topic)
        for listener in self._topic_listeners:
            listener(topic, effective)
        return True

    def set_broker(self, name: str, overrides: Mapping[str, str] | None) -> bool:
        """Replace the dynamic settings of this broker or of `<default>`; those of other brokers are ignored.

        An invalid value, written by another tool, is logged and left out; the others apply.
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

    def file_problem(self, name: str, before: Mapping[str, str], after: Mapping[str, str]) -> str | None:
        """Return why this broker cannot secure its listeners after a change of its settings or of `<default>`.

        None if it can. The complete result is checked: without a removed setting, another one may come into effect.
        """
        if not _concern_listeners(before.items() ^ after.items()):
            return None
        dynamic = {**after, **self._own} if name == DEFAULT_BROKER else {**self._default, **after}
        try:
            self.check(self._config.with_dynamic(usable(self._config, dynamic)))
        except ConfigError as error:
            return str(error)
        return None

    def settle(self, name: str, value: str) -> None:
        """Set a value that the broker's file left open, so that queries return the real one."""
        self._config = self._config.with_static({name: value})

    def _rebuild(self) -> None:
        old = self._config
        wanted = {**self._default, **self._own}
        before, self._dynamic = self._dynamic, usable(old, wanted)
        self._config = new = old.with_dynamic(self._dynamic)
        _log_changes(f"broker {self._broker_name}", before, self._dynamic, broker_key)
        changed = {name for name in BROKER_KEYS if old[name] != new[name]}
        was_invalid = self._is_policy_invalid
        self._is_policy_invalid = wanted.get(_DEFAULT_POLICY) != self._dynamic.get(_DEFAULT_POLICY)
        if self._is_policy_invalid != was_invalid:
            changed.add(_DEFAULT_POLICY)
        for keys, reconfigure in self._reconfigurables:
            if keys & changed:
                reconfigure(old, new)
        if _concern_listeners(before.items() ^ self._dynamic.items()):
            self.reload_files()


def _concern_listeners(settings: Iterable[tuple[str, str]]) -> bool:
    return any((key := broker_key(name)) is not None and key.name in LISTENER_KEYS for name, _ in settings)


def _log_changes(
    whose: str, before: Mapping[str, str], after: Mapping[str, str], key_of: Callable[[str], AnyKey | None]
) -> None:
    """Log one line for every setting that was added, changed or removed. Secrets are not shown."""
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) == after.get(name):
            continue
        if name not in after:
            log.info("Configuration of %s: %s is no longer set", whose, name)
            continue
        key = key_of(name)
        is_public = key is not None and not key.is_sensitive
        log.info("Configuration of %s: %s is now %s", whose, name, after[name] if is_public else "[hidden]")
        if key is not None and key.support is Support.NO_EFFECT:
            log.warning("Configuration of %s: %s is accepted but has no effect in klamm", whose, name)


def usable(config: KafkaConfig, dynamic: Mapping[str, str]) -> dict[str, str]:
    """Return the valid dynamic settings that a running broker accepts.

    An invalid default of a topic setting that deletes records becomes one that deletes nothing.
    """
    good: dict[str, str] = {}
    kept: dict[str, str] = {}
    for name, value in dynamic.items():
        key = broker_key(name)
        try:
            if key is None or key.update_mode is UpdateMode.READ_ONLY:
                raise ConfigError(f"{name} cannot be changed while the broker runs.")
            new = config.with_dynamic({**good, name: value})
            if (problem := _lockout(new, {name})) is not None:
                raise ConfigError(problem)
        except ConfigError as error:
            log.warning("ignoring a dynamic setting in ZooKeeper: %s", error)
            if name in _SAFE_DEFAULTS:
                log.error("%s: no records are deleted for this setting until it is valid", name)
                kept |= _SAFE_DEFAULTS[name]
        else:
            good[name] = value
    good |= kept
    return good


def validate_broker_config(
    config: KafkaConfig, overrides: Mapping[str, str | None], *, per_broker: bool, current: Mapping[str, str]
) -> str | None:
    """Return the error message if a running broker cannot apply these dynamic settings, else None.

    `current` are the settings before the change: the size of a change is checked only for settings that differ from
    them.
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
    """Return why these settings are allowed only in the broker's file: no client could undo them."""
    if "max.connections.per.ip" in names and config.max_connections_per_ip < 1:
        return "max.connections.per.ip cannot be 0 while the broker runs: nobody could connect to change it back."
    overrides = config.max_connections_per_ip_by_address
    if "max.connections.per.ip.overrides" in names and any(limit < 1 for limit in overrides.values()):
        what = "max.connections.per.ip.overrides cannot have a limit of 0 while the broker runs"
        return f"{what}: set it in the broker's file."
    return None


def _refusal(name: str, value: str | None, *, per_broker: bool) -> str | None:
    key = broker_key(name)
    if key is None:
        what = unsupported(name)
        if what is not None:
            return f"{name} is not available: klamm does not support {what} yet."
        return f"{name} is not a broker configuration.{did_you_mean(name, BROKER_KEYS)}"
    if key.update_mode is UpdateMode.READ_ONLY and key.is_sensitive:
        reason = "it must not be stored in ZooKeeper. Set it in the broker's file"
        return f"{name} cannot be changed while the broker runs: {reason}."
    if key.update_mode is UpdateMode.READ_ONLY:
        return f"{name} cannot be changed while the broker runs: set it in the broker's file and restart."
    if key.update_mode is UpdateMode.PER_BROKER and not per_broker:
        return f"{name} cannot be the default of the cluster: set it for each broker."
    if value is None:
        return f"{name} has no value: expected a value, or leave the key out for the default."
    return None
