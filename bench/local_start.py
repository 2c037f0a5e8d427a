"""Measures the cost of the internal topics at the start of `LocalCluster(3)`: `python -m bench.local_start`.

The cluster asks for `__consumer_offsets` when all brokers know each other, and does not wait for it. Starts with and
without this request take turns. Rows are by the clock and in CPU time of all processes of the cluster and of this one;
the other work on the machine disturbs the CPU time less. `--quick` has two rounds and writes nothing.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final
from unittest.mock import patch

from confluent_kafka import Producer

from bench import report
from bench.processes import cpu_seconds
from klamm.client.blocking_connection import ask_once
from klamm.errors import ErrorCode, KlammError
from klamm.local.internal_topics import InternalTopics
from klamm.local.ports import LOOPBACK
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from klamm.testing import LocalCluster

SECTION: Final = "local-start"
BROKERS: Final = 3
ROUNDS: Final = 10
LIMIT_S: Final = 60.0
RETURNED: Final = "until `LocalCluster(3)` returns"
ACKNOWLEDGED: Final = "until the first record of a new topic is acknowledged"
COORDINATED: Final = "until the first group has a coordinator"
PAUSE_S: Final = 0.01
Taken = dict[tuple[str, str], float]
"""By row and unit."""


@contextmanager
def _without_request() -> Iterator[None]:
    with patch.object(InternalTopics, "request", lambda self: None):
        yield


def one_start() -> Taken:
    """Start a cluster, write a record to a new topic with three replicas, and ask for the coordinator of a group."""
    taken: Taken = {}
    begun_s, own_s = time.perf_counter(), time.process_time()
    with LocalCluster(BROKERS) as cluster:
        pids = [*(cluster.pid(broker_id) for broker_id in cluster.broker_ids), cluster.zookeeper_pid]

        def note(row: str) -> None:
            taken[row, "clock, ms"] = 1000 * (time.perf_counter() - begun_s)
            cpu_s = sum(map(cpu_seconds, pids)) + time.process_time() - own_s
            taken[row, "CPU, ms"] = 1000 * cpu_s

        note(RETURNED)
        cluster.create_topic("first", 1, BROKERS)
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "log_level": 0})
        producer.produce("first", b"x")
        assert producer.flush(LIMIT_S) == 0
        note(ACKNOWLEDGED)
        await_coordinator(cluster.port(1))
        note(COORDINATED)
    return taken


def await_coordinator(port: int) -> None:
    request = FindCoordinatorRequest(key="first", key_type=0)
    deadline = time.monotonic() + LIMIT_S
    while ask_once((LOOPBACK, port), request, 1, FindCoordinatorResponse, LIMIT_S).error_code != ErrorCode.NONE:
        if time.monotonic() > deadline:
            raise KlammError("There is no coordinator.")
        time.sleep(PAUSE_S)


def alternate(rounds: int, start: Callable[[], Taken] = one_start) -> Mapping[bool, list[Taken]]:
    """Return the starts with and without the topics, in turn, after a start that warms up."""
    start()
    found: dict[bool, list[Taken]] = {True: [], False: []}
    for number in range(rounds):
        for has_topics in (True, False) if number % 2 else (False, True):
            if has_topics:
                found[True].append(start())
            else:
                with _without_request():
                    found[False].append(start())
            print(
                f"  round {number + 1}, {'with' if has_topics else 'without'}: {_line(found[has_topics][-1])}",
                flush=True,
            )
    return found


def _line(taken: Taken) -> str:
    return ", ".join(f"{row} {value:.0f} ({unit})" for (row, unit), value in taken.items())


def text(found: Mapping[bool, list[Taken]], load_at_start: float) -> str:
    lines = []
    for key in found[True][0]:
        with_, without = ([taken[key] for taken in found[side]] for side in (True, False))
        differences = [a - b for a, b in zip(with_, without, strict=True)]
        low, _, high = statistics.quantiles(differences, n=4)
        middles = [statistics.median(side) for side in (with_, without)]
        ratio = f"{middles[0] / middles[1]:.3f}"
        lines.append((", ".join(key), *map(report.number, middles), ratio, f"{low:+.0f} to {high:+.0f}"))
    return "\n\n".join(
        [
            "## Internal topics at the start of a local cluster",
            f"`python -m bench.local_start`. Machine: {report.machine()}. {report.load_note(load_at_start)} Medians of "
            f"{len(found[True])} starts of `LocalCluster(3)` with and without the request for `__consumer_offsets`, in "
            "turn. The last column has the middle half of the differences within a round.",
            report.table(("", "with", "without", "ratio", "difference"), lines),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.local_start", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--quick", action="store_true", help="two rounds; RESULTS.md is not written")
    options = parser.parse_args()
    load = report.load_average()
    shown = text(alternate(2 if options.quick else options.rounds), load)
    if not options.quick:
        report.write_section(SECTION, shown)
    print(shown)


if __name__ == "__main__":
    main()
