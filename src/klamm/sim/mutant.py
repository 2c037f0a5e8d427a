"""A bug as a replacement of source text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    module: str
    old: str
    new: str
    seeds: int = 60
    """Number of seeds within which it must be caught."""
    first: int = 0
    """First seed of the search: shortly before the seed that catches it, so that a full run is cheap."""
    also: tuple[tuple[str, str], ...] = ()
    """Further replacements in the same module."""
    beside: tuple[Mutant, ...] = ()
    """Replacements in other modules, for a rule that exists in two places."""
    reports: str = ""
    """The only anomaly that the checkers of transactions must report in one of the seeds: shows what each can find."""
    anomalies: tuple[str, ...] = ()
    """Anomalies that the checkers of transactions must report in one of the seeds, beside others."""
    aim: str = ""
    """The aimed scenario that must catch it, instead of seeds."""


def aimed(aim: str, module: str, old: str, new: str, *also: tuple[str, str], beside: tuple[Mutant, ...] = ()) -> Mutant:
    """Return a mutant that an aimed scenario must catch."""
    return Mutant(module, old, new, seeds=1, aim=aim, also=also, beside=beside)
