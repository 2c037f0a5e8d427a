"""Settings of one listener or of one of its mechanisms: `listener.name.<name>.[<mechanism>.]<key>`, as in Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from klamm.config.definition import AnyKey, collect_keys
from klamm.config.security_keys import SaslKeys, TlsKeys
from klamm.config.values import Value

PREFIX: Final = "listener.name."
MECHANISMS: Final = ("plain", "scram-sha-256", "scram-sha-512", "oauthbearer")
_NOT_PER_LISTENER: Final = frozenset(
    {"sasl.mechanism.inter.broker.protocol", "connection.failed.authentication.delay.ms"}
)
LISTENER_KEYS: Final[Mapping[str, AnyKey]] = {
    name: key for name, key in collect_keys(TlsKeys, SaslKeys).items() if name not in _NOT_PER_LISTENER
}
"""The keys that can have the prefix of a listener."""


class ListenerSetting(NamedTuple):
    """The parts of a prefixed name. `listener` is upper case, `mechanism` lower case or None."""

    listener: str
    mechanism: str | None
    key: AnyKey


def parse_name(name: str) -> ListenerSetting | None:
    """Return the parts of a prefixed name; None if it is not one."""
    if not name.startswith(PREFIX):
        return None
    for key_name, key in LISTENER_KEYS.items():
        if name.endswith(f".{key_name}"):
            scope = name[len(PREFIX) : -len(key_name) - 1]
            mechanism = next((m for m in MECHANISMS if scope.endswith(f".{m}")), None)
            listener = scope if mechanism is None else scope[: -len(mechanism) - 1]
            return ListenerSetting(listener.upper(), mechanism, key) if listener else None
    return None


class ListenerSettings:
    """The settings of one listener: its own settings if they are set, else those of the broker."""

    def __init__(self, listener: str, own: Mapping[tuple[str | None, str], Value], broker: Mapping[str, Value]) -> None:
        self.listener = listener
        self._own = own
        self._broker = broker

    def value(self, name: str, mechanism: str | None = None) -> Value:
        """Return the value of a key, for one mechanism if it is given."""
        if mechanism is not None and (mechanism.lower(), name) in self._own:
            return self._own[mechanism.lower(), name]
        if (None, name) in self._own:
            return self._own[None, name]
        return self._broker[name]

    def own(self, name: str, mechanism: str | None = None) -> Value:
        """Return the value that is given for this listener, or for its mechanism; None if there is none."""
        scope = None if mechanism is None else mechanism.lower()
        return self._own.get((scope, name))

    def tls_values(self) -> dict[str, Value]:
        """Return all keys of TLS that have a value."""
        names = (name for name in LISTENER_KEYS if name.startswith("ssl."))
        return {name: value for name in names if (value := self.value(name)) is not None}

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ListenerSettings)
            and self.listener == other.listener
            and self._own == other._own
            and self._broker == other._broker
        )

    __hash__ = None  # type: ignore[assignment]
