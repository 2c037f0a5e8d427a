"""Level 2 with an authorizer: an intruder is refused throughout all faults. Every check has a mutant."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from klamm.sim.cluster_runner import run_cluster_seeds
from klamm.sim.guarded.guard_mutants import GUARD_MUTANTS
from klamm.sim.guarded.guarded_scenario import GuardedScenario

SEEDS = 10
REFUSED = {
    "AddPartitionsToTxn",
    "AllocateProducerIds",
    "AlterPartition",
    "ControlledShutdown",
    "Fetch",
    "LeaderAndIsr",
    "ListOffsets",
    "Metadata",
    "OffsetCommit",
    "Produce",
    "StopReplica",
    "UpdateMetadata",
    "WriteTxnMarkers",
}


@pytest.mark.timeout(600)
def test_seeds() -> None:
    summary = run_cluster_seeds(0, SEEDS, scenario=GuardedScenario)
    assert not summary.failures, "\n".join([*summary.failures[0].transcript[-80:], summary.failures[0].error])
    refused = {kind.removeprefix("refused ") for kind in summary.counts if kind.startswith("refused ")}
    assert refused == REFUSED
    assert summary.counts["kill"] and summary.counts["sessions expired"]


@pytest.fixture(scope="module")
def mutant_runs() -> Iterator[dict[str, Future[subprocess.CompletedProcess[str]]]]:
    """Each in a process of its own, since it changes the source of a module; two at a time."""
    pool = ThreadPoolExecutor(2)
    yield {name: pool.submit(_run_mutant, name) for name in GUARD_MUTANTS}
    pool.shutdown(cancel_futures=True)


def _run_mutant(name: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "klamm.sim", "--level", "2", "--guarded", "--mutant", name]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", GUARD_MUTANTS)
def test_mutant_is_caught(name: str, mutant_runs: dict[str, Future[subprocess.CompletedProcess[str]]]) -> None:
    run = mutant_runs[name].result()
    assert run.returncode == 1, f"{name} survived: {run.stdout[-500:]}{run.stderr[-500:]}"
    assert "--level 2 --guarded" in run.stdout
