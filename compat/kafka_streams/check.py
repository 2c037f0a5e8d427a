"""Kafka Streams with exactly_once_v2 on klamm, with kills: `before` with the newest Streams, `after` with 3.9."""

from __future__ import annotations

import os
import struct
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

VERSIONS: Final = {"before": "4.3.1", "after": "3.9.2"}
LOGGING: Final = "org.slf4j:slf4j-simple:1.7.36"
WORDS: Final = 40
PARTITIONS: Final = 4
RECORDS: Final = 40_000
QUICK_RECORDS: Final = 10_000
APPLICATION: Final = "count-words"
RIGHTS: Final = (
    Right(ResourceType.TOPIC, "words", AclOperation.READ),
    Right(ResourceType.TOPIC, "counts", AclOperation.WRITE),
    Right(ResourceType.TOPIC, f"{APPLICATION}-*", AclOperation.ALL),
    Right(ResourceType.GROUP, APPLICATION, AclOperation.READ),
    Right(ResourceType.TRANSACTIONAL_ID, f"{APPLICATION}-*", AclOperation.WRITE),
)
"""Those of Kafka's documentation: a prefix owns the internal topics, and nothing on the cluster is needed."""


class Counts:
    """Every count of a word must appear once, in order: 1, 2, 3 ..."""

    def __init__(self) -> None:
        self._last: dict[bytes, int] = {}

    def take(self, partition: int, word: bytes | None, value: bytes) -> None:
        assert word is not None
        [found] = struct.unpack(">q", value)
        expected = self._last.get(word, 0) + 1
        if found != expected:
            raise KlammError(
                f"{word.decode()} was counted {found} times after {expected - 1}, in partition {partition}"
            )
        self._last[word] = found

    def total(self) -> int:
        return sum(self._last.values())


def run(version: str, quick: bool, folder: Path) -> None:
    records = QUICK_RECORDS if quick else RECORDS
    libraries = jars(CACHE / f"kafka-streams-{version}", f"org.apache.kafka:kafka-streams:{version}", LOGGING)
    class_path = compiled(Path(__file__).parent / "CountWords.java", libraries, folder)
    with KlammCluster(3, SETTINGS, is_secured=is_secured()) as cluster:
        for topic in ("words", "counts"):
            cluster.create_topic(topic, PARTITIONS, 3, {"min.insync.replicas": 2})
        servers, admin = cluster.bootstrap_servers, cluster.client_config()
        security = connect_as(cluster, "streams", RIGHTS)
        counts = Counts()
        reader = CommittedReader(admin, "counts", PARTITIONS, counts.take)
        feeder = Feeder(admin, "words", records, PARTITIONS, lambda number: b"word %d" % (number * 7 % WORDS))
        arguments = [
            ["-cp", class_path, "CountWords", servers, str(folder / f"state-{number}"), "words", "counts", *security]
            for number in (1, 2)
        ]
        one, two = (JavaProgram(each, folder / f"app-{number}.log") for number, each in enumerate(arguments))
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
        if counts.total() != records:
            raise KlammError(f"{counts.total()} words were counted, expected {records}")


def main(phase: str) -> None:
    version, quick = VERSIONS[phase], bool(os.environ.get("KLAMM_QUICK"))
    name = f"counts of Kafka Streams {version}"
    with tempfile.TemporaryDirectory(prefix="klamm-streams-") as folder:
        try:
            run(version, quick, Path(folder))
        except Exception as error:
            print(f"not ok {name}: {type(error).__name__}: {str(error).strip().splitlines()[0][:1500]}", flush=True)
        else:
            print(f"ok {name}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
