"""Level 2 with transactions: clients of both protocols under faults aimed at them. Every rule has a mutant.

`test_aimed_transactions.py` has the mutants that need a certain course of events. `make sim` runs more seeds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from klamm.sim.cluster_runner import ClusterSummary, run_cluster_seeds
from klamm.sim.command import TRANSACTIONS, is_report_of
from klamm.sim.transactions.anomalies import CHECKERS, reported_kinds
from klamm.sim.transactions.txn_mutants import TRANSACTION_MUTANTS
from klamm.sim.transactions.txn_scenario import TransactionScenario
from tests.support.long_form import every
from tests.support.mutant_runs import CAUGHT, MutantRuns, mutant_runs
from tests.support.sim_form import IS_LONG

SEED_MUTANTS = {name: mutant for name, mutant in TRANSACTION_MUTANTS.items() if not mutant.aim}
FOUND = Path(__file__).parent / "transaction_seeds.txt"
KNOWN_SEEDS = [int(words[0]) for line in FOUND.read_text().splitlines() if (words := line.split("#")[0].split())]
SEEDS, PART = (100, 20) if IS_LONG else (2, 2)
SLOW_MUTANTS = {
    "a_growing_transaction_forgets_partitions",
    "an_initialised_producer_leaves_its_transaction_open",
    "duplicates_are_appended",
    "late_requests_act_in_the_next_transaction",
    "next_transaction_begins_before_the_markers",
    "open_transactional_ids_expire",
}
"""Mutants that need many seeds, or a long one. `make sim` runs them, and all the others."""
ALONE = {
    "aborted read (G1a)",
    "copies and offsets disagree",
    "duplicate",
    "lost write",
    "misplaced write",
    "non-monotonic poll",
    "skipped poll",
    "unstable end",
}
"""Anomalies that the checkers report without another one for some mutant."""
INJECTED = {
    "AddPartitionsToTxn in the next transaction",
    "EndTxn in the next transaction",
    "Produce in the next transaction",
    "TxnOffsetCommit in the next transaction",
    "client killed",
    "controlled shutdown",
    "coordinator there and back",
    "cut both ways",
    "cut from zookeeper",
    "cut one way",
    "death after 0 markers",
    "death after 1 markers",
    "death after 2 markers",
    "death after 3 markers",
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
    "block of producer ids used up",
    "committed reads from followers",
    "connections given up",
    "end fenced after a timeout",
    "fenced after a timeout",
    "fenced by another process",
    "leaderships",
    "logs compacted",
    "messages late",
    "producer id used up",
    "replies lost",
    "requests delivered twice",
    "sessions expired",
    "transactions aborted",
    "transactions committed",
    "transactions unknown",
}


def reported(summary: ClusterSummary) -> str:
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
        assert not summary.failures, reported(summary)


@cache
def part(first: int) -> ClusterSummary:
    return run_cluster_seeds(first, PART, scenario=TransactionScenario)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_seeds(first: int) -> None:
    summary = part(first)
    assert not summary.failures, reported(summary)
    assert summary.counts["transactions committed"] > 10 * PART


if IS_LONG:

    @pytest.mark.timeout(600)
    def test_every_fault_is_injected_and_has_its_effect() -> None:
        counts = sum((part(first).counts for first in range(0, SEEDS, PART)), Counter[str]())
        assert {kind for kind, count in counts.items() if count} >= INJECTED | CAUSED


@pytest.fixture(scope="module")
def runs() -> Iterator[MutantRuns]:
    with mutant_runs() as made:
        yield made


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", every(5, SEED_MUTANTS, slow=SLOW_MUTANTS))
def test_mutant_is_caught(name: str, runs: MutantRuns) -> None:
    run = runs.run(name, variant=TRANSACTIONS)
    assert run.code == CAUGHT, f"{name} survived: {run.shown[-1000:]}"
    assert "\nreplay with: klamm simulate --seed" in run.shown
    kind = TRANSACTION_MUTANTS[name].reports
    errors = [line.split(": ", 1)[1] for line in run.shown.splitlines() if re.match(r"seed \d+: ", line)]
    assert not kind or any(is_report_of(error, kind) for error in errors), f"{name} is not reported as {kind}: {errors}"
    anomalies = TRANSACTION_MUTANTS[name].anomalies
    assert any(reported_kinds(error).issuperset(anomalies) for error in errors), f"{anomalies} not in {errors}"


def test_checkers_report_a_mutant_alone() -> None:
    """Otherwise a checker that finds nothing would not be noticed."""
    assert {mutant.reports for mutant in TRANSACTION_MUTANTS.values() if mutant.reports} == ALONE
    assert set(CHECKERS) >= ALONE


def test_every_checker_reports_a_mutant() -> None:
    """In runs of random faults: aimed scenarios have no readers, so their checkers would not miss the polls."""
    kinds = {kind for mutant in SEED_MUTANTS.values() for kind in (mutant.reports, *mutant.anomalies) if kind}
    assert kinds == set(CHECKERS)
