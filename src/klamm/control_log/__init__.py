"""The control log: decisions of the controller and their effects on brokers, as records of an internal topic."""

from __future__ import annotations

from klamm.control_log.buffer import NO_CONTROL_LOG, ControlLog, ControlLogBuffer, Entry
from klamm.control_log.encoding import to_json

__all__ = ["NO_CONTROL_LOG", "ControlLog", "ControlLogBuffer", "Entry", "to_json"]
