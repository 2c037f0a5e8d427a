"""The cost of request traces: `python -m bench.request_traces`.

One broker; its settings change while it runs. Short slices of load come in groups of four, off-on-on-off or
on-off-off-on, so that a drift of the machine cancels out. The table shows the broker's own CPU time per request and
the median of the ratios of all groups, with their quartiles. The setting "off again" is the same as off: its row shows
how far the method is to be trusted. `--baseline DIR` compares the network layer with another source tree, such as the
commit before traces.

`--instructions` counts the instructions of the broker instead, with callgrind. The counts do not depend on the load of
the machine, so their intervals are narrow; they leave out the kernel.
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
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvloop
from confluent_kafka.admin import AdminClient, NewTopic

from bench import frames, load, report
from bench.instructions import counted_cluster
from bench.network import APIS, case_frame
from bench.processes import cpu_seconds
from klamm.client.blocking_connection import ask_once
from klamm.clock import SystemClock
from klamm.metrics import MetricsRegistry
from klamm.model import EndPoint
from klamm.network import SocketServer
from klamm.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from klamm.testing import LocalCluster

SECTION: Final = "request-traces"
INSTRUCTIONS_SECTION: Final = "request-trace-instructions"
CONNECTIONS, IN_FLIGHT = 4, 5
WRITTEN, REPLICATED, READ = "bench-written", "bench-replicated", "bench-read"
_TRACE: Final = "klamm.request.trace."
_OFF: Final = {"sample": "0", "topic.enable": "false", "slower.than.ms": "0.0"}
_LIMITS: Final = {"retention.bytes": str(1 << 28)}
MAIN: Final = "1 in 100, in memory"
SETTINGS: Final[Mapping[str, Mapping[str, str]]] = {
    "off again": {"slower.than.ms": "1.0"},
    MAIN: {"sample": "100"},
    "1 in 100, topic": {"sample": "100", "topic.enable": "true"},
    "every request, in memory": {"sample": "1"},
}
EVERY: Final = {MAIN: 1, "off again": 2}
"""In which turns a setting is measured; all others in every fourth."""
BASELINE: Final = "before traces existed"
HEADER: Final = ("", "setting", "per request, off", "difference, median", "95 % interval", "quartiles", "groups")
NETWORK_HEADER: Final = ("", "setting", "CPU per request", "difference, median", "range")


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


@dataclass(frozen=True, slots=True)
class Workload:
    """Equal requests: `frames` has one per connection."""

    name: str
    frames: list[bytes]
    in_flight: int


def workloads() -> list[Workload]:
    produces = [frames.produce_frame(WRITTEN, p, 1024).frame for p in range(CONNECTIONS)]
    replicated = [frames.produce_frame(REPLICATED, p, 1024, acks=-1).frame for p in range(CONNECTIONS)]
    fetches = [frames.fetch_frame(READ, [0], 16 * 1024)] * CONNECTIONS
    return [
        Workload("Produce 1 KiB, one outstanding", produces[:1], 1),
        Workload(f"Produce 1 KiB, {CONNECTIONS} x {IN_FLIGHT} outstanding", produces, IN_FLIGHT),
        Workload(f"Produce 1 KiB to two replicas, {CONNECTIONS} x {IN_FLIGHT} outstanding", replicated, IN_FLIGHT),
        Workload("Fetch 16 KiB, one outstanding", fetches[:1], 1),
        Workload(f"Fetch 16 KiB, {CONNECTIONS} x {IN_FLIGHT} outstanding", fetches, IN_FLIGHT),
    ]


class _Broker:
    """Broker 1 of a cluster of two: it leads all partitions. Its settings change, and `meter` has its cost so far."""

    def __init__(self, cluster: LocalCluster, meter: Callable[[], float]) -> None:
        self._port, self._meter = cluster.port(1), meter
        topics = [
            NewTopic(name, num_partitions=count, replica_assignment=[replicas] * count, config=_LIMITS)
            for name, count, replicas in (
                (WRITTEN, CONNECTIONS, [1]),
                (REPLICATED, CONNECTIONS, [1, 2]),
                (READ, 1, [1]),
            )
        ]
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        for created in admin.create_topics(topics, request_timeout=300).values():
            created.result(300)
        led = [(topic.topic, number) for topic in topics for number in range(topic.num_partitions)]
        cluster.wait_for(lambda: all(cluster.leader(*it) == 1 for it in led), timeout_s=300, what="leaders")
        load.run(self._port, [frames.produce_frame(READ, 0, 16 * 1024).frame], in_flight=1, requests=10)

    def set(self, settings: Mapping[str, str]) -> None:
        """Change the settings. The broker answers when it has applied them."""
        configs = [
            AlterableConfig(name=f"{_TRACE}{key}", config_operation=0, value=value)
            for key, value in (_OFF | dict(settings)).items()
        ]
        resource = AlterConfigsResource(resource_type=4, resource_name="1", configs=configs)
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        answer = ask_once(("127.0.0.1", self._port), request, 0, IncrementalAlterConfigsResponse, 300)
        assert answer.responses[0].error_code == 0, answer.responses[0].error_message

    def cost(self, workload: Workload, requests: int) -> float:
        """Return the cost per request, of all threads of the broker."""
        before = self._meter()
        load.run(self._port, workload.frames, in_flight=workload.in_flight, requests=requests)
        return (self._meter() - before) / requests

    def group(self, workload: Workload, settings: Mapping[str, str], requests: int, *, begins_off: bool) -> _Group:
        """Measure four slices. The first requests after a change of the settings are not counted."""
        order: tuple[bool, ...] = (False, True, True, False) if begins_off else (True, False, False, True)
        costs: dict[bool, float] = {False: 0.0, True: 0.0}
        current: bool | None = None
        for is_on in order:
            if is_on is not current:
                self.set(settings if is_on else {})
                load.run(self._port, workload.frames, in_flight=workload.in_flight, requests=requests // 4)
                current = is_on
            costs[is_on] += self.cost(workload, requests) / 2
        return _Group(costs[False], costs[True])


@dataclass(frozen=True, slots=True)
class _Group:
    off: float
    on: float

    @property
    def percent(self) -> float:
        return (self.on / self.off - 1) * 100


@dataclass(frozen=True, slots=True)
class Limits:
    """Groups of each case, at most; requests of a slice; and the time after which no other group begins."""

    groups: int
    requests: int
    seconds: float = 3_600.0


def cpu_rows(limits: Limits) -> Iterator[tuple[str, ...]]:
    with LocalCluster(brokers=2) as cluster:
        pid = cluster.pid(1)
        broker = _Broker(cluster, lambda: cpu_seconds(pid) * 1e6)
        yield from broker_rows(broker, workloads(), limits, "{:.1f} us")


def instruction_rows(limits: Limits) -> Iterator[tuple[str, ...]]:
    with counted_cluster(brokers=2) as (cluster, counter):
        broker = _Broker(cluster, lambda: counter.total() / 1e3)
        some = [it for it in workloads() if it.in_flight > 1]
        yield from broker_rows(broker, some, limits, "{:.1f} thousand")


def broker_rows(broker: _Broker, loads: list[Workload], limits: Limits, unit: str) -> Iterator[tuple[str, ...]]:
    """All settings and workloads in turn, so that each sees the machine in all its moods."""
    requests, ends = limits.requests, time.monotonic() + limits.seconds
    cases = [(workload, name) for workload in loads for name in SETTINGS]
    found: dict[tuple[str, str], list[_Group]] = {(workload.name, name): [] for workload, name in cases}
    for workload in loads:
        broker.cost(workload, requests)
    for turn in range(limits.groups):
        for workload, name in cases:
            if turn % EVERY.get(name, 4) == 0 and time.monotonic() < ends:
                group = broker.group(workload, SETTINGS[name], requests, begins_off=turn % 2 == 0)
                found[workload.name, name].append(group)
    for (what, name), all_groups in found.items():
        if len(all_groups) < 2:
            continue
        off = statistics.median(group.off for group in all_groups)
        shares = sorted(group.percent for group in all_groups)
        low, middle, high = statistics.quantiles(shares, n=4)
        yield (
            what,
            name,
            unit.format(off),
            f"{middle:+.1f} %",
            _range(*_median_interval(shares)),
            _range(low, high),
            str(len(shares)),
        )


def _median_interval(values: list[float]) -> tuple[float, float]:
    """The 95 % confidence interval of the median of sorted values, by their ranks: it assumes no distribution."""
    reach = 0.98 * len(values) ** 0.5
    first = max(0, int(len(values) / 2 - reach))
    return values[first], values[-1 - first]


def _range(low: float, high: float) -> str:
    return f"{low:+.1f} to {high:+.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.request_traces", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer groups")
    parser.add_argument("--write", action="store_true", help="write the section of RESULTS.md")
    parser.add_argument("--groups", type=int, help="groups of slices instead of the default")
    parser.add_argument("--seconds", type=float, default=3_600.0, help="time after which no other group begins")
    parser.add_argument("--baseline", type=Path, metavar="DIR", help="the src directory of an earlier state")
    parser.add_argument("--network", type=int, metavar="ROUNDS", help="print the figures of the network layer as JSON")
    parser.add_argument("--only-broker", action="store_true", help="without the network layer")
    parser.add_argument("--only-network", action="store_true", help="without a whole broker")
    parser.add_argument("--instructions", action="store_true", help="count instructions with callgrind instead")
    args = parser.parse_args()
    if args.network:
        print(json.dumps(network_layer(args.network)))
        return
    if args.instructions:
        limits = Limits(args.groups or (5 if args.quick else 12), 200, args.seconds)
        write(INSTRUCTIONS_SECTION, instructions_text(limits), args.write)
        return
    load_at_start = report.load_average()
    groups, requests = args.groups or (5 if args.quick else 100), 400
    processes = 2 if args.quick else 5
    text = [
        "## Request traces",
        "",
        "`python -m bench.request_traces`: the CPU time per request of a broker, whose settings change while it",
        f"runs. Slices of {requests} requests come in groups of four, half of them with the setting; the difference is",
        'the median of the groups\' ratios to off, with its 95 % confidence interval. The setting "off again" traces',
        "nothing: its rows show the error of the method. Goal: under 3 % at 1 in 100.",
        "",
        f"Machine: {report.machine()}. {report.load_note(load_at_start)}",
        "",
    ]
    if not args.only_network:
        text += [report.table(HEADER, cpu_rows(Limits(groups, requests, args.seconds))), ""]
    if not args.only_broker:
        lines = network_rows(15 if args.quick else 100, processes, args.baseline)
        text += [
            "The network layer alone serves an API that does nothing. The figures are the least CPU time of the",
            f"server's thread per request: medians and ranges of {processes} processes.",
            "",
            report.table(NETWORK_HEADER, lines),
        ]
    write(SECTION, text, args.write)


def instructions_text(limits: Limits) -> list[str]:
    return [
        "## Request traces: instructions",
        "",
        "`python -m bench.request_traces --instructions`: the instructions per request of a broker in user mode,",
        "counted by callgrind, in the same groups of slices. They do not depend on the load of the machine. The work",
        "of the kernel is not counted. It is the same with every setting, so the share of CPU time is smaller.",
        "With two replicas, a produce waits for a follower, and while a traced one waits, every request is marked.",
        "Goal: under 3 % at 1 in 100.",
        "",
        f"Machine: {report.machine()}.",
        "",
        report.table(HEADER, instruction_rows(limits)),
    ]


def write(section: str, text: list[str], is_kept: bool) -> None:
    print("\n".join(text))
    if is_kept:
        report.write_section(section, "\n".join(text))


if __name__ == "__main__":
    main()
