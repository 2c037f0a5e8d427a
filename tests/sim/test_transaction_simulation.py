"""Level 2 with transactions: clients of both protocols under faults aimed at them. Every rule has a mutant."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

from klamm.sim.cluster_runner import ClusterSummary, run_cluster_seeds
from klamm.sim.command import is_report_of
from klamm.sim.transactions.anomalies import CHECKERS
from klamm.sim.transactions.txn_mutants import TRANSACTION_MUTANTS
from klamm.sim.transactions.txn_scenario import TransactionScenario

FOUND = Path(__file__).parent / "transaction_seeds.txt"
KNOWN_SEEDS = [int(words[0]) for line in FOUND.read_text().splitlines() if (words := line.split("#")[0].split())]
SEEDS, PART = 100, 20
ALONE = {
    "aborted read (G1a)",
    "duplicate",
    "lost write",
    "skipped poll",
    "unstable end",
}
"""Anomalies that the checkers report without another one for some mutant."""
INJECTED = {
    "client killed",
    "controlled shutdown",
    "coordinator there and back",
    "cut both ways",
    "cut from zookeeper",
    "cut one way",
    "death at markers",
    "isolate",
    "kill",
    "late marker",
    "late request",
    "leader election",
    "lost answer",
    "lost marker answer",
    "lost replies",
    "pause",
    "request in the next transaction",
    "slow client",
    "slow link",
}
CAUSED = {
    "committed reads from followers",
    "leaderships",
    "messages late",
    "replies lost",
    "sessions expired",
    "transactions aborted",
    "transactions committed",
    "transactions unknown",
}


def told(summary: ClusterSummary) -> str:
    return "\n".join(
        line
        for failure in summary.failures
        for line in (
            *failure.transcript[-80:],
            f"{failure.error}\nreplay with: klamm simulate --level 2 --transactions --seed {failure.seed}",
        )
    )


def test_seeds_that_once_failed() -> None:
    for seed in KNOWN_SEEDS:
        summary = run_cluster_seeds(seed, 1, scenario=TransactionScenario)
        assert not summary.failures, told(summary)


@cache
def part(first: int) -> ClusterSummary:
    return run_cluster_seeds(first, PART, scenario=TransactionScenario)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_seeds(first: int) -> None:
    summary = part(first)
    assert not summary.failures, told(summary)
    assert summary.counts["transactions committed"] > 10 * PART


@pytest.mark.timeout(600)
def test_every_fault_is_injected_and_has_its_effect() -> None:
    counts = sum((part(first).counts for first in range(0, SEEDS, PART)), Counter[str]())
    assert set(counts) >= INJECTED | CAUSED


@pytest.fixture(scope="module")
def mutant_runs() -> Iterator[dict[str, Future[subprocess.CompletedProcess[str]]]]:
    """Each in a process of its own, since it changes the source of a module; two at a time."""
    pool = ThreadPoolExecutor(2)
    yield {name: pool.submit(_run_mutant, name) for name in TRANSACTION_MUTANTS}
    pool.shutdown(cancel_futures=True)


def _run_mutant(name: str) -> subprocess.CompletedProcess[str]:
    mutant = TRANSACTION_MUTANTS[name]
    command = [sys.executable, "-m", "klamm.sim", "--level", "2", "--transactions", "--mutant", name]
    limits = ["--first", str(mutant.first), "--seeds", str(mutant.seeds)]
    return subprocess.run([*command, *limits], capture_output=True, text=True)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", TRANSACTION_MUTANTS)
def test_mutant_is_caught(name: str, mutant_runs: dict[str, Future[subprocess.CompletedProcess[str]]]) -> None:
    run = mutant_runs[name].result()
    assert run.returncode == 1, f"{name} survived: {run.stdout[-500:]}{run.stderr[-500:]}"
    assert "\nreplay with: klamm simulate --seed" in run.stdout
    kind = TRANSACTION_MUTANTS[name].reports
    errors = [line.split(": ", 1)[1] for line in run.stdout.splitlines() if re.match(r"seed \d+: ", line)]
    assert not kind or any(is_report_of(error, kind) for error in errors), f"{name} is not reported as {kind}: {errors}"


def test_checkers_report_a_mutant_alone() -> None:
    """Otherwise a checker that finds nothing would not be noticed."""
    assert {mutant.reports for mutant in TRANSACTION_MUTANTS.values() if mutant.reports} == ALONE
    assert set(CHECKERS) >= ALONE
