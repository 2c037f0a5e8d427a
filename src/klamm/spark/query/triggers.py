"""Triggers of a streaming query: immediately, at intervals, or once over the available records."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from klamm.errors import KlammError

Trigger = str | Mapping[str, Any] | None
"""None: as soon as there are records. "available_now": all available records, then the query ends. "5s": at intervals.
Or the arguments of Spark's `trigger()`."""

_INTERVAL: Final = re.compile(r"(\d+)\s*(ms|s|m|h|milliseconds?|seconds?|minutes?|hours?)$")
_UNITS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}


def trigger_arguments(trigger: Trigger) -> dict[str, Any]:
    """Return the arguments of Spark's `trigger()`; none for the default. Raises KlammError for an invalid trigger."""
    if trigger is None:
        return {}
    if not isinstance(trigger, str):
        return dict(trigger)
    text = trigger.strip()
    if text.lower() in ("available_now", "availablenow", "once"):
        return {"availableNow": True}
    if (found := _INTERVAL.match(text.lower())) is None:
        raise KlammError(f"{trigger!r} is not a trigger: expected available_now, or an interval such as 500ms, 5s, 1m.")
    return {"processingTime": f"{found[1]} {_UNITS.get(found[2], found[2])}"}


def with_trigger(writer: Any, trigger: Trigger) -> Any:
    arguments = trigger_arguments(trigger)
    return writer.trigger(**arguments) if arguments else writer
