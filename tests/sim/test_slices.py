"""Work in slices of one partition: small clusters and virtual time alone would never slice it.

Level 2 applies control requests so; level 1 pauses in the walks of the controller.
"""

from __future__ import annotations

import pytest

from klamm.controller import elections, request_batch, wire_states
from klamm.metadata import snapshot
from klamm.replica import state_change
from klamm.sim.cluster_runner import run_cluster_seeds
from klamm.sim.runner import run_seeds


def pause_at_every_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_batch, "PARTITIONS_PER_STEP", 1)
    monkeypatch.setattr(elections, "PARTITIONS_PER_STEP", 1)
    monkeypatch.setattr(wire_states, "STATES_PER_STEP", 1)


def test_nothing_is_lost_when_every_leader_and_isr_takes_many_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_change, "SLICE_S", -1.0)
    monkeypatch.setattr(state_change, "STOPS", 1)
    monkeypatch.setattr(snapshot, "PARTITIONS_PER_STEP", 1)
    pause_at_every_partition(monkeypatch)
    summary = run_cluster_seeds(7_000, 3)
    assert not summary.failures, summary.failures


def test_a_controller_that_pauses_at_every_partition_decides_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    pause_at_every_partition(monkeypatch)
    summary = run_seeds(0, 20)
    assert not summary.failures, summary.failures
