"""Apache Kafka's jars, fetched by their Maven coordinates into a cache folder that is not committed."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

from klamm.errors import KlammError

VERSION: Final = "3.9.2"
ARTIFACTS: Final = ("kafka_2.13", "kafka-tools")
FOLDER: Final = Path(__file__).resolve().parent.parent / ".cache" / f"kafka-{VERSION}"

_DEPENDENCY: Final = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
_POM: Final = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>klamm</groupId>
  <artifactId>bench-peer</artifactId>
  <version>1</version>
  <dependencies>
    {}
  </dependencies>
</project>
"""


@cache
def libraries() -> Path:
    """The folder with the jars of the broker and its tools; fetched at the first use."""
    return jars(FOLDER, *(f"org.apache.kafka:{artifact}:{VERSION}" for artifact in ARTIFACTS))


def jars(folder: Path, *coordinates: str) -> Path:
    """The folder with these artifacts (`group:artifact:version`) and their dependencies; fetched at the first use."""
    for program, package in (("java", "a Java runtime, 17 or newer"), ("mvn", "Maven")):
        if shutil.which(program) is None:
            raise KlammError(f"Apache Kafka's programs need `{program}`: install {package}.")
    wanted = [coordinate.split(":") for coordinate in coordinates]
    if not all((folder / "libs" / f"{artifact}-{version}.jar").exists() for _, artifact, version in wanted):
        _fetch(folder, wanted)
    return folder / "libs"


def _fetch(folder: Path, wanted: list[list[str]]) -> None:
    """Into a folder beside, renamed when it is complete: a fetch that was cut off leaves nothing to trip over."""
    folder.mkdir(parents=True, exist_ok=True)
    complete, partial = folder / "libs", folder / f"libs.{os.getpid()}"
    dependencies = "\n    ".join(_DEPENDENCY.format(*coordinate) for coordinate in wanted)
    (folder / "pom.xml").write_text(_POM.format(dependencies))
    command = ["mvn", "--quiet", "--batch-mode", "dependency:copy-dependencies", f"-DoutputDirectory={partial}"]
    names = ", ".join(f"{artifact} {version}" for _, artifact, version in wanted)
    print(f"Fetching {names} with Maven into {complete} ...", flush=True)
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise KlammError(f"Maven could not fetch {names}:\n{done.stdout[-2000:]}")
    shutil.rmtree(complete, ignore_errors=True)
    partial.rename(complete)
