"""One broker beside its ceiling: `python -m bench.one_broker`. Pairs are run alternately; the table shows medians."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import frames, load, report
from bench.clusters import resident_bytes
from klamm.testing import LocalCluster

ROUNDS, CONNECTIONS, IN_FLIGHT = 5, 4, 5
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Row:
    what: str
    klamm: float
    ceiling: float | None
    unit: str
    goal: str = ""

    def cells(self) -> tuple[str, ...]:
        ratio = f"{self.klamm / self.ceiling:.2f}" if self.ceiling else ""
        return (
            self.what,
            f"{self.klamm:,.2f}" if self.klamm < 10 else f"{self.klamm:,.1f}",
            f"{self.ceiling:,.1f}" if self.ceiling else "",
            ratio,
            self.unit,
            self.goal,
        )


@contextmanager
def ceiling(folder: Path, mode: str, **options: int | str) -> Iterator[int]:
    """A bare server in a process of its own; gives its port."""
    port_file = folder / f"port-{mode}-{time.monotonic_ns()}"
    command = [sys.executable, "-m", "bench.ceiling", mode, "--port-file", str(port_file)]
    for key, value in options.items():
        command += [f"--{key.replace('_', '-')}", str(value)]
    process = subprocess.Popen(command)
    try:
        while not port_file.exists() or not port_file.read_text():
            if process.poll() is not None:
                raise RuntimeError(f"the bare server ended with {process.returncode}")
            time.sleep(0.01)
        yield int(port_file.read_text())
    finally:
        process.kill()
        process.wait()


def alternate(first: Callable[[], float], second: Callable[[], float], rounds: int) -> tuple[float, float]:
    pairs = [(first(), second()) for _ in range(rounds)]
    return statistics.median(p[0] for p in pairs), statistics.median(p[1] for p in pairs)


def rate(port: int, built: list[frames.ProduceFrame], requests: int) -> float:
    return load.run(port, [f.frame for f in built], in_flight=IN_FLIGHT, requests=requests).requests_per_s


def produce_rows(cluster: LocalCluster, port: int, folder: Path, rounds: int) -> Iterator[Row]:
    for kib, requests, goal in ((1, 40_000, ""), (16, 16_000, "0.5"), (256, 2_000, "0.7")):
        topic = f"produce-{kib}"
        cluster.create_topic(topic, partitions=CONNECTIONS)
        built = [frames.produce_frame(topic, p, kib * 1024) for p in range(CONNECTIONS)]
        rate(port, built, requests // 10)
        with ceiling(
            folder, "append", file=str(folder / topic), batch_at=built[0].batch_at, batch_bytes=built[0].batch_bytes
        ) as bare:
            klamm, top = alternate(partial(rate, port, built, requests), partial(rate, bare, built, requests), rounds)
        (folder / topic).unlink()
        size = built[0].batch_bytes / MIB
        yield Row(f"Produce, {kib} KiB batches", klamm, top, "requests/s", goal)
        yield Row(f"Produce, {kib} KiB batches", klamm * size, top * size, "MB/s", goal)


def fetch_row(port: int, folder: Path, rounds: int) -> Row:
    """Reads what the 256 KiB row wrote, one MiB per request."""
    requests = [frames.fetch_frame("produce-256", [0], MIB) for _ in range(CONNECTIONS)]
    probe = load.run(port, requests[:1], in_flight=1, requests=20)
    answer = probe.bytes_in // probe.requests - 4
    source = folder / "read"
    source.write_bytes(bytes(answer))
    with ceiling(folder, "read", file=str(source), answer_bytes=answer) as bare:

        def megabytes(p: int) -> float:
            done = load.run(p, requests, in_flight=IN_FLIGHT, requests=2_000)
            return done.bytes_in / MIB / done.seconds

        klamm, top = alternate(lambda: megabytes(port), lambda: megabytes(bare), rounds)
    return Row("Fetch, 1 MiB per request", klamm, top, "MB/s")


def round_trip_row(port: int, folder: Path, rounds: int) -> Row:
    request = frames.list_offsets_frame("produce-1")
    probe = load.run(port, [request], in_flight=1, requests=20)
    answer = probe.bytes_in // probe.requests - 4
    with ceiling(folder, "echo", file=str(folder / "echo"), answer_bytes=answer) as bare:
        klamm, top = alternate(
            lambda: load.run(port, [request], in_flight=1, requests=20_000).requests_per_s,
            lambda: load.run(bare, [request], in_flight=1, requests=20_000).requests_per_s,
            rounds,
        )
    return Row("ListOffsets, one at a time", klamm, top, "round trips/s")


def memory_rows() -> Iterator[Row]:
    with LocalCluster(brokers=1) as cluster:
        cluster.create_topic("memory", partitions=CONNECTIONS)
        pid = cluster.pid(cluster.broker_ids[0])
        yield Row("Resident memory, idle", resident_bytes(pid) / MIB, None, "MB", "60")
        built = [frames.produce_frame("memory", p, 64 * 1024).frame for p in range(CONNECTIONS)]
        load.run(cluster.port(cluster.broker_ids[0]), built, in_flight=IN_FLIGHT, requests=16 * 1024)
        yield Row("Resident memory, after 1 GB", resident_bytes(pid) / MIB, None, "MB")


def start_row(rounds: int) -> Row:
    """From the start of the first process to the first acknowledged produce, topic creation included."""
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        with LocalCluster(brokers=1) as cluster:
            cluster.create_topic("first", partitions=1)
            built = frames.produce_frame("first", 0, 1024).frame
            load.run(cluster.port(cluster.broker_ids[0]), [built], in_flight=1, requests=1)
            times.append(time.perf_counter() - begun)
    return Row("Start to first acknowledged produce", statistics.median(times), None, "s", "1.0")


HEADER = ("", "klamm", "ceiling", "ratio", "unit", "goal")


def text(rows: list[Row], rounds: int, load_at_start: float) -> str:
    """The section for RESULTS.md."""
    return "\n".join(
        [
            "## One broker beside its ceiling",
            "",
            "The ceiling is a bare event-loop server (`bench/ceiling.py`) that reads the same frames, checks the same",
            "CRC, appends the same bytes and answers, in the same run on the same machine, in turn."
            f" Medians of {rounds} rounds.",
            "",
            f"Machine: {report.machine()}. {report.load_note(load_at_start)}",
            "The load generator runs on the same cores.",
            "",
            report.table(HEADER, [row.cells() for row in rows]),
        ]
    )


def run(quick: bool) -> None:
    """Prints the table and writes it into RESULTS.md."""
    load_at_start = report.load_average()
    rounds = 2 if quick else ROUNDS
    rows = [start_row(rounds), *memory_rows()]
    with tempfile.TemporaryDirectory() as scratch, LocalCluster(brokers=1) as cluster:
        port = cluster.port(cluster.broker_ids[0])
        rows += produce_rows(cluster, port, Path(scratch), rounds)
        rows += [fetch_row(port, Path(scratch), rounds), round_trip_row(port, Path(scratch), rounds)]
    section = text(rows, rounds, load_at_start)
    print(section)
    report.write_section("one-broker", section)


if __name__ == "__main__":
    run(quick=False)
