"""This tree beside an earlier state of it: `python -m bench.two_states --baseline DIR [--name before-house] [--write]`.

DIR is the `src` directory of a checkout of the earlier state. A broker of each state is up all the time, and the same
load goes to one after the other. The figures are CPU time of the broker process per request, which other programs on
the machine disturb less than rates. A ratio is this tree / the earlier state, per round; below 1 this tree is cheaper.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench import frames, load, report
from bench.processes import cpu_seconds

CONNECTIONS: Final = 4
IN_FLIGHT: Final = 5
WARM_UP: Final = 10
MIB: Final = 1 << 20
PARTITIONS: Final = {1: "produce-1", 16: "produce-16", 256: "produce-256"}
"""Topics by the KiB of their batches."""

# Runs with the modules of the state that is measured.
BROKER: Final = """
import sys
from klamm.testing import LocalCluster
with LocalCluster(brokers=1) as cluster:
    for topic in sys.argv[1:]:
        cluster.create_topic(topic, partitions=4)
    broker = cluster.broker_ids[0]
    print(cluster.port(broker), cluster.pid(broker), flush=True)
    sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class State:
    """A running broker of one state of the tree."""

    port: int
    pid: int

    def cost_us(self, sent: list[bytes], requests: int) -> float:
        """Send the frames and return the CPU time of the broker per request."""
        before = cpu_seconds(self.pid)
        done = load.run(self.port, sent, in_flight=IN_FLIGHT, requests=requests)
        return (cpu_seconds(self.pid) - before) / done.requests * 1e6


@contextmanager
def running(source: Path) -> Iterator[State]:
    process = subprocess.Popen(
        [sys.executable, "-c", BROKER, *PARTITIONS.values()],
        env={**os.environ, "PYTHONPATH": str(source)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        words = process.stdout.readline().split()
        if len(words) != 2:
            raise RuntimeError(f"The broker of {source} did not start.")
        yield State(*map(int, words))
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    sent: list[bytes]
    requests: int


def cases(scale: float) -> Iterator[Case]:
    for kib, requests in ((1, 40_000), (16, 16_000), (256, 1_000)):
        built = [frames.produce_frame(PARTITIONS[kib], p, kib * 1024).frame for p in range(CONNECTIONS)]
        yield Case(f"Produce, {kib} KiB batches", built, int(requests * scale))
    reads = [frames.fetch_frame(PARTITIONS[256], [0], MIB) for _ in range(CONNECTIONS)]
    yield Case("Fetch, 1 MiB per request", reads, int(2_000 * scale))
    yield Case("ListOffsets", [frames.list_offsets_frame(PARTITIONS[1])] * CONNECTIONS, int(40_000 * scale))


def rows(ours: State, theirs: State, rounds: int, scale: float) -> Iterator[tuple[str, ...]]:
    for case in cases(scale):
        for state in (ours, theirs):
            state.cost_us(case.sent, max(CONNECTIONS, case.requests // WARM_UP))
        pairs = []
        for turn in range(rounds):
            first, second = (ours, theirs) if turn % 2 else (theirs, ours)
            costs = {state: state.cost_us(case.sent, case.requests) for state in (first, second)}
            pairs.append((costs[ours], costs[theirs]))
        ratios = sorted(our / their for our, their in pairs)
        quarters = statistics.quantiles(ratios, n=4)
        here, before = (statistics.median(side) for side in zip(*pairs, strict=True))
        yield (
            case.name,
            f"{here:.1f}",
            f"{before:.1f}",
            f"{statistics.median(ratios):.3f}",
            f"{quarters[0]:.3f} to {quarters[2]:.3f}",
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.two_states", description=__doc__)
    parser.add_argument("--baseline", type=Path, required=True, metavar="DIR", help="src of the earlier state")
    parser.add_argument("--name", default="earlier state", help="what the earlier state is, for the section")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="four rounds with a tenth of the requests")
    parser.add_argument("--write", action="store_true", help="write the section of RESULTS.md")
    args = parser.parse_args()
    load_at_start = report.load_average()
    rounds, scale = (4, 0.1) if args.quick else (args.rounds, 0.25)
    here = Path(__file__).resolve().parents[1] / "src"
    with ExitStack() as stack:
        ours, theirs = (stack.enter_context(running(source)) for source in (here, args.baseline.resolve()))
        lines = list(rows(ours, theirs, rounds, scale))
    header = ("CPU of the broker per request, us", "this tree", args.name, "ratio", "its quartiles")
    section = "\n".join(
        [
            f"## This tree beside the {args.name}",
            "",
            f"`python -m bench.two_states`: {rounds} rounds in turn; a ratio below 1 means that this tree is cheaper.",
            "",
            f"Machine: {report.machine()}. {report.load_note(load_at_start)}",
            "",
            report.table(header, lines),
        ]
    )
    print(section)
    if args.write:
        report.write_section(f"two-states-{args.name.replace(' ', '-')}", section)


if __name__ == "__main__":
    main()
