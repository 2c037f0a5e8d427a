"""The levels of Python's loggers, under Kafka's names: the resource BROKER_LOGGER."""

from __future__ import annotations

import logging
from typing import Final

ROOT: Final = "root"
_LEVELS: Final = {"FATAL": 50, "ERROR": 40, "WARN": 30, "INFO": 20, "DEBUG": 10, "TRACE": 5}
LEVEL_NAMES: Final = tuple(_LEVELS)


def logger_levels() -> dict[str, str]:
    """The level that holds for klamm's loggers and the root logger."""
    names = [name for name, found in logging.root.manager.loggerDict.items() if isinstance(found, logging.Logger)]
    klamm = sorted(name for name in names if name.split(".")[0] == "klamm")
    return {ROOT: _name(logging.root.level)} | {
        name: _name(logging.getLogger(name).getEffectiveLevel()) for name in klamm
    }


def check_level(name: str, level: str | None) -> str | None:
    """Why a level cannot be set (None: taken away); None when it can."""
    if name not in logger_levels():
        return f"There is no logger {name}."
    if level is None:
        return "The root logger must have a level: set another one instead." if name == ROOT else None
    return None if level.upper() in _LEVELS else f"{level!r} is not a level: expected one of {', '.join(LEVEL_NAMES)}."


def set_level(name: str, level: str | None) -> None:
    """Sets a level that `check_level` accepted; None goes back to the parent's."""
    number = logging.NOTSET if level is None else _LEVELS[level.upper()]
    logging.getLogger(None if name == ROOT else name).setLevel(number)


def _name(level: int) -> str:
    """The nearest of Kafka's names at or below a number."""
    return next((name for name, number in _LEVELS.items() if level >= number), "TRACE")
