"""How long a broker with many partitions takes to start: after a clean stop, and after kill -9 of an idle broker.

Every partition has a record. The time is from the start of the process until the broker answers clients, and the CPU
time of the process until then: on a busy machine that is the figure to compare.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from confluent_kafka import Producer

from bench.clusters import production
from bench.report import Row
from klamm.testing import LocalCluster

PARTITIONS: Final = 20_000
PARTITIONS_PER_TOPIC: Final = 1_000
TIMEOUT_S: Final = 600.0


def rows(partitions: int = PARTITIONS) -> Iterator[Row]:
    cluster = LocalCluster(1, defaults=production(1), start_timeout_s=TIMEOUT_S, stop_timeout_s=TIMEOUT_S)
    with cluster:
        _fill(cluster, partitions)
        for kind, end in (("a clean stop", cluster.stop), ("kill -9", cluster.kill)):
            end(1)
            seconds, cpu_seconds = _start(cluster)
            yield Row(f"Start of a broker with {partitions:,} partitions after {kind}", seconds, "s")
            yield Row(f"CPU time of the start after {kind}", cpu_seconds, "s")


def _fill(cluster: LocalCluster, partitions: int) -> None:
    names = [f"t{i}" for i in range(partitions // PARTITIONS_PER_TOPIC)]
    for name in names:
        cluster.create_topic(name, partitions=PARTITIONS_PER_TOPIC)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    for name in names:
        for partition in range(PARTITIONS_PER_TOPIC):
            producer.produce(name, b"x" * 200, partition=partition)
        producer.flush(TIMEOUT_S)


def _start(cluster: LocalCluster) -> tuple[float, float]:
    begun = time.monotonic()
    cluster.start(1)
    seconds = time.monotonic() - begun
    fields = Path(f"/proc/{cluster.pid(1)}/stat").read_text().rpartition(")")[2].split()
    return seconds, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
