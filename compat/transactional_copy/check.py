"""A Java program that copies a topic in transactions, with kills: `before` with Java 4.4, `after` with Java 3.9."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Final

from compat.java_programs import (
    CACHE,
    SETTINGS,
    CommittedReader,
    Feeder,
    JavaProgram,
    Right,
    compiled,
    connect_as,
    is_secured,
    walk,
)
from confluent_kafka.admin import AclOperation, ResourceType

from bench.clusters import KlammCluster
from bench.kafka_distribution import jars
from klamm.errors import KlammError

VERSIONS: Final = {"before": "4.4.0", "after": "3.9.2"}
LOGGING: Final = "org.slf4j:slf4j-simple:1.7.36"
PARTITIONS: Final = 6
THREADS: Final = 2
RECORDS: Final = 60_000
QUICK_RECORDS: Final = 12_000
RIGHTS: Final = (
    Right(ResourceType.TOPIC, "input", AclOperation.READ),
    Right(ResourceType.TOPIC, "output", AclOperation.WRITE),
    Right(ResourceType.GROUP, "copy-input", AclOperation.READ),
    Right(ResourceType.TRANSACTIONAL_ID, "copier-*", AclOperation.WRITE),
)


class Copy:
    """Every number must appear once, in its partition, in order."""

    def __init__(self) -> None:
        self._next = list(range(PARTITIONS))

    def take(self, partition: int, _: bytes | None, value: bytes) -> None:
        if int(value) != self._next[partition]:
            raise KlammError(f"partition {partition} has {int(value)} where {self._next[partition]} belongs")
        self._next[partition] += PARTITIONS


def run(version: str, quick: bool, folder: Path) -> None:
    records = QUICK_RECORDS if quick else RECORDS
    libraries = jars(CACHE / f"kafka-clients-{version}", f"org.apache.kafka:kafka-clients:{version}", LOGGING)
    class_path = compiled(Path(__file__).parent / "CopyTransactionally.java", libraries, folder)
    with KlammCluster(3, SETTINGS, is_secured=is_secured()) as cluster:
        for topic in ("input", "output"):
            cluster.create_topic(topic, PARTITIONS, 3, {"min.insync.replicas": 2})
        servers, admin = cluster.bootstrap_servers, cluster.client_config()
        last = [str(THREADS), *connect_as(cluster, "copier", RIGHTS)]
        reader = CommittedReader(admin, "output", PARTITIONS, Copy().take)
        feeder = Feeder(admin, "input", records, PARTITIONS, lambda number: b"%d" % number)
        arguments = [
            ["-cp", class_path, "CopyTransactionally", servers, "input", "output", f"copier-{number}", *last]
            for number in (1, 2)
        ]
        one, two = (JavaProgram(each, folder / f"copier-{number}.log") for number, each in enumerate(arguments))
        with one, two:
            feeder.start()

            def check() -> None:
                one.check()
                two.check()

            walk(cluster, (one, two), lambda share: reader.read_until(int(records * share), check), quick)
            feeder.join()
            reader.read_until(records, check)
            one.close()
            two.close()
        reader.read_rest()
        reader.close()
        if reader.count != records:
            raise KlammError(f"{reader.count} records were copied, expected {records}")


def main(phase: str) -> None:
    version, quick = VERSIONS[phase], bool(os.environ.get("KLAMM_QUICK"))
    name = f"copy with Java {version}"
    with tempfile.TemporaryDirectory(prefix="klamm-copy-") as folder:
        try:
            run(version, quick, Path(folder))
        except Exception as error:
            print(f"not ok {name}: {type(error).__name__}: {str(error).strip().splitlines()[0][:1500]}", flush=True)
        else:
            print(f"ok {name}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
