"""Spark for the commands: checked before it starts, with its output redirected to a file."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from klamm.cli.output import dim, fail, note
from klamm.cli.spark_jvm import Jvm, Terminated, sigterm_ends, silence_py4j
from klamm.spark.cluster.jvm_ended import SparkEndedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JVM_END_S: Final = 5.0
"""Time that a JVM gets to end after its connection broke."""
LOG_VARIABLE: Final = "KLAMM_SPARK_LOG"
Master = Annotated[
    str,
    typer.Option("--master", "-m", envvar="KLAMM_SPARK_MASTER", help="local[*], local-cluster[2,1,1024], spark://..."),
]
Conf = Annotated[
    list[str], typer.Option("--conf", "-c", metavar="KEY=VALUE", help="Setting of Spark; overrides klamm's own.")
]
Ship = Annotated[
    bool, typer.Option("--ship", help="Send klamm's own source to executors that do not have it installed.")
]
AppendToExisting = Annotated[
    bool,
    typer.Option(
        "--append-to-existing",
        help="With a new checkpoint, append also to tables that have rows of another query.",
    ),
]


def shipped() -> dict[str, str]:
    """Return the settings that send klamm to the executors.

    Spark passes files of `--py-files` to functions, but not to a data source that registered itself. Workers therefore
    find the archive by its name, in the working directory of their executor.
    """
    from klamm.spark.cluster.shipping import source_archive

    archive = source_archive()
    return {"spark.submit.pyFiles": str(archive), "spark.executorEnv.PYTHONPATH": archive.name}


def require_spark() -> None:
    """Fail with one sentence if Spark cannot run because the extra or Java is missing."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        fail("Spark is not installed: pip install 'klamm[spark]'.")
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and Path(home, "bin", "java").exists()):
        fail("Spark needs Java 17: apt-get install openjdk-17-jre-headless, or set JAVA_HOME.")


@contextmanager
def spark_session(master: str, app_name: str, conf: Mapping[str, str]) -> Iterator[SparkSession]:
    """Return a session for one command. On a terminal, report that the start takes a moment."""
    require_spark()
    waiting(f"Starting Spark on {master} ...")
    silence_py4j()
    jvm, spark = Jvm(), None
    with sigterm_ends():
        try:
            spark = _started(jvm, master, app_name, conf)
            yield spark
        except (KeyboardInterrupt, Terminated):
            jvm.end()
            note("Interrupted.")
            raise
        except Exception as error:
            if (interrupt := _interrupt_behind(error)) is not None:
                jvm.end()
                note("Interrupted.")
                raise interrupt from None
            if (ended := jvm.ended(JVM_END_S if is_py4j(error) else 0.0)) is None:
                raise
            advice = f" {error}" if isinstance(error, SparkEndedError) else ""
            fail(f"{ended}{advice} Spark's log is {spark_log(app_name)}.")
        finally:
            if spark is not None:
                _stop(spark)


def _interrupt_behind(error: BaseException) -> BaseException | None:
    """Return the interrupt that an error hides: PySpark calls the JVM once more while an interrupted call ends."""
    behind = error.__context__
    while behind is not None and not isinstance(behind, KeyboardInterrupt | Terminated):
        behind = behind.__context__
    return behind


def waiting(what: str) -> None:
    """Print a note on a terminal while something takes long."""
    if sys.stderr.isatty():
        note(dim(what, sys.stderr))


def _started(jvm: Jvm, master: str, app_name: str, conf: Mapping[str, str]) -> SparkSession:
    from klamm.spark.cluster.session import session

    log = spark_log(app_name)
    with _stderr_to_file(log), jvm.launching():
        try:
            spark = session(master, app_name, {**_defaults(master), **conf})
        except Exception as error:
            text = str(error).strip().splitlines()
            fail(f"Spark did not start on {master}: {text[0] if text else type(error).__name__} See {log}.")
    _silence_query_log()
    return spark


def _stop(spark: SparkSession) -> None:
    """Stop the session, unless a signal to the whole process group has ended the JVM as well."""
    from py4j.protocol import Py4JError

    with suppress(Py4JError, OSError):
        spark.stop()


def is_py4j(error: BaseException | None) -> bool:
    """Return whether this error, or one of its causes, is a broken connection to the JVM."""
    from py4j.protocol import Py4JError, Py4JJavaError

    if isinstance(error, SparkEndedError | ConnectionError):
        return True
    if isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError):
        return True
    return error is not None and is_py4j(error.__cause__)


def _defaults(master: str) -> dict[str, str]:
    """Return the settings of commands: quiet, and on loopback if the master is on this machine."""
    chosen = {"spark.ui.enabled": "false", "spark.log.level": "ERROR"}
    if master.startswith(("spark://127.0.0.1:", "spark://localhost:")):
        chosen |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return chosen


def spark_log(app_name: str) -> Path:
    """Return the log file of Spark's processes. Each pipeline has its own, because it runs for a long time."""
    if given := os.environ.get(LOG_VARIABLE):
        return Path(given)
    name = app_name.replace(" ", "-") if app_name.startswith("klamm pipeline ") else "klamm-spark"
    return Path(tempfile.gettempdir(), f"{name}-{os.getuid()}.log")


@contextmanager
def _stderr_to_file(log: Path) -> Iterator[None]:
    """Redirect standard error to the file. Processes started meanwhile keep it until they end."""
    sys.stderr.flush()
    saved = os.dup(2)
    keep_previous(log)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    try:
        os.dup2(file, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(file)


def keep_previous(log: Path) -> None:
    """Rename the log of the previous run to `<log>.1`. If that fails, the new run appends to it."""
    with suppress(OSError):
        if stat.S_ISREG(log.lstat().st_mode) and log.stat().st_size:
            log.replace(log.with_name(f"{log.name}.1"))


def _silence_query_log() -> None:
    """Silence PySpark's JSON log of query errors: they are raised too, and the commands print them as sentences."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
