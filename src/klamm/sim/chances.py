"""Probabilities of a run of level 1, beside those of whole faults."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chances:
    """Probabilities of events that affect messages, until the faults end."""

    slow_message: float = 0.1
    lost_reply: float = 0.05
    late_after_close: float = 0.5
    overtaken: float = 0.2
    repeated_proposal: float = 0.2
    lagging_member: float = 0.3
    """Chance that a leader that checks its followers finds one that lags for longer than allowed."""
    partial_fetches: bool = True
    """Whether a follower gets a random part of the records that it lacks, instead of all of them."""
