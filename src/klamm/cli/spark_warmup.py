"""`klamm spark warmup`: write the archive of the classes that Spark's JVM loads."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from subprocess import TimeoutExpired
from typing import TYPE_CHECKING, Any, Final

from klamm.cli.client import client_config, result
from klamm.cli.spark_session import spark_session, waiting
from klamm.errors import KlammError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

END_S: Final = 600.0
"""Maximum time in which the JVM writes the archive: seconds, or minutes on a busy machine."""
TOPIC: Final = "warmup"
RECORDS: Final = 10


def archive_classes() -> Path:
    """Run queries on a temporary cluster, archive the classes that Spark's JVM loaded, and return the archive."""
    from klamm.spark.cluster.class_archive import VARIABLE, archive_path, keep, recording

    path = archive_path()
    if path is None:
        raise KlammError(
            "There is no cache directory for the classes: set XDG_CACHE_HOME to a directory without spaces."
        )
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".spark-classes-", dir=path.parent) as directory:
        written = Path(directory, "classes.jsa")
        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = recording(written)
        try:
            _run(Path(directory))
        finally:
            os.environ.pop(VARIABLE)
            if before is not None:
                os.environ[VARIABLE] = before
        if not written.is_file():
            raise KlammError(
                "The JVM did not write an archive of its classes. If Java lacks its own, run java -Xshare:dump; "
                "if SPARK_CONF_DIR contains files, unset it. Or pass --no-classes."
            )
        keep(written, path)
    return path


def _run(directory: Path) -> None:
    from klamm.local.local_cluster import LocalCluster

    with LocalCluster(brokers=1, data_dir=directory / "brokers") as cluster:
        _produce(cluster.bootstrap_servers)
        with spark_session("local[2]", "klamm warmup", {}) as spark:
            gateway: Any = spark.sparkContext._gateway
            waiting("Running the queries ...")
            _query(spark, cluster.bootstrap_servers, directory)
    # The JVM writes the archive when it ends. It ends when its standard input is closed.
    waiting("The JVM writes the archive ...")
    gateway.shutdown()
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(END_S)
    except TimeoutExpired:
        raise KlammError(
            f"The JVM did not end within {END_S:g} s, so its classes are not archived. Try again when the machine is "
            "less busy, or pass --no-classes."
        ) from None


def _produce(servers: str) -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient(client_config(servers))
    for future in admin.create_topics([NewTopic(TOPIC, num_partitions=2)]).values():
        result(future)
    producer = Producer(client_config(servers))
    for number in range(RECORDS):
        producer.produce(TOPIC, value=f'{{"id": {number}, "city": "Wien"}}'.encode())
    producer.flush()


def _query(spark: SparkSession, servers: str, directory: Path) -> None:
    """Run two queries that load the classes of sources, sinks, state stores and generated code."""
    import klamm.spark as ks

    frame = ks.topic(
        spark,
        TOPIC,
        bootstrap_servers=servers,
        format="json",
        schema="id long, city string",
        startingOffsets="earliest",
    )
    frame.createOrReplaceTempView("records")
    counts = spark.sql("SELECT city, count(*) AS records FROM records GROUP BY city")
    for name, rows, mode in (("rows", frame, "append"), ("counts", counts, "complete")):
        ks.to_table(
            rows,
            directory / name,
            checkpoint=directory / f"{name}_checkpoint",
            mode=mode,
            trigger="available_now",
        ).awaitTermination()
