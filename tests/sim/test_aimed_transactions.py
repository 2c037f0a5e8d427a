"""Aimed scenarios of transactions: each goes through the steps that need some rules, and catches the mutants of these.

A mutant is patched into the loaded modules, because a process of its own takes longer to start than a scenario to run.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import pytest

from klamm.sim.cluster_runner import run_cluster
from klamm.sim.command import is_report_of
from klamm.sim.patching import patched
from klamm.sim.runner import Failure
from klamm.sim.transactions.aimed_mutants import AIMED_MUTANTS
from klamm.sim.transactions.aimed_stage import Stage
from klamm.sim.transactions.aims import AIMS
from tests.support.long_form import every


def run(aim: str) -> Failure | None:
    return run_cluster(0, tracing=True, scenario=partial(Stage, aim=AIMS[aim]))[1]


@pytest.mark.parametrize("aim", AIMS)
def test_nothing_is_wrong(aim: str) -> None:
    failure = run(aim)
    assert failure is None, "\n".join([*failure.transcript[-80:], failure.error])


@pytest.mark.parametrize("name", every(5, AIMED_MUTANTS))
def test_mutant_is_caught(name: str) -> None:
    mutant = AIMED_MUTANTS[name]
    with patched(mutant):
        failure = run(mutant.aim)
    assert failure is not None, f"{name} survived"
    assert failure.error.startswith("Violation: "), failure.error
    assert not mutant.reports or is_report_of(failure.error, mutant.reports), failure.error


def test_every_scenario_catches_a_mutant() -> None:
    assert {mutant.aim for mutant in AIMED_MUTANTS.values()} == set(AIMS)


def test_the_command_runs_a_scenario_and_its_mutant() -> None:
    command = [
        sys.executable,
        "-m",
        "klamm.sim",
        "--level",
        "2",
        "--transactions",
        "--mutant",
        "members_are_not_fenced",
    ]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 1, run.stderr
    assert "offsets of an earlier generation: NONE instead of ILLEGAL_GENERATION" in run.stdout
    assert "--level 2 --transactions --aim 'member of an earlier generation' --mutant members_are_not" in run.stdout
