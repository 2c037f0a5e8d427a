"""A broken rule of the control plane."""

from __future__ import annotations


class Violation(AssertionError):
    """The runner prints the seed and the trace."""


def require(condition: bool, text: str) -> None:
    if not condition:
        raise Violation(text)
