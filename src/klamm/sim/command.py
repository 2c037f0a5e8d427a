"""The simulator's command line: `python -m klamm.sim [--level 2] --seeds N [--seed S] [--brokers B] [--mutant M]`."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from klamm.sim.mutant import Mutant
from klamm.sim.silence import silence_brokers

if TYPE_CHECKING:
    from klamm.sim.cluster import SimCluster
    from klamm.sim.cluster_runner import NewScenario

SHOWN_LINES = 120
PLAIN: Final = ""
TRANSACTIONS: Final = "transactions"
GUARDED: Final = "guarded"
PROVEN: Final = "proven"
Progress = Callable[[int, int], None]
"""Receives the numbers of finished and of all seeds."""


def unseen(done: int, total: int) -> None:
    """Show no progress."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="klamm simulate", description="Tries to break the control plane (level 1) or whole brokers (level 2)."
    )
    parser.add_argument(
        "--level", type=int, choices=[1, 2], default=1, help="1: the controller's core; 2: whole brokers"
    )
    parser.add_argument("--seeds", type=int, help="how many seeds to run (default 200, or as many as the mutant needs)")
    parser.add_argument("--first", type=int, default=0, help="the first seed of the range")
    parser.add_argument("--seed", type=int, help="run only this seed; a failure is reported in full")
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--transactions", action="store_true", help="level 2 with transactional clients")
    parser.add_argument("--aim", default="", help="level 2: run this aimed scenario instead of random faults")
    parser.add_argument("--guarded", action="store_true", help="level 2 with an authorizer and an intruder")
    parser.add_argument("--proven", action="store_true", help="level 2 with brokers that prove their id, and impostors")
    parser.add_argument("--mutant", help="run with this bug built in: the run should fail")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the seeds of level 1")
    parser.add_argument(
        "--all-lines", action="store_true", help="print whole transcripts, with --seed also when nothing is wrong"
    )
    args = parser.parse_args(argv)
    return run(
        args.level,
        args.seeds,
        args.seed,
        args.brokers,
        first=args.first,
        mutant=args.mutant,
        all_lines=args.all_lines,
        jobs=args.jobs,
        variant=_variant(args.transactions, args.guarded, args.proven),
        aim=args.aim,
    )


def run(
    level: int,
    seeds: int | None,
    seed: int | None,
    brokers: int,
    *,
    first: int = 0,
    mutant: str | None = None,
    all_lines: bool = False,
    jobs: int = 1,
    variant: str = PLAIN,
    aim: str = "",
    is_patched: bool = False,
    progress: Progress = unseen,
) -> int:
    """Return the exit code: 0 if nothing failed. A mutant must be applied before the controller is imported.

    `is_patched`: the caller has patched the mutant into the loaded modules.
    """
    silence_brokers()
    reports, anomalies = "", tuple[str, ...]()
    if mutant:
        from klamm.sim.mutants import install

        mutants = mutants_of(level, variant)
        found = mutants[mutant] if is_patched else install(mutant, mutants)
        seeds, first = (found.seeds, first or found.first) if seeds is None else (seeds, first)
        reports, anomalies, aim = found.reports, found.anomalies, found.aim or aim
    if level == 2:
        return simulate_cluster(
            seeds or (1 if aim else 50),
            seed,
            brokers,
            first=first,
            mutant=mutant,
            all_lines=all_lines,
            variant=variant,
            aim=aim,
            reports=reports,
            anomalies=anomalies,
            progress=progress,
        )
    jobs = 1 if mutant else jobs
    return simulate(
        seeds or 200, seed, brokers, first=first, mutant=mutant, all_lines=all_lines, jobs=jobs, progress=progress
    )


def mutant_names(level: int, *, variant: str = PLAIN) -> list[str]:
    """Return the mutants of a level."""
    return list(mutants_of(level, variant))


def _variant(transactions: bool, guarded: bool, proven: bool) -> str:
    return GUARDED if guarded else PROVEN if proven else TRANSACTIONS if transactions else PLAIN


def mutants_of(level: int, variant: str = PLAIN) -> dict[str, Mutant]:
    """Return the mutants of a level by name."""
    from klamm.sim.cluster_mutants import CLUSTER_MUTANTS
    from klamm.sim.guarded.guard_mutants import GUARD_MUTANTS, PROOF_MUTANTS
    from klamm.sim.mutants import MUTANTS
    from klamm.sim.transactions.txn_mutants import TRANSACTION_MUTANTS

    if level == 1:
        return MUTANTS
    of_variants = {TRANSACTIONS: TRANSACTION_MUTANTS, GUARDED: GUARD_MUTANTS, PROVEN: PROOF_MUTANTS}
    return of_variants.get(variant, CLUSTER_MUTANTS)


def simulate(
    seeds: int,
    seed: int | None = None,
    brokers: int = 3,
    *,
    first: int = 0,
    mutant: str | None = None,
    all_lines: bool = False,
    jobs: int = 1,
    progress: Progress = unseen,
) -> int:
    """Print what was run and what failed; returns 0 if nothing failed."""
    from klamm.sim import runner  # after a mutant was put in place

    if seed is not None:
        return _simulate_one(seed, brokers, mutant, all_lines)
    started = time.perf_counter()
    if jobs > 1:
        summary = runner.run_parallel(first, seeds, brokers, jobs=jobs, on_done=lambda done: progress(done, seeds))
    else:
        summary = runner.run_seeds(first, seeds, brokers, on_done=lambda done: progress(done, seeds))
    seconds = time.perf_counter() - started
    progress(seeds, seeds)  # also after a failure: nothing of it may remain on the line of the report
    for failure in summary.failures:
        _print_failure(failure.seed, failure.error, failure.transcript, brokers, mutant, all_lines)
    print(
        f"{summary.seeds} seeds, {summary.steps} controller steps, {summary.simulated_ms / 1000:.0f} simulated s "
        f"in {seconds:.1f} s, {len(summary.failures)} failed"
    )
    _print_faults(summary.faults)
    return 1 if summary.failures else 0


def _simulate_one(seed: int, brokers: int, mutant: str | None, all_lines: bool) -> int:
    """Print the transcript if something is wrong or on request."""
    from klamm.sim import runner

    world, found = runner.run_traced(seed, brokers)
    if found is not None:
        _print_failure(seed, found.error, found.transcript, brokers, mutant, all_lines=True)
        return 1
    if all_lines:
        print("\n".join(world.lines))
    print(f"seed {seed} with {brokers} brokers: nothing is wrong ({world.steps} controller steps)")
    _print_faults(world.all_faults())
    return 0


def _print_faults(faults: Counter[str]) -> None:
    """Print how often each fault and each deliberate action happened."""
    for name, count in sorted(faults.items()):
        print(f"  {count:8d} {name}")


def simulate_cluster(
    seeds: int,
    seed: int | None = None,
    brokers: int = 3,
    *,
    first: int = 0,
    mutant: str | None = None,
    all_lines: bool = False,
    variant: str = PLAIN,
    aim: str = "",
    reports: str = "",
    anomalies: Collection[str] = (),
    progress: Progress = unseen,
) -> int:
    """The same for level 2: whole brokers, with clients that produce and consume, or a variant of these.

    `aim`: an aimed scenario, of transactions in that variant.

    `reports`: look for a seed in which the checkers of transactions report this anomaly and no other one.

    `anomalies`: look for a seed in which they report all of these.
    """
    from klamm.sim import cluster_runner  # after a mutant was put in place
    from klamm.sim.transactions.anomalies import reported_kinds

    scenario = _scenario(variant, aim)
    options = (f" --level 2 --{variant}" if variant else " --level 2") + (f" --aim '{aim}'" if aim else "")
    if seed is not None:
        cluster, found = cluster_runner.run_cluster(seed, brokers, tracing=True, scenario=scenario)
        if found is not None:
            _print_failure(seed, found.error, found.transcript, brokers, mutant, all_lines=True, options=options)
            return 1
        _print_one_cluster(cluster, brokers, all_lines)
        return 0
    started = time.perf_counter()
    is_mutant = mutant is not None
    summary = cluster_runner.run_cluster_seeds(
        first,
        seeds,
        brokers,
        tracing=is_mutant,
        scenario=scenario,
        stop_at=lambda failure: (
            (not reports or is_report_of(failure.error, reports))
            and reported_kinds(failure.error).issuperset(anomalies)
        ),
        on_done=lambda done: progress(done, seeds),
    )
    seconds = time.perf_counter() - started
    progress(seeds, seeds)
    for failure in summary.failures:
        _print_failure(failure.seed, failure.error, failure.transcript, brokers, mutant, all_lines, options=options)
    print(
        f"{summary.seeds} seeds of whole clusters, {summary.records} records acknowledged, "
        f"{summary.simulated_s:.0f} simulated s in {seconds:.1f} s, {len(summary.failures)} failed"
    )
    print(", ".join(f"{kind}: {count}" for kind, count in sorted(summary.counts.items())))
    return 1 if summary.failures else 0


def is_report_of(error: str, kind: str) -> bool:
    """Whether the checkers of transactions reported this anomaly alone."""
    return error.startswith(f"Violation: {kind}: ") and " | " not in error


def aim_names(variant: str = PLAIN) -> list[str]:
    """Return the aimed scenarios of a variant of level 2."""
    from klamm.sim.aimed.cluster_aims import CLUSTER_AIMS
    from klamm.sim.transactions.aims import AIMS

    return {PLAIN: list(CLUSTER_AIMS), TRANSACTIONS: list(AIMS)}.get(variant, [])


def _scenario(variant: str, aim: str) -> NewScenario:
    from klamm.sim.cluster_runner import Scenario
    from klamm.sim.guarded.guarded_scenario import GuardedScenario
    from klamm.sim.guarded.proven_scenario import ProvenScenario
    from klamm.sim.transactions.txn_scenario import TransactionScenario

    if aim and not variant:
        from klamm.sim.aimed.cluster_aims import CLUSTER_AIMS
        from klamm.sim.aimed.cluster_stage import ClusterStage

        return partial(ClusterStage, aim=CLUSTER_AIMS[aim])
    if aim:
        from klamm.sim.transactions.aimed_stage import Stage
        from klamm.sim.transactions.aims import AIMS

        return partial(Stage, aim=AIMS[aim])
    of_variants = {TRANSACTIONS: TransactionScenario, GUARDED: GuardedScenario, PROVEN: ProvenScenario}
    return of_variants.get(variant, Scenario)


def _print_one_cluster(cluster: SimCluster, brokers: int, all_lines: bool) -> None:
    if all_lines:
        print("\n".join(cluster.lines))
    records = sum(map(len, cluster.history.acknowledged.values()))
    print(f"seed {cluster.seed} with {brokers} whole brokers: nothing is wrong ({records} records acknowledged)")
    _print_faults(cluster.counts)


def _print_failure(
    seed: int,
    error: str,
    transcript: Sequence[str],
    brokers: int,
    mutant: str | None,
    all_lines: bool,
    *,
    options: str = "",
) -> None:
    hidden = 0 if all_lines else max(0, len(transcript) - SHOWN_LINES)
    if hidden:
        print(f"... {hidden} lines before; the replay shows them")
    print("\n".join(transcript[hidden:]))
    print(f"seed {seed}: {error}")
    extra = options + (f" --mutant {mutant}" if mutant else "")
    print(f"replay with: klamm simulate --seed {seed} --brokers {brokers}{extra}")
