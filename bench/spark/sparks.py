"""The session of the bench and what both sides need: `ks.session` as users get it, with the connector's jars added."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.clusters import KlammCluster
from bench.spark.figures import CONNECTOR, KLAMM
from klamm.errors import KlammError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CORES: Final = 2
_ROOT: Final = Path(__file__).resolve().parents[2]
_POM: Final = _ROOT / "compat" / "spark_kafka" / "pom.xml"
_JARS: Final = _ROOT / ".cache" / "spark_kafka"


@dataclass(frozen=True, slots=True)
class Bench:
    """The resources of every part: Spark, a broker, a directory, and how much to do."""

    spark: SparkSession
    cluster: KlammCluster
    scratch: Path
    rounds: int
    scale: int
    """Row counts are divided by it."""
    has_connector: bool = True

    @property
    def servers(self) -> str:
        return self.cluster.bootstrap_servers

    @property
    def sides(self) -> tuple[str, ...]:
        return (KLAMM, CONNECTOR) if self.has_connector else (KLAMM,)

    @property
    def is_quick(self) -> bool:
        return self.scale > 1


def connector_jars() -> list[Path]:
    """Spark's own Kafka connector, from Maven Central into .cache/, as `make compat NAME=spark_kafka` has it."""
    stamp = _JARS / "pom.xml"
    if not stamp.exists() or stamp.read_bytes() != _POM.read_bytes():
        if shutil.which("mvn") is None:
            raise KlammError("Spark's Kafka connector is fetched with Maven: apt-get install maven.")
        shutil.rmtree(_JARS, ignore_errors=True)
        _JARS.mkdir(parents=True)
        command = ["mvn", "-q", "-B", "-f", str(_POM), "dependency:copy-dependencies", f"-DoutputDirectory={_JARS}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise KlammError(f"Maven could not fetch Spark's Kafka connector:\n{done.stdout[-2000:]}")
        shutil.copy(_POM, stamp)
    return sorted(_JARS.glob("*.jar"))


def session(jars: Sequence[Path] = ()) -> SparkSession:
    """Two cores and klamm's settings; nothing is tuned but that Spark keeps quiet."""
    import klamm.spark as ks

    conf = {"spark.ui.enabled": "false", "spark.log.level": "FATAL"}
    if jars:
        conf["spark.jars"] = ",".join(map(str, jars))
    return ks.session(f"local[{CORES}]", "klamm bench", conf)


def batch(spark: SparkSession, format_: str, servers: str, topic: str, **options: str) -> DataFrame:
    return _load(spark.read, format_, servers, subscribe=topic, **options)


def stream(spark: SparkSession, format_: str, servers: str, topic: str, **options: str) -> DataFrame:
    return _load(spark.readStream, format_, servers, subscribe=topic, **options)


def _load(reader: Any, format_: str, servers: str, **options: str) -> DataFrame:
    frame: DataFrame = reader.format(format_).options(**{"kafka.bootstrap.servers": servers, **options}).load()
    return frame
