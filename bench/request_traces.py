"""The cost of request traces: `python -m bench.request_traces`.

One broker per setting, all up at once. In each round every broker gets the same load, in turn; the table shows the
broker's own CPU time per request, which other processes disturb less than rates. `--baseline DIR` adds a broker of
another source tree, such as the commit before traces.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import uvloop

from bench import frames, load, report
from bench.network import APIS, case_frame
from klamm.clock import SystemClock
from klamm.metrics import MetricsRegistry
from klamm.model import EndPoint
from klamm.network import SocketServer
from klamm.testing import LocalCluster

SECTION: Final = "request-traces"
CONNECTIONS, IN_FLIGHT = 4, 5
TOPIC: Final = "bench"
_PROCESS_CLOCK: Final = 2
"""Linux makes the id of a process's CPU clock from its pid and this."""
_TRACE: Final = "klamm.request.trace."
SETTINGS: Final[Mapping[str, Mapping[str, object]]] = {
    "off": {},
    "1 in 100, in memory": {f"{_TRACE}sample": 100},
    "1 in 100, topic": {f"{_TRACE}sample": 100, f"{_TRACE}topic.enable": True},
    "every request, in memory": {f"{_TRACE}sample": 1},
    "every request slower than 1 s": {f"{_TRACE}sample": 1, f"{_TRACE}slower.than.ms": 1000},
}
BASELINE: Final = "before traces existed"
HEADER: Final = ("", "setting", "CPU per request", "difference, median", "range")


def cpu_seconds(pid: int) -> float:
    """The CPU time of another process, to the nanosecond: ticks of /proc are as long as 200 requests."""
    return time.clock_gettime((~pid << 3) | _PROCESS_CLOCK)


class _NetworkLayer:
    """A SocketServer whose APIs do nothing, in a thread of its own; measures the CPU time of that thread."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._port: Future[int] = Future()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.port = self._port.result(60)
        assert self._thread.ident is not None
        self._clock = time.pthread_getcpuclockid(self._thread.ident)
        self._frames = [case_frame("produce", 1024)] * CONNECTIONS

    def _run(self) -> None:
        async def start() -> None:
            clock = SystemClock()
            endpoint = EndPoint("PLAINTEXT", "127.0.0.1", 0)
            self.server = SocketServer((endpoint,), APIS, loop=self._loop, clock=clock, registry=MetricsRegistry(clock))
            await self.server.bind()
            self.server.start_processing()
            self._port.set_result(self.server.bound_port("PLAINTEXT"))

        self._loop.run_until_complete(start())
        self._loop.run_forever()

    def trace(self, sample: int) -> None:
        """Change the settings; an earlier state of klamm has none."""
        tracer = getattr(self.server, "tracer", None)
        if tracer is not None:
            from klamm.network.request_tracer import TraceSettings

            done: Future[None] = Future()
            self._loop.call_soon_threadsafe(lambda: done.set_result(tracer.apply(TraceSettings(sample))))
            done.result(60)

    def microseconds(self, requests: int) -> float:
        before = time.clock_gettime(self._clock)
        load.run(self.port, self._frames, in_flight=IN_FLIGHT, requests=requests)
        return (time.clock_gettime(self._clock) - before) / requests * 1e6


def network_layer(rounds: int) -> dict[int, float]:
    """Return the least CPU time per request by sample, over rounds in turn."""
    layer = _NetworkLayer()
    layer.microseconds(2_000)
    best: dict[int, float] = {}
    for _ in range(rounds):
        for sample in (0, 100, 1):
            layer.trace(sample)
            best[sample] = min(best.get(sample, 1e9), layer.microseconds(500))
    return best


def network_rows(rounds: int, processes: int, baseline: Path | None) -> Iterator[tuple[str, ...]]:
    """Each tree in several processes, in turn: the layout of memory differs from process to process."""
    trees = {"": None} if baseline is None else {BASELINE: baseline, "": None}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
    for _ in range(processes):
        for name, tree in trees.items():
            with source_tree(tree):
                command = [sys.executable, "-m", "bench.request_traces", "--network", str(rounds)]
                found[name].append(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))
    off = [run["0"] for run in found[""]]
    what = "Network layer, 1 KiB"
    if baseline is not None:
        before = [run["0"] for run in found[BASELINE]]
        yield _network_row(what, BASELINE, before, off)
    yield what, "off", f"{statistics.median(off):.2f} us", "", ""
    for sample, name in (("100", "1 in 100, in memory"), ("1", "every request, in memory")):
        yield _network_row(what, name, [run[sample] for run in found[""]], off)


def _network_row(what: str, name: str, times: list[float], off: list[float]) -> tuple[str, ...]:
    added = [a - b for a, b in zip(times, off, strict=True)]
    middle = statistics.median(added)
    spread = f"{min(added):+.2f} to {max(added):+.2f} us"
    return what, name, f"{statistics.median(times):.2f} us", f"{middle:+.2f} us", spread


@contextmanager
def source_tree(path: Path | None) -> Iterator[None]:
    """Let brokers that start inside use another source tree."""
    before = os.environ.get("PYTHONPATH")
    if path is not None:
        os.environ["PYTHONPATH"] = str(path.resolve())
    try:
        yield
    finally:
        os.environ.pop("PYTHONPATH", None)
        if before is not None:
            os.environ["PYTHONPATH"] = before


def measure(
    rounds: int, requests: int, kib: int, baseline: Path | None
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return, by setting, the CPU time per produce in us and its ratio to `off` in the same round."""
    found: dict[str, list[float]] = {}
    with ExitStack() as stack:
        clusters: dict[str, LocalCluster] = {}
        if baseline is not None:
            with source_tree(baseline):
                clusters[BASELINE] = stack.enter_context(LocalCluster(brokers=1))
        for name, settings in SETTINGS.items():
            clusters[name] = stack.enter_context(LocalCluster(brokers=1, broker_configs=settings))
        for cluster in clusters.values():
            cluster.create_topic(TOPIC, partitions=CONNECTIONS, config={"retention.bytes": 1 << 28})
        built = [frames.produce_frame(TOPIC, p, kib * 1024).frame for p in range(CONNECTIONS)]
        order = list(clusters.items())
        for turn in range(rounds + 1):
            for name, cluster in order if turn % 2 else reversed(order):
                broker = cluster.broker_ids[0]
                before = cpu_seconds(cluster.pid(broker))
                load.run(cluster.port(broker), built, in_flight=IN_FLIGHT, requests=requests)
                if turn:  # the first round warms up
                    found.setdefault(name, []).append((cpu_seconds(cluster.pid(broker)) - before) / requests * 1e6)
        found = {name: found[name] for name in clusters}
    ratios = {name: [a / b for a, b in zip(times, found["off"], strict=True)] for name, times in found.items()}
    return found, ratios


def rows(rounds: int, requests: int, kib: int, baseline: Path | None) -> Iterator[tuple[str, ...]]:
    found, ratios = measure(rounds, requests, kib, baseline)
    for name, times in found.items():
        shares = [(ratio - 1) * 100 for ratio in ratios[name]]
        ratio = "" if name == "off" else f"{statistics.median(shares):+.1f} %"
        spread = "" if name == "off" else f"{min(shares):+.1f} to {max(shares):+.1f} %"
        yield f"Produce, {kib} KiB", name, f"{statistics.median(times):.1f} us", ratio, spread


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.request_traces", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--write", action="store_true", help="write the section of RESULTS.md")
    parser.add_argument("--rounds", type=int, help="rounds instead of the default")
    parser.add_argument("--baseline", type=Path, metavar="DIR", help="the src directory of an earlier state")
    parser.add_argument("--network", type=int, metavar="ROUNDS", help="print the figures of the network layer as JSON")
    parser.add_argument("--only-network", action="store_true", help="without whole brokers")
    args = parser.parse_args()
    if args.network:
        print(json.dumps(network_layer(args.network)))
        return
    load_at_start = report.load_average()
    rounds, requests = (3, 4_000) if args.quick else (15, 8_000)
    rounds = args.rounds or rounds
    processes = 2 if args.quick else 5
    lines = list(network_rows(15 if args.quick else 100, processes, args.baseline))
    if not args.only_network:
        lines += [line for kib in (1, 16) for line in rows(rounds, requests, kib, args.baseline)]
    text = "\n".join(
        [
            "## Request traces",
            "",
            "`python -m bench.request_traces`: the broker's CPU time per produce, one broker per setting,"
            f" {rounds} rounds in turn of {requests:,} requests.",
            "Differences are those to `off` in the same round. Goal: under 3 % at 1 in 100.",
            "The rows of the network layer serve an API that does nothing, with the least CPU time of the server's",
            f"thread per request: medians and ranges of {processes} processes.",
            "",
            f"Machine: {report.machine()}. {report.load_note(load_at_start)}",
            "",
            report.table(HEADER, lines),
        ]
    )
    print(text)
    if args.write:
        report.write_section(SECTION, text)


if __name__ == "__main__":
    main()
