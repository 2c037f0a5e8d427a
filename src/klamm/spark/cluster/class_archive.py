"""A class data sharing (CDS) archive: the JVM maps Spark's classes from one file instead of parsing 280 jars.

`klamm spark warmup` writes the archive and `session()` uses it. The JVM compares its version and every jar with those
recorded in the archive. If they differ, the JVM ignores the archive and starts without it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

VARIABLE: Final = "SPARK_SUBMIT_OPTS"
"""Options of the JVM that PySpark starts. Options from `spark.driver.*JavaOptions` follow them and win."""
_SILENT: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
"""The JVM logs why it ignores an archive to standard output, where commands print their results."""
_OTHER_VARIABLES: Final = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
_JAVA_OPTIONS: Final = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")
_OF_ARCHIVES: Final = ("-Xshare", "SharedArchiveFile", "ArchiveClassesAtExit")
_PREFIX: Final = "spark-classes-"


def archive_path(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the path of the archive for this Java and Spark. None if Java or a cache directory is missing."""
    import pyspark

    home = environment.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java", path=environment.get("PATH"))
    base = environment.get("XDG_CACHE_HOME") or (environment.get("HOME") and str(Path(environment["HOME"], ".cache")))
    if java is None or not base or " " in base:  # Spark splits the variable at spaces
        return None
    try:
        java = os.path.realpath(java)
        found = os.stat(java)
    except OSError:
        return None
    jars = os.path.realpath(Path(pyspark.__file__).parent / "jars")
    identity = f"{java} {found.st_mtime_ns} {found.st_size} {jars} {pyspark.__version__}"
    return Path(base, "klamm", f"{_PREFIX}{hashlib.sha256(identity.encode()).hexdigest()[:16]}.jsa")


def using_archive(conf: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the value of VARIABLE that selects the archive; None without an archive or if the user's options name one.

    The JVM does not start with contradicting options of this kind, so every place for the user's options is searched.
    """
    given = [environment.get(name, "") for name in (VARIABLE, *_OTHER_VARIABLES)]
    given += [conf.get(name, "") for name in _JAVA_OPTIONS]
    given.append(_spark_defaults(environment))
    if any(word in text for word in _OF_ARCHIVES for text in given):
        return None
    path = archive_path(environment)
    if path is None or not path.is_file():
        return None
    return f"-XX:SharedArchiveFile={path} {_SILENT} {given[0]}".strip()


def _spark_defaults(environment: Mapping[str, str]) -> str:
    from pyspark.find_spark_home import _find_spark_home

    directory = environment.get("SPARK_CONF_DIR") or Path(_find_spark_home(), "conf")
    try:
        return Path(directory, "spark-defaults.conf").read_text(errors="replace")
    except OSError:
        return ""


def recording(path: Path, environment: Mapping[str, str] = os.environ) -> str:
    """Return the value of VARIABLE that makes the JVM write an archive when it ends."""
    return f"{environment.get(VARIABLE, '')} -XX:ArchiveClassesAtExit={path} {_SILENT}".strip()


def keep(written: Path, path: Path) -> None:
    """Flush a complete archive to disk, move it into place and remove the archives of other versions."""
    with written.open("rb") as file:
        os.fsync(file.fileno())
    written.replace(path)
    for other in path.parent.glob(f"{_PREFIX}*"):
        if other != path:
            with suppress(OSError):
                other.unlink()
