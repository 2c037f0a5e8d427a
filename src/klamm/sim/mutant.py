"""A bug as a replacement of source text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    module: str
    old: str
    new: str
    seeds: int = 60
    """Within so many seeds it must be caught."""
    first: int = 0
    """Where the search begins: a little before the seed that finds it, so that a run of all costs little."""
    also: tuple[tuple[str, str], ...] = ()
    """Further replacements in the same module."""
    beside: tuple[Mutant, ...] = ()
    """Replacements in other modules: for a rule that is kept in two places."""
