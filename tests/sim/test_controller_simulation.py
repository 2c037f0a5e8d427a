"""Level 1: controllers, ZooKeeper and brokers under faults. Failing seeds that were once found are run first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from klamm.sim.mutants import MUTANTS
from klamm.sim.runner import replay, run_seeds

FOUND = [line.split("#")[0].split() for line in (Path(__file__).parent / "seeds.txt").read_text().splitlines()]
KNOWN_SEEDS = [int(words[0]) for words in FOUND if words]
SEEDS, PART = 160, 20


@pytest.mark.parametrize("seed", KNOWN_SEEDS)
def test_a_seed_that_once_failed(seed: int) -> None:
    assert run_seeds(seed, 1).failures == ()


@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_seeds(first: int) -> None:
    failures = run_seeds(first, PART).failures
    assert not failures, "\n".join([*failures[0].transcript[-60:], f"seed {failures[0].seed}: {failures[0].error}"])


def test_five_brokers() -> None:
    assert run_seeds(0, 10, brokers=5).failures == ()


def test_a_seed_repeats_its_run() -> None:
    first, second = (run_seeds(3, 1) for _ in range(2))
    assert (first.steps, first.simulated_ms) == (second.steps, second.simulated_ms)
    assert replay(3) is None


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name: str) -> None:
    """Each in a process of its own, since it changes the source of a module."""
    mutant = MUTANTS[name]
    command = [
        sys.executable,
        "-m",
        "klamm.sim",
        "--mutant",
        name,
        "--first",
        str(mutant.first),
        "--seeds",
        str(mutant.seeds),
    ]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 1, f"{name} survived: {run.stdout[-500:]}{run.stderr[-500:]}"
    assert "replay with: python -m klamm.sim --seed" in run.stdout
