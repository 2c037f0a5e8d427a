"""SparkSessions with klamm's settings: `session()` creates one, `settings()` returns them, `WHY` explains them.

Only settings that help streaming queries over klamm are set; `conf` overrides each. Any other SparkSession works too,
because Spark finds `format("klamm")` by itself, but its micro-batches cost more.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from klamm.errors import KlammError
from klamm.security.redaction import SPARK_REDACTION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_ATTEMPTS: Final = 4
"""Attempts per task on a local master that does not set them; Spark's default is one."""

_LOCAL: Final = re.compile(r"local(?:\[(?P<cores>\*|\d+)(?:\s*,\s*(?P<attempts>\d+))?\])?$")
_LOCAL_CLUSTER: Final = re.compile(r"local-cluster\[\s*(?P<workers>\d+)\s*,\s*(?P<cores>\d+)\s*,\s*\d+\s*\]$")
_OLD_S: Final = 24 * 3600
_SOCKET_DIRECTORY: Final = re.compile(r"klamm-spark-(\d+)$")

WHY: Final[Mapping[str, str]] = {
    "spark.master": "a task that fails is tried again, also on a local master",
    "spark.pyspark.python": "executors run the Python that the driver runs",
    "spark.pyspark.driver.python": "planner processes run the Python that the driver runs",
    "spark.python.unix.domain.socket.enabled": "a Python task costs about 6 ms instead of 50",
    "spark.python.unix.domain.socket.dir": "sockets that a killed process leaves behind are found and removed",
    "spark.python.daemon.module": "Python workers are forked with pyarrow, numba and klamm loaded",
    "spark.driver.host": "a local master listens on loopback only",
    "spark.driver.bindAddress": "a local master listens on loopback only",
    "spark.sql.streaming.checkpointFileManagerClass": "checkpoints in local files are written 50 ms faster",
    "spark.sql.streaming.stateStore.providerClass": "state outside of the heap; transformWithState needs it",
    "spark.sql.shuffle.partitions": "one per core: more would only cost time in every micro-batch",
    "spark.sql.python.filterPushdown.enabled": "filters on offset, partition, time, topic and key reach the source",
    "spark.redaction.regex": "plans and the web UI hide the secrets of Kafka's clients too",
    "spark.speculation": "a second copy of a task would write its rows twice",
    "spark.ui.showConsoleProgress": "klamm shows progress itself",
}


def session(
    master: str = "local[*]", app_name: str = "klamm", conf: Mapping[str, object] | None = None
) -> SparkSession:
    """Return the running SparkSession or a new one on `master`, with klamm's settings; `conf` overrides them.

    When a session runs already, Spark keeps what is fixed for its lifetime and takes the rest.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise KlammError("Spark is not installed: pip install 'klamm[spark]'.") from None
    chosen = {**settings(master), **{name: _text(value) for name, value in (conf or {}).items()}}
    _prepare_socket_directory(chosen)
    if "spark.driver.bindAddress" in settings(master):
        # Without this, the web UI listens on every interface.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(app_name)
    for name, value in chosen.items():
        builder = builder.config(name, value)
    with _temporary_environment(_start_variables(chosen)):
        spark = builder.getOrCreate()
    os.environ["PYSPARK_PYTHON"] = chosen["spark.pyspark.python"]
    return spark


def _start_variables(chosen: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that PySpark reads while it creates a session. A JVM started meanwhile inherits them."""
    from klamm.spark.cluster.class_archive import VARIABLE, using_archive

    variables = {"PYSPARK_PYTHON": _launcher(chosen) or chosen["spark.pyspark.python"]}
    if (options := using_archive(chosen)) is not None:
        variables[VARIABLE] = options
    return variables


@contextmanager
def _temporary_environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables and restore the previous values afterwards."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _launcher(chosen: Mapping[str, str]) -> str | None:
    """Return a script that starts this Python faster; None if the user chose another Python or socket directory."""
    directory = _socket_directory(os.getpid())
    if chosen.get("spark.python.unix.domain.socket.dir") != str(directory):
        return None
    if {chosen["spark.pyspark.python"], chosen["spark.pyspark.driver.python"]} != {sys.executable}:
        return None
    from klamm.spark.cluster.python_launcher import write_launcher

    launcher = write_launcher(directory)
    return None if launcher is None else str(launcher)


def settings(master: str = "local[*]") -> dict[str, str]:
    """Return the settings of `session` for this master. Depends only on the process id and the number of cores."""
    chosen = {
        "spark.master": _with_attempts(master),
        "spark.pyspark.python": sys.executable,
        "spark.pyspark.driver.python": sys.executable,
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.redaction.regex": SPARK_REDACTION,
        "spark.speculation": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if (cores := _cores(master)) is not None:
        chosen |= _on_this_machine(cores)
    return chosen


def _on_this_machine(cores: int) -> dict[str, str]:
    """Settings for a driver and executors that share a machine and its files."""
    return {
        "spark.python.unix.domain.socket.dir": str(_socket_directory(os.getpid())),
        "spark.python.daemon.module": "klamm.spark.cluster.daemon",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
        "spark.sql.shuffle.partitions": str(cores),
    }


def _with_attempts(master: str) -> str:
    found = _LOCAL.match(master)
    if found is None or found["attempts"] is not None:
        return master
    return f"local[{found['cores'] or '1'},{LOCAL_ATTEMPTS}]"


def _cores(master: str) -> int | None:
    """Return the cores of a local master; None for a cluster."""
    if (found := _LOCAL.match(master)) is not None:
        cores = found["cores"] or "1"
        return (os.cpu_count() or 1) if cores == "*" else max(1, int(cores))
    if (found := _LOCAL_CLUSTER.match(master)) is not None:
        return max(1, int(found["workers"]) * int(found["cores"]))
    return None


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _socket_directory(pid: int) -> Path:
    return Path(tempfile.gettempdir(), f"klamm-spark-{pid}")


def _prepare_socket_directory(chosen: Mapping[str, str]) -> None:
    """Create this process's private directory, and remove old ones of ended processes.

    Only old ones, because an invisible process in another container may use the same temporary directory.
    """
    if (wanted := chosen.get("spark.python.unix.domain.socket.dir")) is None:
        return
    directory = Path(wanted)
    for other in directory.parent.glob("klamm-spark-*"):
        found = _SOCKET_DIRECTORY.search(other.name)
        if found is not None and other != directory and not _is_alive(int(found[1])) and _is_old(other):
            shutil.rmtree(other, ignore_errors=True)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if directory == _socket_directory(os.getpid()):
        atexit.register(shutil.rmtree, directory, ignore_errors=True)


def _is_old(directory: Path) -> bool:
    try:
        return time.time() - directory.stat().st_mtime > _OLD_S
    except OSError:
        return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
