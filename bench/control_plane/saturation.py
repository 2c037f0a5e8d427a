"""Propagation while the data plane is saturated: every broker has more to produce than it can, in another process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from bench import load
from bench.clusters import KlammCluster
from bench.control_plane.peer import propagation_ms
from bench.frames import produce_frame
from bench.report import Row

GOAL = 3.0
CHANGES = 500
"""So many that the 99th percentile is more than one unlucky moment."""
IN_FLIGHT = 5
TOPIC = "load"


@contextmanager
def saturated(cluster: KlammCluster) -> Iterator[None]:
    """A connection to each broker that always has `IN_FLIGHT` produce requests of 16 KiB under way."""
    cluster.create_topic(TOPIC, len(cluster.brokers) * 2, 1)
    processes = []
    for broker_id in cluster.brokers:
        partition = next(p for p in range(len(cluster.brokers) * 2) if cluster.leader(TOPIC, p) == broker_id)
        command = [sys.executable, "-m", "bench.control_plane.saturation", str(cluster.port(broker_id)), str(partition)]
        processes.append(subprocess.Popen(command))
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def rows(changes: int = CHANGES) -> Iterator[Row]:
    with KlammCluster(3, {"log.retention.bytes": 64 << 20, "log.segment.bytes": 16 << 20}) as cluster:
        propagation_ms(cluster, max(5, changes // 10), "warm")
        idle = propagation_ms(cluster, changes, "idle")
        with saturated(cluster):
            busy = propagation_ms(cluster, changes, "busy")
    what = "one topic (RF 3) asked for until every broker's metadata has it"
    yield Row(f"Propagation, idle: {what}, p50", idle.p50, "ms")
    yield Row(f"Propagation, idle: {what}, p99", idle.p99, "ms")
    yield Row(f"Propagation, data plane saturated: {what}, p50", busy.p50, "ms")
    yield Row(f"Propagation, data plane saturated: {what}, p99", busy.p99, "ms")
    yield Row(f"Propagation p99, saturated against idle (goal {GOAL:g})", busy.p99 / idle.p99, "x")


if __name__ == "__main__":
    frame = produce_frame(TOPIC, int(sys.argv[2]), 16 << 10).frame
    load.run(int(sys.argv[1]), [frame], in_flight=IN_FLIGHT, requests=1 << 40)
