"""Level 1: controllers, ZooKeeper and brokers under faults. Failing seeds that were once found are run first.

Two processes share the seeds, two more the mutants; each test waits for its part.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from klamm.sim.command import main
from klamm.sim.mutants import MUTANTS
from klamm.sim.runner import Summary, replay, run_parallel, run_seeds

FOUND = [line.split("#")[0].split() for line in (Path(__file__).parent / "seeds.txt").read_text().splitlines()]
KNOWN_SEEDS = [(int(words[0]), int(words[1]) if len(words) > 1 else 3) for words in FOUND if words]
PART = 40
SEEDS = {3: 760, 5: 120, 4: 80, 2: 40, 1: 40, 7: 40}
"""By the number of brokers: more than a thousand in all."""
PARTS = [(first, brokers) for brokers, count in SEEDS.items() for first in range(0, count, PART)]
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
    "failed log directories",
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
    "replicas moved away unheard",
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

Runs = dict[tuple[int, int], "Future[Summary]"]


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        yield {part: pool.submit(run_seeds, part[0], PART, part[1]) for part in PARTS}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize(("seed", "brokers"), KNOWN_SEEDS)
def test_a_seed_that_once_failed(seed: int, brokers: int) -> None:
    assert run_seeds(seed, 1, brokers).failures == ()


@pytest.mark.parametrize(("first", "brokers"), PARTS)
def test_seeds(runs: Runs, first: int, brokers: int) -> None:
    failures = runs[first, brokers].result().failures
    assert not failures, "\n".join(
        [
            *failures[0].transcript[-60:],
            f"seed {failures[0].seed}: {failures[0].error}",
            f"replay with: klamm simulate --seed {failures[0].seed} --brokers {brokers}",
        ]
    )


def test_every_fault_happens(runs: Runs) -> None:
    """A fault that is never injected proves nothing, whatever else is green."""
    faults: Counter[str] = Counter()
    for run in runs.values():
        faults.update(run.result().faults)
    assert {name for name, count in faults.items() if count} == EVERY_FAULT
    assert sum(SEEDS.values()) >= 1_000


def test_a_seed_repeats_its_run() -> None:
    first, second = (run_seeds(3, 1) for _ in range(2))
    assert (first.steps, first.simulated_ms, first.faults) == (second.steps, second.simulated_ms, second.faults)
    assert replay(3) is None


def test_processes_share_the_seeds() -> None:
    alone, shared = run_seeds(0, 30, 2), run_parallel(0, 30, 2, jobs=2)
    assert (alone.seeds, alone.steps, alone.faults) == (shared.seeds, shared.steps, shared.faults)


def test_the_command_tells_what_happened(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "3", "--brokers", "2"]) == 0
    assert "3 seeds, " in (shown := capsys.readouterr().out) and "late replies" in shown
    assert main(["--seed", "3", "--all-lines"]) == 0
    shown = capsys.readouterr().out
    assert "> Startup()" in shown and "seed 3 with 3 brokers: nothing is wrong" in shown


# --- mutants ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mutants() -> Iterator[dict[str, Future[subprocess.CompletedProcess[str]]]]:
    """Each in a process of its own, since it changes the source of a module."""

    def run(name: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "klamm.sim", "--mutant", name]
        return subprocess.run(command, capture_output=True, text=True)

    with ThreadPoolExecutor(2) as pool:
        yield {name: pool.submit(run, name) for name in MUTANTS}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(mutants: dict[str, Future[subprocess.CompletedProcess[str]]], name: str) -> None:
    run = mutants[name].result()
    assert run.returncode == 1, f"{name} survived: {run.stdout[-500:]}{run.stderr[-500:]}"
    assert "replay with: klamm simulate --seed" in run.stdout
    assert f"--brokers 3 --mutant {name}" in run.stdout


def test_a_replay_with_a_mutant_tells_the_same() -> None:
    command = [sys.executable, "-m", "klamm.sim", "--mutant", "no_fence", "--seed", "0"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 1
    assert "was written without the fence of the controller epoch" in run.stdout
    assert "> Startup()" in run.stdout


def test_there_are_enough_mutants() -> None:
    assert len(MUTANTS) >= 20
