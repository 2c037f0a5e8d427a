"""Client quotas as they are configured: for users, client ids, pairs of both, and the defaults of each.

Owner: the broker loop. `/config/users` and `/config/clients` in ZooKeeper are authoritative; their readers pass the
decoded quotas to `set_entity` and `replace_all`. `QuotaLimits.match` answers which quota applies to a client.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
WHOLE_NUMBERS: Final = frozenset({PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE})
QUOTA_KEYS: Final = {
    PRODUCER_BYTE_RATE: "Bytes per second that a producer may send to a broker.",
    CONSUMER_BYTE_RATE: "Bytes per second that a consumer may fetch from a broker.",
    REQUEST_PERCENTAGE: "Share of a broker's time that requests may take, in percent.",
    CONTROLLER_MUTATION_RATE: "Partitions per second that may be created or deleted.",
}
DEFAULT: Final = ""
"""The name of a default. Names of users and client ids in quotas are never empty."""
MAX_LONG: Final = 2**63 - 1
_NOTHING: Final[Mapping[str, float]] = MappingProxyType({})

log = logging.getLogger("klamm.config")


class QuotaEntity(NamedTuple):
    """The holder of a quota: a user, a client id, or both. `DEFAULT` stands for all without their own quota."""

    user: str | None = None
    client_id: str | None = None

    def __str__(self) -> str:
        parts = (("user", self.user), ("client id", self.client_id))
        return ", ".join(f"{kind} {name or '<default>'}" for kind, name in parts if name is not None)


class QuotaLimits:
    """The limits of one key, by entity."""

    __slots__ = ("_by_entity",)

    def __init__(self) -> None:
        self._by_entity: dict[tuple[str | None, str | None], float] = {}

    def __bool__(self) -> bool:
        return bool(self._by_entity)

    def set(self, entity: QuotaEntity, limit: float | None) -> None:
        if limit is None:
            self._by_entity.pop(entity, None)
        else:
            self._by_entity[entity] = limit

    def match(self, user: str, client_id: str) -> tuple[QuotaEntity, float] | None:
        """Return the account that a client uses and its limit; None if no quota applies.

        All clients with the same account share its limit: those of one user with a quota for users, those with one
        client id with a quota for client ids.
        """
        source = self.source(user, client_id)
        if source is None:
            return None
        account = QuotaEntity(None if source[0] is None else user, None if source[1] is None else client_id)
        return account, self._by_entity[source]

    def source(self, user: str, client_id: str) -> tuple[str | None, str | None] | None:
        """Return the entity whose quota applies to a client, the most specific one in Kafka's order."""
        limits = self._by_entity
        for entity in (
            (user, client_id),
            (user, DEFAULT),
            (user, None),
            (DEFAULT, client_id),
            (DEFAULT, DEFAULT),
            (DEFAULT, None),
            (None, client_id),
            (None, DEFAULT),
        ):
            if entity in limits:
                return entity
        return None


class ClientQuotas:
    """The quotas of all entities."""

    def __init__(self) -> None:
        self._by_entity: dict[QuotaEntity, Mapping[str, float]] = {}
        self.limits: Final = {key: QuotaLimits() for key in QUOTA_KEYS}
        self._listeners: list[Callable[[], None]] = []

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` after every change."""
        self._listeners.append(listener)

    @property
    def entities(self) -> Mapping[QuotaEntity, Mapping[str, float]]:
        return MappingProxyType(self._by_entity)

    def set_entity(self, entity: QuotaEntity, properties: Mapping[str, str], *, is_news: bool = True) -> None:
        """Replace the quotas of one entity. Keys that are not quotas, such as credentials of a user, are not kept."""
        if self._set(entity, usable_quotas(str(entity), properties), is_news):
            self._notify()

    def replace_all(self, found: Mapping[QuotaEntity, Mapping[str, str]]) -> None:
        """Replace the quotas of all entities; those that are not in `found` have none."""
        changed = False
        for entity in [entity for entity in self._by_entity if entity not in found]:
            changed |= self._set(entity, _NOTHING, False)
        for entity, properties in found.items():
            changed |= self._set(entity, usable_quotas(str(entity), properties), False)
        if changed:
            self._notify()

    def _set(self, entity: QuotaEntity, new: Mapping[str, float], is_news: bool) -> bool:
        old = self._by_entity.get(entity, _NOTHING)
        if new == old:
            return False
        if new:
            self._by_entity[entity] = MappingProxyType(dict(new))
        else:
            del self._by_entity[entity]
        for key, limits in self.limits.items():
            if new.get(key) == old.get(key):
                continue
            limits.set(entity, new.get(key))
            if is_news:
                now = "no longer set" if key not in new else f"now {format_quota(key, new[key])}"
                log.info("Quota of %s: %s is %s", entity, key, now)
        return True

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()


def usable_quotas(whose: str, properties: Mapping[str, str]) -> dict[str, float]:
    """Return the quotas among the properties of an entity. Another tool may have left values that are not numbers."""
    found = {
        key: value for key in QUOTA_KEYS if key in properties and (value := _number(key, properties[key])) is not None
    }
    for key, problem in invalid_quotas(properties).items():
        log.warning("ignoring %s of %s in ZooKeeper: %s", key, whose, problem)
    return found


def invalid_quotas(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the reasons why quotas among the properties of an entity cannot be used, by key."""
    return {
        key: f"{properties[key]!r} is not a number"
        for key in QUOTA_KEYS
        if key in properties and _number(key, properties[key]) is None
    }


def _number(key: str, text: str) -> float | None:
    try:
        value = float(int(text)) if key in WHOLE_NUMBERS else float(text)
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None


def quota_problem(key: str, value: float) -> str | None:
    """Return why a value cannot be a quota; None if it can."""
    if key not in QUOTA_KEYS:
        return f"Invalid configuration key {key}: expected {', '.join(QUOTA_KEYS)}."
    if not math.isfinite(value) or value <= 0:
        return f"{key} is {value:g}: expected a number greater than 0."
    if key in WHOLE_NUMBERS and (abs(round(value) - value) > 1e-6 or value > MAX_LONG):
        return f"{key} is {value:g}: expected a whole number up to {MAX_LONG}."
    return None


def format_quota(key: str, value: float) -> str:
    """Return a quota as Kafka stores it: a long, or a double as Java prints it (`50.0`, `1.0E7`)."""
    if key in WHOLE_NUMBERS:
        return str(min(round(value), MAX_LONG))
    if value == 0:
        return "0.0"
    if 1e-3 <= abs(value) < 1e7:
        text = format(value, "f") if "e" in repr(value) else repr(value)
        return text if "." in text else f"{text}.0"
    digits, _, exponent = f"{value!r}".partition("e")
    if not exponent:  # from 1e7 up to 1e16 Python prints all digits
        digits, _, exponent = _scientific(value).partition("e")
    mantissa = digits if "." in digits else f"{digits}.0"
    return f"{mantissa}E{int(exponent)}"


def _scientific(value: float) -> str:
    """The shortest scientific notation that reads back as the same number."""
    return next(text for size in range(17) if float(text := f"{value:.{size}e}") == value)
