"""The simulator's command line: `python -m klamm.sim [--level 2] --seeds N [--seed S] [--brokers B] [--mutant M]`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

SHOWN_LINES = 120


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="klamm simulate", description="Tries to break the control plane (level 1) or whole brokers (level 2)."
    )
    parser.add_argument(
        "--level", type=int, choices=[1, 2], default=1, help="1: the controller's core; 2: whole brokers"
    )
    parser.add_argument("--seeds", type=int, help="how many seeds to run (default 200, or as many as the mutant needs)")
    parser.add_argument("--first", type=int, default=0, help="the first seed of the range")
    parser.add_argument("--seed", type=int, help="run this one seed and print its transcript")
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--mutant", help="run with this bug built in: the run should fail")
    parser.add_argument("--all-lines", action="store_true", help="print whole transcripts")
    args = parser.parse_args(argv)
    if args.mutant:
        from klamm.sim.cluster_mutants import CLUSTER_MUTANTS
        from klamm.sim.mutants import MUTANTS, install

        mutant = install(args.mutant, MUTANTS if args.level == 1 else CLUSTER_MUTANTS)
        if args.seeds is None:
            args.seeds = mutant.seeds
    run = simulate if args.level == 1 else simulate_cluster
    seeds = args.seeds or (200 if args.level == 1 else 50)
    return run(seeds, args.seed, args.brokers, first=args.first, mutant=args.mutant, all_lines=args.all_lines)


def simulate(
    seeds: int,
    seed: int | None = None,
    brokers: int = 3,
    *,
    first: int = 0,
    mutant: str | None = None,
    all_lines: bool = False,
) -> int:
    """Prints what was run and what failed; 0 when nothing did."""
    from klamm.sim import runner  # after a mutant was put in place

    if seed is not None:
        found = runner.replay(seed, brokers)
        if found is None:
            print(f"seed {seed} with {brokers} brokers: nothing is wrong")
            return 0
        _print_failure(seed, found.error, found.transcript, brokers, mutant, all_lines)
        return 1
    started = time.perf_counter()
    summary = runner.run_seeds(first, seeds, brokers)
    seconds = time.perf_counter() - started
    for failure in summary.failures:
        _print_failure(failure.seed, failure.error, failure.transcript, brokers, mutant, all_lines)
    print(
        f"{summary.seeds} seeds, {summary.steps} controller steps, {summary.simulated_ms / 1000:.0f} simulated s "
        f"in {seconds:.1f} s, {len(summary.failures)} failed"
    )
    return 1 if summary.failures else 0


def simulate_cluster(
    seeds: int,
    seed: int | None = None,
    brokers: int = 3,
    *,
    first: int = 0,
    mutant: str | None = None,
    all_lines: bool = False,
) -> int:
    """The same for level 2: whole brokers, with clients that produce and consume."""
    from klamm.sim import cluster_runner  # after a mutant was put in place

    started = time.perf_counter()
    if seed is not None:
        seeds, first = 1, seed
    summary = cluster_runner.run_cluster_seeds(first, seeds, brokers)
    seconds = time.perf_counter() - started
    for failure in summary.failures:
        _print_failure(failure.seed, failure.error, failure.transcript, brokers, mutant, all_lines, level=2)
    print(
        f"{summary.seeds} seeds of whole clusters, {summary.records} records acknowledged, "
        f"{summary.simulated_s:.0f} simulated s in {seconds:.1f} s, {len(summary.failures)} failed"
    )
    print(", ".join(f"{kind}: {count}" for kind, count in sorted(summary.counts.items())))
    return 1 if summary.failures else 0


def _print_failure(
    seed: int,
    error: str,
    transcript: Sequence[str],
    brokers: int,
    mutant: str | None,
    all_lines: bool,
    *,
    level: int = 1,
) -> None:
    hidden = 0 if all_lines else max(0, len(transcript) - SHOWN_LINES)
    if hidden:
        print(f"... {hidden} lines before (--all-lines shows them)")
    print("\n".join(transcript[hidden:]))
    print(f"seed {seed}: {error}")
    extra = (" --level 2" if level == 2 else "") + (f" --mutant {mutant}" if mutant else "")
    print(f"replay with: python -m klamm.sim --seed {seed} --brokers {brokers}{extra}")
