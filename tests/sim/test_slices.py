"""Level 2 with control requests that are applied one partition at a time: virtual time alone would never slice them."""

from __future__ import annotations

import pytest

from klamm.replica import state_change
from klamm.sim.cluster_runner import run_cluster_seeds


def test_nothing_is_lost_when_every_leader_and_isr_takes_many_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_change, "SLICE_S", -1.0)
    monkeypatch.setattr(state_change, "STOPS", 1)
    summary = run_cluster_seeds(7_000, 3)
    assert not summary.failures, summary.failures
