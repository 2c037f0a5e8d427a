"""The crash matrix of the exactly-once sink: `before` on Apache Kafka, `after` on klamm."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.clusters import BenchCluster, KafkaCluster, KlammCluster
from tests.support import sink_matrix as matrix_steps
from tests.support.sink_matrix import SinkMatrix

SETTINGS: Final = {
    "zookeeper.session.timeout.ms": 6000,
    "replica.lag.time.max.ms": 6000,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "transaction.state.log.num.partitions": 8,
    "offsets.topic.num.partitions": 4,
}
Step = Callable[[SinkMatrix], None]


def steps(cluster: BenchCluster, quick: bool) -> dict[str, Step]:
    found: dict[str, Step] = {"drivers": matrix_steps.crashes_of_drivers}
    if not quick:
        found |= {
            "zombie driver": matrix_steps.zombie_driver,
            "leader and coordinator": lambda matrix: matrix_steps.crashes_of_brokers(matrix, cluster.kill),
            "executors": matrix_steps.crashes_of_executors,
        }
    return found


def run(cluster: BenchCluster, label: str, quick: bool) -> None:
    for name in ("source", "target"):
        cluster.create_topic(name, 2, 3, {"min.insync.replicas": 2})
    with tempfile.TemporaryDirectory(prefix="klamm-sink-") as root:
        matrix = SinkMatrix(cluster, "source", "target", Path(root))
        try:
            for name, step in steps(cluster, quick).items():
                try:
                    step(matrix)
                except Exception as error:
                    told = str(error).strip().replace("\n", " ")
                    print(f"not ok {name} ({label}): {told[:300]}", flush=True)
                    return
                print(f"ok {name} ({label})", flush=True)
        finally:
            matrix.close()


def main(phase: str) -> None:
    """The matrix kills brokers of its own: first Apache Kafka's, then klamm's. The caller's broker is not used."""
    quick = bool(os.environ.get("KLAMM_QUICK"))
    if phase == "before":
        with KafkaCluster(brokers=3, configs=SETTINGS) as kafka:
            run(kafka, "Apache Kafka", quick)
    else:
        with KlammCluster(brokers=3, configs=SETTINGS) as klamm:
            run(klamm, "klamm", quick)


if __name__ == "__main__":
    main(sys.argv[1])
