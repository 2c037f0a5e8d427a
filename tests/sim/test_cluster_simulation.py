"""Level 2: whole brokers, clients and faults on one loop in virtual time. Seeds that once failed are run first."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

from klamm.sim.cluster_mutants import CLUSTER_MUTANTS
from klamm.sim.cluster_runner import ClusterSummary, run_cluster_seeds
from klamm.sim.command import main
from klamm.sim.loop import Deadlock, Livelock, SimLoop, SimProcess

FOUND = [line.split("#")[0].split() for line in (Path(__file__).parent / "cluster_seeds.txt").read_text().splitlines()]
KNOWN_SEEDS = [int(words[0]) for words in FOUND if words]
SEEDS, PART = 50, 10
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


def told(summary: ClusterSummary) -> str:
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
    assert not summary.failures, told(summary)


@cache
def part(first: int) -> ClusterSummary:
    return run_cluster_seeds(first, PART)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_seeds(first: int) -> None:
    summary = part(first)
    assert not summary.failures, told(summary)
    assert summary.records > 100 * PART


@pytest.mark.timeout(600)
def test_every_fault_is_injected_and_has_its_effect() -> None:
    counts = sum((part(first).counts for first in range(0, SEEDS, PART)), Counter[str]())
    assert set(counts) == INJECTED | CAUSED


@pytest.fixture(scope="module")
def mutant_runs() -> Iterator[dict[str, Future[subprocess.CompletedProcess[str]]]]:
    """Each in a process of its own, since it changes the source of a module; two at a time."""
    pool = ThreadPoolExecutor(2)
    yield {name: pool.submit(_run_mutant, name) for name in CLUSTER_MUTANTS}
    pool.shutdown(cancel_futures=True)


def _run_mutant(name: str) -> subprocess.CompletedProcess[str]:
    mutant = CLUSTER_MUTANTS[name]
    command = [sys.executable, "-m", "klamm.sim", "--level", "2", "--mutant", name]
    limits = ["--first", str(mutant.first), "--seeds", str(mutant.seeds)]
    return subprocess.run([*command, *limits], capture_output=True, text=True)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CLUSTER_MUTANTS)
def test_mutant_is_caught(name: str, mutant_runs: dict[str, Future[subprocess.CompletedProcess[str]]]) -> None:
    run = mutant_runs[name].result()
    assert run.returncode == 1, f"{name} survived: {run.stdout[-500:]}{run.stderr[-500:]}"
    assert "\nreplay with: klamm simulate --seed" in run.stdout


def test_a_replay_tells_the_whole_story() -> None:
    command = [sys.executable, "-m", "klamm.sim", "--level", "2", "--mutant", "acks_all_does_not_wait", "--seed", "0"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 1, run.stderr
    assert "lines before" not in run.stdout and "broker 1 answers" in run.stdout
    assert "seed 0: Violation: " in run.stdout
    assert "replay with: klamm simulate --seed 0 --brokers 3 --level 2 --mutant acks_all_does_not_wait" in run.stdout


def test_one_seed_is_told_from_its_beginning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--level", "2", "--seed", "1", "--brokers", "2", "--all-lines"]) == 0
    shown = capsys.readouterr().out
    assert "broker 1 answers" in shown and "seed 1 with 2 whole brokers: nothing is wrong" in shown


# --- the loop ---------------------------------------------------------------------------------------------------------


def test_time_is_virtual_and_a_deadlock_is_told() -> None:
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


def test_a_paused_process_does_later_what_was_due_and_a_killed_one_nothing() -> None:
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
