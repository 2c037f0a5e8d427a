"""Aimed scenarios of the control plane and of replication, and the mutants that they catch.

A mutant is patched into the loaded modules, because a process of its own takes longer to start than a scenario to run.
"""

from __future__ import annotations

from functools import partial

import pytest

from klamm.sim.aimed.aimed_cluster_mutants import AIMED_CLUSTER_MUTANTS
from klamm.sim.aimed.cluster_aims import CLUSTER_AIMS
from klamm.sim.aimed.cluster_stage import ClusterStage
from klamm.sim.cluster_runner import run_cluster
from klamm.sim.command import main
from klamm.sim.patching import patched
from klamm.sim.runner import Failure
from tests.support.long_form import every


def run(aim: str) -> Failure | None:
    return run_cluster(0, tracing=True, scenario=partial(ClusterStage, aim=CLUSTER_AIMS[aim]))[1]


@pytest.mark.parametrize("aim", CLUSTER_AIMS)
def test_nothing_is_wrong(aim: str) -> None:
    failure = run(aim)
    assert failure is None, "\n".join([*failure.transcript[-80:], failure.error])


@pytest.mark.parametrize("name", every(5, AIMED_CLUSTER_MUTANTS))
def test_mutant_is_caught(name: str) -> None:
    mutant = AIMED_CLUSTER_MUTANTS[name]
    with patched(mutant):
        failure = run(mutant.aim)
    assert failure is not None, f"{name} survived"
    assert failure.error.startswith("Violation: "), failure.error


def test_every_scenario_catches_a_mutant() -> None:
    assert {mutant.aim for mutant in AIMED_CLUSTER_MUTANTS.values()} == set(CLUSTER_AIMS)


def test_the_command_runs_a_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--level", "2", "--aim", "deleted records"]
    assert main(command) == 0
    with patched(AIMED_CLUSTER_MUTANTS["moved_log_start_is_not_reported"]):
        assert main(command) == 1
    shown = capsys.readouterr().out
    assert "DeleteRecords of an idle partition: REQUEST_TIMED_OUT instead of NONE" in shown
    assert "replay with: klamm simulate --seed 0 --brokers 3 --level 2 --aim 'deleted records'\n" in shown
