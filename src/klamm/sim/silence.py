"""Keeps the log lines of simulated brokers off the terminal."""

from __future__ import annotations

import logging
from typing import Final

_NOWHERE: Final = logging.NullHandler()


def silence_brokers() -> None:
    """Without any handler, Python prints warnings to standard error."""
    logging.getLogger("klamm").addHandler(_NOWHERE)
