"""Level 2: whole brokers, clients and faults on one loop in virtual time. Seeds that once failed are run first.

`test_aimed_clusters.py` has the mutants that need a certain course of events. `make sim` runs more seeds.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from klamm.sim.cluster_mutants import CLUSTER_MUTANTS
from klamm.sim.cluster_runner import ClusterSummary, run_cluster_seeds
from klamm.sim.command import main
from klamm.sim.loop import Deadlock, Livelock, SimLoop, SimProcess
from tests.support.long_form import every
from tests.support.mutant_runs import CAUGHT, MutantRuns, mutant_runs
from tests.support.sim_form import IS_LONG

FOUND = [line.split("#")[0].split() for line in (Path(__file__).parent / "cluster_seeds.txt").read_text().splitlines()]
SEED_MUTANTS = {name: mutant for name, mutant in CLUSTER_MUTANTS.items() if not mutant.aim}
KNOWN_SEEDS = [int(words[0]) for words in FOUND if words]
SEEDS, PART = (50, 10) if IS_LONG else (2, 2)
SLOW_MUTANTS = {
    "diverging_logs_are_not_reported",
    "end_is_returned_before_it_is_known",
    "log_end_is_not_the_end",
    "members_that_just_left_not_waited_for",
    "not_registered_again",
    "offset_commits_do_not_wait",
    "producers_forgotten_at_restart",
    "stale_controllers_are_obeyed",
    "strays_of_deposed_controllers_kept",
    "unclean_shutdown_not_reported",
    "zookeeper_is_asked_for_the_epoch_only",
}
"""Mutants that need many seeds, or a long one. `make sim` runs them, and all the others."""
RARE_SEEDS = (124, 156, 220)
"""Seeds in which a staggered power failure finds its victims. A change of the brokers can shift them."""
INJECTED = {
    "clock backwards",
    "clock forwards",
    "controlled shutdown",
    "controller deleted",
    "cut both ways",
    "cut from zookeeper",
    "cut one way",
    "damaged disk",
    "disk",
    "forged follower fetch",
    "forged request",
    "isolate",
    "kill",
    "late controller",
    "late high watermark",
    "leader election",
    "lonely coordinator",
    "lost replies",
    "overtaken deletion",
    "pause",
    "power failure of 1",
    "power failure of 2",
    "power failure of all",
    "reassignment",
    "registration deleted",
    "slow link",
    "staggered power failure",
    "staggered power failure, other controller",
    "zookeeper down",
    "zookeeper loses connections",
}
CAUSED = {
    "disk operations failed",
    "leaderships",
    "messages late",
    "reads from followers",
    "replies lost",
    "sessions expired",
    "writes torn",
    "zookeeper requests lost",
}


def reported(summary: ClusterSummary) -> str:
    return "\n".join(
        line
        for failure in summary.failures
        for line in (
            *failure.transcript[-80:],
            f"{failure.error}\nreplay with: klamm simulate --level 2 --seed {failure.seed}",
        )
    )


@pytest.mark.parametrize("seed", KNOWN_SEEDS)
def test_a_seed_that_once_failed(seed: int) -> None:
    summary = run_cluster_seeds(seed, 1)
    assert not summary.failures, reported(summary)


@cache
def part(first: int) -> ClusterSummary:
    return run_cluster_seeds(first, PART)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_seeds(first: int) -> None:
    summary = part(first)
    assert not summary.failures, reported(summary)
    assert summary.records > 100 * PART


if IS_LONG:

    @pytest.mark.timeout(600)
    def test_every_fault_is_injected_and_has_its_effect() -> None:
        rare = [run_cluster_seeds(seed, 1) for seed in RARE_SEEDS]
        assert not any(summary.failures for summary in rare), "\n".join(map(reported, rare))
        parts = [part(first) for first in range(0, SEEDS, PART)]
        assert set(sum((summary.counts for summary in (*parts, *rare)), Counter[str]())) == INJECTED | CAUSED


@pytest.fixture(scope="module")
def runs() -> Iterator[MutantRuns]:
    with mutant_runs() as made:
        yield made


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", every(5, SEED_MUTANTS, slow=SLOW_MUTANTS))
def test_mutant_is_caught(name: str, runs: MutantRuns) -> None:
    run = runs.run(name)
    assert run.code == CAUGHT, f"{name} survived: {run.shown[-1000:]}"
    assert "\nreplay with: klamm simulate --seed" in run.shown


def test_fetch_sessions_are_compared_with_a_full_walk(runs: MutantRuns) -> None:
    run = runs.run("changes_do_not_reach_fetch_sessions")
    assert run.code == CAUGHT
    assert re.search(r"Violation: broker \d: a fetch session of (broker \d|a consumer) skips \S+: ", run.shown)


def test_a_replay_reports_the_whole_run() -> None:
    command = [sys.executable, "-m", "klamm.sim", "--level", "2", "--mutant", "acks_all_does_not_wait", "--seed", "0"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 1, run.stderr
    assert "lines before" not in run.stdout and "broker 1 answers" in run.stdout
    assert "seed 0: Violation: " in run.stdout
    assert "replay with: klamm simulate --seed 0 --brokers 3 --level 2 --mutant acks_all_does_not_wait" in run.stdout


def test_one_seed_is_printed_from_its_beginning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--level", "2", "--seed", "1", "--brokers", "2", "--all-lines"]) == 0
    shown = capsys.readouterr().out
    assert "broker 1 answers" in shown and "seed 1 with 2 whole brokers: nothing is wrong" in shown


# --- the loop ---------------------------------------------------------------------------------------------------------


def test_time_is_virtual_and_a_deadlock_is_reported() -> None:
    loop = SimLoop(1)

    async def sleep_and_wait() -> None:
        await asyncio.sleep(100_000)
        await loop.create_future()

    with pytest.raises(Deadlock):
        loop.run_until_complete(sleep_and_wait())
    assert loop.time() == 100_000
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()


def test_a_loop_that_stands_still_is_reported() -> None:
    loop = SimLoop(1)

    def again() -> None:
        loop.call_soon(again)

    loop.call_soon(again)
    with pytest.raises(Livelock):
        loop.run_forever()
    loop.close()


def test_a_paused_process_runs_due_callbacks_later_and_a_killed_one_never() -> None:
    loop = SimLoop(1)
    paused, killed = SimProcess("paused", "a"), SimProcess("killed", "b")
    seen: list[tuple[str, float]] = []

    async def tick(name: str) -> None:
        while True:
            seen.append((name, loop.time()))
            await asyncio.sleep(1)

    async def main() -> None:
        for process in (paused, killed):
            loop.spawn(process, tick(process.name))
        await asyncio.sleep(1.5)
        loop.pause(paused)
        killed.kill()
        await asyncio.sleep(5)
        loop.resume(paused)
        await asyncio.sleep(1.2)

    loop.run_until_complete(main())
    for process in (paused, killed):
        process.kill()
        process.bury()
    loop.close()
    assert [at for name, at in seen if name == "paused"] == [0, 1, 6.5, 7.5]
    assert [at for name, at in seen if name == "killed"] == [0, 1]
