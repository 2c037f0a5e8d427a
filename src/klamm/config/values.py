"""Configuration values: Kafka's nine types, conversion from and to text, and validation.

`parse` follows Kafka's rules (text is trimmed, the case of booleans is ignored, lists are split at commas) and raises
ValueError with a phrase that fits after "expected". `to_text` is the inverse, for DescribeConfigs and ZooKeeper.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import IntEnum
from typing import Final

Value = bool | int | float | str | tuple[str, ...] | None
Validator = Callable[[object], str | None]
"""Returns None for a valid value, else the expected form."""

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
DOUBLE_MAX: Final = 1.7976931348623157e308
OLDEST_RELEASE: Final = (2, 4)
NEWEST_RELEASE: Final = (3, 9)


class ConfigType(IntEnum):
    """The numbers are those of DescribeConfigs on the wire."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


_INTEGER_BITS: Final = {ConfigType.SHORT: 16, ConfigType.INT: 32, ConfigType.LONG: 64}
_EXPECTED: Final = {
    ConfigType.BOOLEAN: "true or false",
    ConfigType.SHORT: "a whole number of 16 bits",
    ConfigType.INT: "a whole number of 32 bits",
    ConfigType.LONG: "a whole number of 64 bits",
    ConfigType.DOUBLE: "a number",
    ConfigType.LIST: "a list, separated by commas",
}
_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]+")
_COMMA: Final = re.compile(r"\s*,\s*")


def parse(kind: ConfigType, raw: object) -> Value:
    """Return the typed value of a setting from a file, a command line, a request or a znode."""
    if raw is None:
        return None
    if isinstance(raw, list | tuple):
        if kind is not ConfigType.LIST:
            raise ValueError(f"{expected(kind)}, not a list")
        return tuple(str(item).strip() for item in raw)
    text = to_text(raw).strip()
    if kind is ConfigType.BOOLEAN:
        return _parse_boolean(text)
    if kind in _INTEGER_BITS:
        return _parse_integer(kind, text)
    if kind is ConfigType.DOUBLE:
        return _parse_double(text)
    if kind is ConfigType.LIST:
        return tuple(_COMMA.split(text)) if text else ()
    return text


def expected(kind: ConfigType) -> str:
    return _EXPECTED.get(kind, "text")


def _parse_boolean(text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ValueError(expected(ConfigType.BOOLEAN))
    return lowered == "true"


def _parse_integer(kind: ConfigType, text: str) -> int:
    limit = 1 << (_INTEGER_BITS[kind] - 1)
    if not _WHOLE_NUMBER.fullmatch(text) or len(text) > 20 or not -limit <= int(text) < limit:
        raise ValueError(expected(kind))
    return int(text)


def _parse_double(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(expected(ConfigType.DOUBLE)) from None
    if value != value or "_" in text or not text.isascii():  # Python reads 1_000 and the digits of all languages
        raise ValueError(expected(ConfigType.DOUBLE))
    return value


def to_text(value: object) -> str:
    """Return a value as Kafka writes it: `true`, `1.7976931348623157E308`, `compact,delete`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    if isinstance(value, float):
        return repr(value).replace("e+", "E").replace("e", "E")
    return str(value)


def between(low: float | None = None, high: float | None = None) -> Validator:
    """Accept numbers from `low` to `high`, both included."""
    if low is not None and high is not None:
        phrase = f"a number from {to_text(low)} to {to_text(high)}"
    else:
        phrase = f"a number of at least {to_text(low)}" if low is not None else f"a number of at most {to_text(high)}"

    def check(value: object) -> str | None:
        assert isinstance(value, int | float)
        good = (low is None or value >= low) and (high is None or value <= high)
        return None if good else phrase

    return check


def at_least(low: float) -> Validator:
    return between(low=low)


def one_of(*allowed: str) -> Validator:
    """Accept a value, or a list of values, of `allowed`."""

    def check(value: object) -> str | None:
        items = value if isinstance(value, tuple) else (value,)
        return None if all(item in allowed for item in items) else "one of " + ", ".join(allowed)

    return check


def not_empty(value: object) -> str | None:
    return None if value else "text that is not empty"


def throttled_replicas(value: object) -> str | None:
    """Accept `*`, `none`, or pairs `partition:broker`."""
    assert isinstance(value, tuple)
    if value in ((), ("*",), ("none",)) or all(throttled_replica(item) is not None for item in value):
        return None
    return "'*' or pairs of partition:broker, separated by commas"


def throttled_replica(text: str) -> tuple[int, int] | None:
    """Return the partition and the broker of a pair; None if it is not one.

    Numbers beyond int32 exist in no cluster, and Python refuses to parse very long ones.
    """
    found = re.fullmatch(r"([0-9]{1,10}):([0-9]{1,10})", text)
    pair = None if found is None else (int(found[1]), int(found[2]))
    return pair if pair is not None and max(pair) < 1 << 31 else None


def release(value: object) -> str | None:
    """Accept a release of Kafka whose inter-broker protocol klamm supports, with or without the internal version."""
    found = re.fullmatch(r"([0-9]{1,2})\.([0-9]{1,2})(\.[0-9]{1,2})?(-IV[0-9]{1,2})?", str(value))
    good = found is not None and OLDEST_RELEASE <= (int(found[1]), int(found[2])) <= NEWEST_RELEASE
    return None if good else "a Kafka release from 2.4 to 3.9, such as 3.9 or 3.9-IV0"
