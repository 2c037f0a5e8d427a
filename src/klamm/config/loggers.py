"""The levels of Python's loggers, under Kafka's names: the resource BROKER_LOGGER."""

from __future__ import annotations

import logging
from typing import Final

ROOT: Final = "root"
_LEVELS: Final = {"FATAL": 50, "ERROR": 40, "WARN": 30, "INFO": 20, "DEBUG": 10, "TRACE": 5}
LEVEL_NAMES: Final = tuple(_LEVELS)


def logger_levels() -> dict[str, str]:
    """Return the effective levels of klamm's loggers and of the root logger."""
    names = [name for name, found in logging.root.manager.loggerDict.items() if isinstance(found, logging.Logger)]
    klamm = sorted(name for name in names if name.split(".")[0] in ("klamm", "kafka"))
    return {ROOT: _name(logging.root.level)} | {
        name: _name(logging.getLogger(name).getEffectiveLevel()) for name in klamm
    }


def check_level(name: str, level: str | None) -> str | None:
    """Return why a level cannot be set (or removed, if it is None); None if it can."""
    if name not in logger_levels():
        return f"There is no logger {name}."
    if level is None:
        return "The root logger must have a level: set another one instead." if name == ROOT else None
    return None if level.upper() in _LEVELS else f"{level!r} is not a level: expected one of {', '.join(LEVEL_NAMES)}."


def set_level(name: str, level: str | None) -> None:
    """Set a level that `check_level` accepted; None restores the parent's level."""
    number = logging.NOTSET if level is None else _LEVELS[level.upper()]
    logging.getLogger(None if name == ROOT else name).setLevel(number)


def _name(level: int) -> str:
    """Return the nearest of Kafka's names at or below a number."""
    return next((name for name, number in _LEVELS.items() if level >= number), "TRACE")
