"""Settings of the JVMs that tests start: they live for seconds, and they map Spark's classes from one archive.

`tests/spark/test_warmup_live.py` writes the archive into `.cache` at the start of each run, and the tests after it use
it. A JVM that finds no archive, or one of other jars, starts without it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from klamm.spark.cluster.class_archive import archive_path

CACHE: Final = Path(__file__).parents[2] / ".cache" / "spark"
"""For XDG_CACHE_HOME of `klamm spark warmup`."""
SHORT_LIVED: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""The compiler and the collector for short lives."""
_SILENT: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"


def set_variables() -> None:
    """Set the variables that drivers, executors, daemons and the launcher of Spark read."""
    # A directory with files on the class path, such as one of settings, would disable the archive.
    os.environ.pop("SPARK_CONF_DIR", None)
    archive = archive_path({**os.environ, "XDG_CACHE_HOME": str(CACHE)})
    options = SHORT_LIVED if archive is None else f"{SHORT_LIVED} -XX:SharedArchiveFile={archive} {_SILENT}"
    os.environ["SPARK_LAUNCHER_OPTS"] = SHORT_LIVED
    os.environ["SPARK_SUBMIT_OPTS"] = os.environ["SPARK_DAEMON_JAVA_OPTS"] = options
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--conf 'spark.executor.extraJavaOptions={options}' pyspark-shell"
