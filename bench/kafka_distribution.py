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

_DEPENDENCY: Final = (
    "<dependency><groupId>org.apache.kafka</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
)
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
    for program, package in (("java", "a Java runtime, 17 or newer"), ("mvn", "Maven")):
        if shutil.which(program) is None:
            raise KlammError(f"The comparison with Apache Kafka needs `{program}`: install {package}.")
    folder = FOLDER / "libs"
    if not all((folder / f"{artifact}-{VERSION}.jar").exists() for artifact in ARTIFACTS):
        _fetch(folder)
    return folder


def _fetch(folder: Path) -> None:
    """Into a folder beside, renamed when it is complete: a fetch that was cut off leaves nothing to trip over."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    partial = FOLDER / f"libs.{os.getpid()}"
    dependencies = "\n    ".join(_DEPENDENCY.format(artifact, VERSION) for artifact in ARTIFACTS)
    (FOLDER / "pom.xml").write_text(_POM.format(dependencies))
    command = ["mvn", "--quiet", "--batch-mode", "dependency:copy-dependencies", f"-DoutputDirectory={partial}"]
    print(f"Fetching Apache Kafka {VERSION} with Maven into {folder} ...", flush=True)
    done = subprocess.run(command, cwd=FOLDER, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise KlammError(f"Maven could not fetch Apache Kafka {VERSION}:\n{done.stdout[-2000:]}")
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
