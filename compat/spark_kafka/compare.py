"""The same topic through format("kafka"), format("klamm") by Fetch, and from segment files: equal rows, both ways."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
TOPIC: Final = "spark-compat"
SINKS: Final = ("spark-compat-from-kafka", "spark-compat-from-klamm")


@dataclass(frozen=True, slots=True)
class Client:
    """How to connect: the settings of librdkafka, and those of Java, which both formats take with a prefix."""

    librdkafka: Mapping[str, str]
    java: Mapping[str, str]

    @classmethod
    def of(cls, servers: str) -> Client:
        """A cluster without security."""
        return cls({"bootstrap.servers": servers}, {"bootstrap.servers": servers})

    @classmethod
    def of_environment(cls) -> Client:
        """The cluster that compat/run.py has started. In the secured form, files have the other settings."""
        servers = {"bootstrap.servers": os.environ["KLAMM_BOOTSTRAP_SERVERS"]}
        found = (_properties(os.environ.get(f"KLAMM_{kind}_PROPERTIES")) for kind in ("CLIENT", "JAVA"))
        librdkafka, java = ({**properties, **servers} for properties in found)
        return cls(librdkafka, java)

    @property
    def options(self) -> dict[str, str]:
        return {f"kafka.{key}": value for key, value in self.java.items()}


def _properties(path: str | None) -> dict[str, str]:
    lines = Path(path).read_text().splitlines() if path else []
    return {key: value for key, _, value in (line.partition("=") for line in lines)}


class Comparison:
    """Prints one line per check; `label` names the cluster."""

    def __init__(self, spark: SparkSession, client: Client, label: str) -> None:
        self._spark = spark
        self._client = client
        self._label = label

    def fill(self, count: int) -> None:
        """Records of every codec, with and without keys, headers and values."""
        admin = AdminClient(dict(self._client.librdkafka))
        for future in admin.create_topics([NewTopic(name, 3, 1) for name in (TOPIC, *SINKS)]).values():
            future.result()
        for codec in CODECS:
            producer = Producer({**self._client.librdkafka, "compression.type": codec, "linger.ms": 20})
            for number in range(count // len(CODECS)):
                key = None if number % 5 == 0 else f"{codec}-{number % 17}".encode()
                value = None if number % 11 == 0 else os.urandom(number % 200)
                headers: list[tuple[str, str | bytes | None]] = [("h", b"x"), ("h", None)] if number % 3 else []
                producer.produce(TOPIC, value, key, headers=headers)
            assert producer.flush(120) == 0

    def frame(self, format_: str, topic: str, **options: str) -> DataFrame:
        reader = self._spark.read.format(format_).options(**self._client.options)
        return reader.options(subscribe=topic, includeHeaders="true", **options).load()

    def rows(self, format_: str, topic: str = TOPIC, **options: str) -> list[Any]:
        table = self.frame(format_, topic, **options).orderBy("partition", "offset").toArrow()
        return [tuple(row.values()) for row in table.to_pylist()]

    def check(self, name: str, left: Callable[[], object], right: Callable[[], object]) -> None:
        name = f"{name} ({self._label})"
        try:
            one, other = left(), right()
        except Exception as error:
            print(f"not ok {name}: {str(error).strip().splitlines()[0][:200]}", flush=True)
            return
        size = f"{len(one)} rows" if isinstance(one, list) else str(one)[:60]
        print(f"ok {name}" if one == other and one else f"not ok {name}: {size} differ", flush=True)

    def schemas(self) -> None:
        self.check(
            "schema",
            lambda: self.frame("kafka", TOPIC).schema.simpleString(),
            lambda: self.frame("klamm", TOPIC).schema.simpleString(),
        )

    def reads(self) -> None:
        expected = self.rows("kafka")
        self.check("rows by Fetch", lambda: expected, lambda: self.rows("klamm"))
        self.check("rows from segment files", lambda: expected, lambda: self.rows("klamm", readMode="direct"))
        starts = json.dumps({TOPIC: {"0": 5, "1": -2, "2": 7}})
        ends = json.dumps({TOPIC: {"0": 20, "1": 9, "2": -1}})
        options = {"startingOffsets": starts, "endingOffsets": ends}
        self.check("offsets as JSON", lambda: self.rows("kafka", **options), lambda: self.rows("klamm", **options))
        stamp = str(int(expected[len(expected) // 2][5].timestamp() * 1000))
        self.check(
            "startingTimestamp",
            lambda: self.rows("kafka", startingTimestamp=stamp, startingOffsetsByTimestampStrategy="latest"),
            lambda: self.rows("klamm", startingTimestamp=stamp, startingOffsetsByTimestampStrategy="latest"),
        )

    def streams(self) -> None:
        self.check("stream", lambda: self._streamed("kafka"), lambda: self._streamed("klamm"))

    def _streamed(self, format_: str) -> list[Any]:
        """All rows of an AvailableNow query in batches of 100, in order."""
        found: list[Any] = []

        def collect(batch: DataFrame, batch_id: int) -> None:
            found.extend(tuple(row) for row in batch.select("partition", "offset", "key", "value").collect())

        reader = self._spark.readStream.format(format_).options(**self._client.options)
        options = {"subscribe": TOPIC, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "100"}
        with tempfile.TemporaryDirectory() as checkpoint:
            query = (
                reader.options(**options)
                .load()
                .writeStream.foreachBatch(collect)
                .option("checkpointLocation", checkpoint)
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
        return sorted(found)

    def sinks(self) -> None:
        """Each reads the other's records; equal keys go to equal partitions."""
        source = self.frame("klamm", TOPIC).select("key", "value", "headers")
        for format_, topic in zip(("kafka", "klamm"), SINKS, strict=True):
            # Spark refuses its default mode for sources in Python; both take append.
            writer = source.write.format(format_).mode("append").options(**self._client.options)
            self.check(f"{format_} sink", partial(_saved, writer.option("topic", topic)), lambda: True)
        self.check("sinks write the same", lambda: self._keyed(SINKS[0]), lambda: self._keyed(SINKS[1]))

    def _keyed(self, topic: str) -> list[Any]:
        rows = self.frame("kafka", topic).where("key is not null").select("partition", "key", "value", "headers")
        return sorted((tuple(row) for row in rows.collect()), key=repr)


def _saved(writer: Any) -> bool:
    writer.save()
    return True


def main(phase: str, jars: Path) -> None:
    from klamm.spark.cluster.session import session

    quick = bool(os.environ.get("KLAMM_QUICK"))
    paths = ",".join(str(path) for path in sorted(jars.glob("*.jar")))
    settings = {"spark.jars": paths, "spark.ui.enabled": False, "spark.log.level": "ERROR"}
    settings |= {"spark.sql.session.timeZone": "UTC"}
    spark = session("local[2,2]", "klamm compat", settings)
    try:
        client = Client.of_environment()
        is_secured = len(client.java) > 1
        label = "klamm over SASL_SSL" if is_secured else "klamm"
        _compare(Comparison(spark, client, label), phase, 500 if quick or is_secured else 50_000)
        if not quick and not is_secured and phase == "before":
            from bench.clusters import KafkaCluster

            with KafkaCluster(brokers=1) as kafka:
                _compare(Comparison(spark, Client.of(kafka.bootstrap_servers), "Apache Kafka"), phase, 5_000)
    finally:
        spark.stop()


def _compare(comparison: Comparison, phase: str, count: int) -> None:
    if phase == "before":
        comparison.fill(count)
        comparison.schemas()
        comparison.streams()
        comparison.sinks()
    comparison.reads()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
