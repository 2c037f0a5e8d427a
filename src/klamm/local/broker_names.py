"""How messages name brokers."""

from __future__ import annotations

from collections.abc import Sequence


def brokers_are(ids: Sequence[int]) -> str:
    """Return `broker 1 is`, or `brokers 1, 2 and 3 are`."""
    *most, last = map(str, ids)
    return f"brokers {', '.join(most)} and {last} are" if most else f"broker {last} is"
