"""Level 2 with an intruder, or with impostors, who are refused throughout all faults. Every check has a mutant."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from klamm.sim.cluster_runner import NewScenario, run_cluster_seeds
from klamm.sim.command import GUARDED, PROVEN
from klamm.sim.guarded.guard_mutants import GUARD_MUTANTS, PROOF_MUTANTS
from klamm.sim.guarded.guarded_scenario import GuardedScenario
from klamm.sim.guarded.proven_scenario import ProvenScenario
from tests.support.long_form import every
from tests.support.mutant_runs import CAUGHT, MutantRuns, mutant_runs
from tests.support.sim_form import IS_LONG

SEEDS, PROVEN_SEEDS = (10, 4) if IS_LONG else (3, 2)
OF_BROKERS = {
    "AddPartitionsToTxn",
    "AllocateProducerIds",
    "AlterPartition",
    "ControlledShutdown",
    "Fetch",
    "LeaderAndIsr",
    "OffsetForLeaderEpoch",
    "StopReplica",
    "UpdateMetadata",
    "WriteTxnMarkers",
}
OF_CLIENTS = {
    "AddOffsetsToTxn",
    "AlterClientQuotas",
    "AlterConfigs",
    "AlterPartitionReassignments",
    "AlterReplicaLogDirs",
    "AlterUserScramCredentials",
    "CreateAcls",
    "CreatePartitions",
    "CreateTopics",
    "DeleteAcls",
    "DeleteGroups",
    "DeleteRecords",
    "DeleteTopics",
    "DescribeAcls",
    "DescribeClientQuotas",
    "DescribeCluster",
    "DescribeConfigs",
    "DescribeGroups",
    "DescribeLogDirs",
    "DescribeProducers",
    "DescribeTransactions",
    "DescribeUserScramCredentials",
    "ElectLeaders",
    "EndTxn",
    "FindCoordinator",
    "Heartbeat",
    "IncrementalAlterConfigs",
    "InitProducerId",
    "JoinGroup",
    "LeaveGroup",
    "ListGroups",
    "ListOffsets",
    "ListPartitionReassignments",
    "ListTransactions",
    "Metadata",
    "OffsetCommit",
    "OffsetDelete",
    "OffsetFetch",
    "Produce",
    "SyncGroup",
    "TxnOffsetCommit",
}
OTHERS = {"proofs", "sessions", "sessions of followers", "users"}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("scenario", "seeds", "expected"),
    [
        (GuardedScenario, SEEDS, OF_BROKERS | OF_CLIENTS | OTHERS),
        (ProvenScenario, PROVEN_SEEDS, OF_BROKERS | {"proofs"}),
    ],
)
def test_seeds(scenario: NewScenario, seeds: int, expected: set[str]) -> None:
    summary = run_cluster_seeds(0, seeds, scenario=scenario)
    assert not summary.failures, "\n".join([*summary.failures[0].transcript[-80:], summary.failures[0].error])
    refused = {kind.removeprefix("refused ") for kind in summary.counts if kind.startswith("refused ")}
    assert refused == expected
    assert summary.counts["kill"] and summary.counts["sessions expired"]


VARIANTS = {GUARDED: GUARD_MUTANTS, PROVEN: PROOF_MUTANTS}
MUTANTS = every(5, (f"{variant} {name}" for variant, mutants in VARIANTS.items() for name in mutants))


@pytest.fixture(scope="module")
def runs() -> Iterator[MutantRuns]:
    with mutant_runs() as made:
        yield made


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_caught(mutant: str, runs: MutantRuns) -> None:
    variant, name = mutant.split()
    run = runs.run(name, variant=variant)
    assert run.code == CAUGHT, f"{name} survived: {run.shown[-1000:]}"
    assert f"--level 2 --{variant}" in run.shown
