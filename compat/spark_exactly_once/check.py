"""The crash matrix of the exactly-once sink: `before` on Apache Kafka, `after` on klamm.

The secured form kills drivers only, on klamm with SASL_SSL, SCRAM and access control.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from compat.java_programs import is_secured

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


def run(cluster: BenchCluster, label: str, quick: bool, security: Mapping[str, str] | None = None) -> None:
    for name in ("source", "target"):
        cluster.create_topic(name, 2, 3, {"min.insync.replicas": 2})
    with tempfile.TemporaryDirectory(prefix="klamm-sink-") as root:
        matrix = SinkMatrix(cluster, "source", "target", Path(root), security)
        try:
            for name, step in steps(cluster, quick).items():
                try:
                    step(matrix)
                except Exception as error:
                    reported = str(error).strip().replace("\n", " ")
                    print(f"not ok {name} ({label}): {reported[:300]}", flush=True)
                    return
                print(f"ok {name} ({label})", flush=True)
        finally:
            matrix.close()


def run_secured() -> None:
    with KlammCluster(brokers=3, configs=SETTINGS, is_secured=True) as klamm:
        security = {name: str(value) for name, value in klamm.client_config().items() if name != "bootstrap.servers"}
        run(klamm, "klamm, secured", True, security)


def main(phase: str) -> None:
    """The matrix kills brokers of its own: first Apache Kafka's, then klamm's. The caller's broker is not used."""
    quick = bool(os.environ.get("KLAMM_QUICK"))
    if is_secured():
        if phase == "before":
            print("ok the secured form runs in the second phase", flush=True)
        else:
            run_secured()
    elif phase == "before":
        with KafkaCluster(brokers=3, configs=SETTINGS) as kafka:
            run(kafka, "Apache Kafka", quick)
    else:
        with KlammCluster(brokers=3, configs=SETTINGS) as klamm:
            run(klamm, "klamm", quick)


if __name__ == "__main__":
    main(sys.argv[1])
