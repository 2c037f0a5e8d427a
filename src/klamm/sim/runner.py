"""Runs seeds: faults and work, then quiet, then the final checks. A failing seed is replayed with its transcript."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context

from klamm.sim.leaders import Leaders
from klamm.sim.quiet import check_quiet
from klamm.sim.silence import silence_brokers
from klamm.sim.workload import Workload
from klamm.sim.world import World

FAULTS_MS = 3_000
QUIET_MS = 4_500
LAST_CHANGE_MS = 300
"""Time for new addresses in a quiet cluster. Nothing happens afterwards, so a request that is missing stays missing."""
PART = 25
"""Seeds per work item of a process."""
OnDone = Callable[[int], None]
"""Receives the number of finished seeds."""


def ignore(seeds: int) -> None:
    """Report no progress."""


@dataclass(frozen=True, slots=True)
class Failure:
    seed: int
    error: str
    transcript: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Summary:
    seeds: int
    steps: int
    simulated_ms: int
    failures: tuple[Failure, ...]
    faults: Counter[str]
    """How often each fault was injected, and each deliberate action done."""


def _run(world: World) -> None:
    for until_ms in run_phases(world, Workload(world)):
        world.scheduler.run_until(until_ms)


def run_phases(world: World, work: Workload) -> Iterator[int]:
    """Yield the times until which the caller runs the world: faults and work, then quiet, then the final checks."""
    world.later(20, work.tick)
    world.later(30, Leaders(work).tick)
    yield FAULTS_MS
    world.resume_all()
    if world.scheduler.rng.random() < 0.5:
        world.mend_log_dirs()
    yield FAULTS_MS + QUIET_MS
    yield from _settle(world)
    work.faults.move_in_place()
    yield world.scheduler.time_ms + LAST_CHANGE_MS
    yield from _settle(world)
    check_quiet(world, work)
    yield from work.faults.empty_producer_ids()


def _settle(world: World) -> Iterator[int]:
    patience = 200
    while patience and not world.is_settled():
        patience -= 1
        yield world.scheduler.time_ms + 5


def replay(seed: int, brokers: int = 3) -> Failure | None:
    """Run one seed and return its transcript; None if nothing is wrong."""
    return run_traced(seed, brokers)[1]


def run_traced(seed: int, brokers: int = 3) -> tuple[World, Failure | None]:
    """Run one seed and return its transcript, even if nothing is wrong."""
    world = World(seed, brokers, tracing=True)
    try:
        _run(world)
    except Exception as error:
        return world, Failure(seed, f"{type(error).__name__}: {error}", tuple(world.lines))
    return world, None


def fingerprint(seed: int, brokers: int = 3) -> str:
    """Return a digest of the run: the same for the same seed in every process."""
    return hashlib.sha256("\n".join(run_traced(seed, brokers)[0].lines).encode()).hexdigest()[:16]


def run_seeds(
    first: int, count: int, brokers: int = 3, *, stop_at_failure: bool = True, on_done: OnDone = ignore
) -> Summary:
    steps = simulated = seeds = 0
    failures = []
    faults: Counter[str] = Counter()
    for seed in range(first, first + count):
        seeds += 1
        world = World(seed, brokers)
        try:
            _run(world)
        except Exception:
            failure = replay(seed, brokers)
            assert failure is not None, (
                f"seed {seed} failed, and not when replayed: the simulation is not deterministic"
            )
            failures.append(failure)
            if stop_at_failure:
                break
        steps += world.steps
        simulated += world.scheduler.time_ms
        faults.update(world.all_faults())
        on_done(seeds)
    return Summary(seeds, steps, simulated, tuple(failures), faults)


def run_parallel(first: int, count: int, brokers: int = 3, *, jobs: int = 2, on_done: OnDone = ignore) -> Summary:
    """Run the seeds in several processes; the first failure ends the run."""
    parts = [(first + i, min(PART, count - i), brokers) for i in range(0, count, PART)]
    whole = Summary(0, 0, 0, (), Counter())
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=silence_brokers) as pool:
        running = [pool.submit(run_seeds, *part) for part in parts]
        for done in as_completed(running):
            if done.cancelled():
                continue
            part = done.result()
            whole = Summary(
                whole.seeds + part.seeds,
                whole.steps + part.steps,
                whole.simulated_ms + part.simulated_ms,
                (*whole.failures, *part.failures),
                whole.faults + part.faults,
            )
            on_done(whole.seeds)
            if part.failures:
                pool.shutdown(wait=False, cancel_futures=True)
    return whole
