"""Level 1: controllers, ZooKeeper and brokers under faults. Failing seeds that were once found are run first.

`make sim` runs more seeds.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from klamm.sim.command import main
from klamm.sim.mutants import MUTANTS
from klamm.sim.runner import Summary, replay, run_parallel, run_seeds
from tests.support.long_form import every
from tests.support.mutant_runs import CAUGHT, MutantRuns, mutant_runs
from tests.support.sim_form import IS_LONG

FOUND = [line.split("#")[0].split() for line in (Path(__file__).parent / "seeds.txt").read_text().splitlines()]
KNOWN_SEEDS = [(int(words[0]), int(words[1]) if len(words) > 1 else 3) for words in FOUND if words]
PART, SHARED = (40, 30) if IS_LONG else (10, 8)
SEEDS = {3: 760, 5: 120, 4: 80, 2: 40, 1: 40, 7: 40} if IS_LONG else {3: 20, 5: 10, 2: 10}
"""By the number of brokers; in the long form more than a thousand in all."""
PARTS = [(first, brokers) for brokers, count in SEEDS.items() for first in range(0, count, PART)]
SLOW_MUTANTS = {
    "epochs_of_logs_not_compared",
    "log_end_reported_while_leading",
    "suspect_stays_in_the_isr",
    "unclean_configuration_ignored",
    "wait_for_missing_members_never_ends",
}
"""Mutants that need many seeds, or a long one. `make sim` runs them, and all the others."""
EVERY_FAULT = {
    "/controller deleted",
    "ZooKeeper away",
    "acknowledged records lost with all copies",
    "blocks of producer ids",
    "changed addresses at a restart",
    "changed addresses of a running broker",
    "changes of the controller",
    "clock jumps",
    "controlled shutdowns",
    "crashes",
    "cut links",
    "emptied blocks of producer ids",
    "failed log directories",
    "forged control requests",
    "forged controlled shutdowns",
    "late replies",
    "late requests",
    "lost answers of ZooKeeper",
    "lost replies",
    "pauses",
    "power failures of 1 brokers",
    "power failures of 2 brokers",
    "power failures of all brokers",
    "power failures of several brokers",
    "replicas moved away unnoticed",
    "replicas moved to and fro",
    "requests of a closed channel that come late",
    "requests overtaken by what followed them",
    "sessions expired",
    "unclean elections",
    "unclean elections allowed by default",
    "unclean elections allowed for a topic",
    "unclean elections asked for",
}

pytestmark = pytest.mark.timeout(900)


@cache
def part(first: int, brokers: int) -> Summary:
    return run_seeds(first, PART, brokers)


@pytest.mark.parametrize(("seed", "brokers"), KNOWN_SEEDS)
def test_a_seed_that_once_failed(seed: int, brokers: int) -> None:
    assert run_seeds(seed, 1, brokers).failures == ()


@pytest.mark.parametrize(("first", "brokers"), PARTS)
def test_seeds(first: int, brokers: int) -> None:
    failures = part(first, brokers).failures
    assert not failures, "\n".join(
        [
            *failures[0].transcript[-60:],
            f"seed {failures[0].seed}: {failures[0].error}",
            f"replay with: klamm simulate --seed {failures[0].seed} --brokers {brokers}",
        ]
    )


if IS_LONG:

    def test_every_fault_happens() -> None:
        """A fault that is never injected proves nothing, whatever else is green."""
        faults = sum((part(*each).faults for each in PARTS), Counter[str]())
        assert {name for name, count in faults.items() if count} == EVERY_FAULT
        assert sum(SEEDS.values()) >= 1_000


def test_a_seed_repeats_its_run() -> None:
    first, second = (run_seeds(3, 1) for _ in range(2))
    assert (first.steps, first.simulated_ms, first.faults) == (second.steps, second.simulated_ms, second.faults)
    assert replay(3) is None


def test_processes_share_the_seeds() -> None:
    alone, shared = run_seeds(0, SHARED, 2), run_parallel(0, SHARED, 2, jobs=2)
    assert (alone.seeds, alone.steps, alone.faults) == (shared.seeds, shared.steps, shared.faults)


def test_the_command_reports_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "3", "--brokers", "2"]) == 0
    assert "3 seeds, " in (shown := capsys.readouterr().out) and "late replies" in shown
    assert main(["--seed", "3", "--all-lines"]) == 0
    shown = capsys.readouterr().out
    assert "> Startup()" in shown and "seed 3 with 3 brokers: nothing is wrong" in shown


# --- mutants ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs() -> Iterator[MutantRuns]:
    with mutant_runs() as made:
        yield made


@pytest.mark.parametrize("name", every(5, MUTANTS, slow=SLOW_MUTANTS))
def test_mutant_is_caught(runs: MutantRuns, name: str) -> None:
    run = runs.run(name, level=1)
    assert run.code == CAUGHT, f"{name} survived: {run.shown[-1000:]}"
    assert "replay with: klamm simulate --seed" in run.shown
    assert f"--brokers 3 --mutant {name}" in run.shown


def test_a_replay_with_a_mutant_reports_the_same() -> None:
    command = [sys.executable, "-m", "klamm.sim", "--mutant", "no_fence", "--seed", "0"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 1
    assert "was written without the fence of the controller epoch" in run.stdout
    assert "> Startup()" in run.stdout


def test_there_are_enough_mutants() -> None:
    assert len(MUTANTS) >= 20
