"""The same pipeline, by the command, on a local master, on local-cluster and on a standalone cluster.

Executors have klamm in each of the documented ways: installed, and sent along with `--ship` where it is not.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import deltalake
import pyspark
import pytest

from klamm.testing import LocalCluster
from tests.support.topics import consume_json, produce_json

KLAMM = (sys.executable, "-m", "klamm.cli.main")
COMMAND_TIMEOUT_S = 600
pytestmark = pytest.mark.timeout(900)
BLOCKED = "KLAMM_TEST_WITHOUT_KLAMM"

PIPELINE = """\
name: totals
checkpoint: ${BASE}/checkpoint
settings: {spark.sql.shuffle.partitions: 2, spark.executor.memory: 512m, spark.cores.max: 2}
sources:
  amounts: {schema: "account string, amount long"}
views:
  totals: SELECT account, sum(amount) AS total FROM amounts GROUP BY account
sinks:
  amounts: {from: amounts, table: "${BASE}/amounts"}
  totals: {from: totals, topic: "${TOTALS}", key: account, mode: update}
"""


def klamm(*arguments: object, env: Mapping[str, str] | None = None, code: int = 0) -> str:
    done = subprocess.run(
        [*KLAMM, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        env={**os.environ, **(env or {})},
    )
    assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def amounts(cluster: LocalCluster) -> str:
    cluster.create_topic("amounts", 4, 1)
    values = [{"account": f"a{number % 5}", "amount": number} for number in range(200)]
    produce_json(cluster.bootstrap_servers, "amounts", values, key="account")
    return cluster.bootstrap_servers


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("standalone")
    where = ("--dir", directory)
    reported = klamm("spark", "cluster", "up", "--workers", 2, "--cores", 1, "--memory", "1g", "--port", 0, *where)
    try:
        status = klamm("spark", "cluster", "status", *where)
        assert status.count("ALIVE") == 2 and status.count("running") == 3
        assert "runs already" in klamm("spark", "cluster", "up", *where, code=1)
        yield reported.split("Spark runs on ")[1].split()[0]
    finally:
        klamm("spark", "cluster", "down", *where)
    assert "no Spark cluster" in klamm("spark", "cluster", "status", *where, code=1)


class Run:
    """One pipeline file with directories of its own."""

    def __init__(self, directory: Path, cluster: LocalCluster, name: str) -> None:
        self.file = directory / "totals.yaml"
        self.file.write_text(PIPELINE)
        self._directory = directory
        self.servers = cluster.bootstrap_servers
        self._totals = f"totals-{name}"
        cluster.create_topic(self._totals, 1, 1)
        self.env = {
            "BASE": str(directory),
            "TOTALS": self._totals,
            "KLAMM_STATE_DIR": str(directory / "state"),
            "KLAMM_SPARK_LOG": str(directory / "spark.log"),
        }

    def start(self, *arguments: object, env: Mapping[str, str] | None = None) -> str:
        command = ("pipeline", "run", self.file, "--once", "-b", self.servers, *arguments)
        return klamm(*command, env={**self.env, **(env or {})})

    def check(self) -> None:
        table = deltalake.DeltaTable(self._directory / "amounts").to_pyarrow_table()
        assert sorted(table.column("amount").to_pylist()) == list(range(200))
        totals = {row["account"]: row["total"] for row in consume_json(self.servers, self._totals, 5)}
        assert totals == {f"a{rest}": sum(range(rest, 200, 5)) for rest in range(5)}


@pytest.mark.long
def test_local_cluster(cluster: LocalCluster, amounts: str, tmp_path: Path) -> None:
    work = Path(pyspark.__file__).parent / "work"
    was_there = work.exists()
    run = Run(tmp_path, cluster, "local-cluster")
    try:
        run.start("--master", "local-cluster[2,1,1024]")
    finally:
        if not was_there:
            shutil.rmtree(work, ignore_errors=True)
    run.check()


@pytest.mark.long
def test_standalone_with_klamm_installed(cluster: LocalCluster, amounts: str, standalone: str, tmp_path: Path) -> None:
    run = Run(tmp_path, cluster, "installed")
    run.start("--master", standalone)
    run.check()


@pytest.mark.long
def test_standalone_with_klamm_sent_along(cluster: LocalCluster, amounts: str, standalone: str, tmp_path: Path) -> None:
    python = python_without_klamm(tmp_path)
    env = {**os.environ, BLOCKED: "1"}
    assert subprocess.run([python, "-c", "import klamm"], env=env, capture_output=True).returncode != 0
    assert subprocess.run([python, "-c", "import pyspark, numba"], env=env, capture_output=True).returncode == 0
    run = Run(tmp_path, cluster, "sent")
    settings = [f"spark.executorEnv.{BLOCKED}=1", f"spark.pyspark.python={python}"]
    run.start("--master", standalone, "--ship", *(part for setting in settings for part in ("--conf", setting)))
    run.check()


def python_without_klamm(directory: Path) -> Path:
    """This Python with all packages but klamm, for executors: the driver's processes have no such variable."""
    packages = Path(pyspark.__file__).parents[1]
    script = directory / "python"
    script.write_text(
        "#!/bin/sh\n"
        f'if [ -n "${BLOCKED}" ]; then\n'
        f'  PYTHONPATH="$PYTHONPATH:{packages}" exec "{sys.executable}" -S "$@"\n'
        "fi\n"
        f'exec "{sys.executable}" "$@"\n'
    )
    script.chmod(0o755)
    return script


@pytest.mark.long
def test_local_master_from_another_terminal(cluster: LocalCluster, amounts: str, tmp_path: Path) -> None:
    """A killed JVM, run, a second run, status, stop, a changed file, reset."""
    (tmp_path / "killed").mkdir()
    check_killed_jvm(Run(tmp_path / "killed", cluster, "killed"))
    run = Run(tmp_path, cluster, "terminal")
    with start(run) as process:
        try:
            wait_for_output(process, "totals.totals: batch 0", "totals.amounts: batch 0")
            assert "in use: pipeline totals runs as process" in run_again(run)
            status = klamm("pipeline", "status", "totals", env=run.env)
            assert "running" in status and str(process.pid) in status
            assert "Stopped pipeline totals" in klamm("pipeline", "stop", run.file, env=run.env)
            _, reported = process.communicate(timeout=COMMAND_TIMEOUT_S)
            assert process.returncode == 0, reported
            assert "Traceback" not in reported and "py4j" not in reported.lower(), reported
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
    run.check()
    assert "stopped" in klamm("pipeline", "status", env=run.env)
    assert "No pipeline totals runs" in klamm("pipeline", "stop", "totals", env=run.env, code=1)

    run.file.write_text(PIPELINE.replace("mode: update", "mode: complete"))
    reported = run_again(run)
    assert "its output mode was update and is now complete" in reported and "--sink totals" in reported
    assert "Nothing was deleted" in klamm("pipeline", "reset", run.file, env=run.env, code=1)
    klamm("pipeline", "reset", run.file, "--sink", "totals", "--yes", env=run.env)
    assert not (tmp_path / "checkpoint" / "totals").exists() and (tmp_path / "checkpoint" / "amounts").exists()
    reported = klamm("sql", 'select count(*) as n from "amounts', "-b", cluster.bootstrap_servers, code=1)
    assert "never ends" in reported
    reported = klamm("sql", "select count(*) as n from amuonts", "-b", cluster.bootstrap_servers, code=1)
    assert "There is no topic 'amuonts'. Did you mean 'amounts'?" in reported


def start(run: Run) -> subprocess.Popen[str]:
    command = [*KLAMM, "pipeline", "run", str(run.file), "--every", "200ms", "--watch", "-b", run.servers]
    return subprocess.Popen(command, env={**os.environ, **run.env}, stderr=subprocess.PIPE, text=True)


def check_killed_jvm(run: Run) -> None:
    """The command reports it in one sentence, and a stop afterwards finds nothing that runs."""
    with start(run) as process:
        try:
            wait_for_output(process, "totals.amounts: batch 0")
            jvm = jvm_of(process.pid)
            os.kill(jvm, signal.SIGKILL)
            _, reported = process.communicate(timeout=COMMAND_TIMEOUT_S)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
    assert process.returncode == 1
    assert reported.splitlines()[-1].startswith(f"Error: Spark's JVM (process {jvm}) was ended by SIGKILL"), reported
    assert "Traceback" not in reported and "py4j" not in reported.lower(), reported
    reported = klamm("pipeline", "stop", "totals", env=run.env, code=1)
    assert "No pipeline totals runs" in reported and "Traceback" not in reported


def jvm_of(pid: int) -> int:
    """The JVM that a command has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    (jvm,) = (int(child) for child in children if "java" in Path(f"/proc/{child}/comm").read_text())
    return jvm


def run_again(run: Run) -> str:
    return klamm(
        "pipeline", "run", run.file, "--once", env={**run.env, "KLAMM_BOOTSTRAP_SERVERS": "localhost:1"}, code=1
    )


def wait_for_output(process: subprocess.Popen[str], *texts: str) -> None:
    """Wait until the output has all of them, in any order."""
    assert process.stderr is not None
    missing = set(texts)
    deadline = time.monotonic() + COMMAND_TIMEOUT_S
    seen = []
    for line in process.stderr:
        seen.append(line)
        missing -= {text for text in missing if text in line}
        if not missing:
            return
        assert time.monotonic() < deadline
    raise AssertionError("".join(seen))


PROGRAM = """\
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
reader = spark.read.format("klamm").option("kafka.bootstrap.servers", sys.argv[1]).option("subscribe", "amounts")
print("sum", reader.load().selectExpr("sum(get_json_object(string(value), '$.amount'))").first()[0])
print("uds", spark.conf.get("spark.python.unix.domain.socket.enabled"), spark.conf.get("spark.sql.shuffle.partitions"))
print("arguments", *sys.argv[2:])
sys.exit(3)
"""


@pytest.mark.long
def test_a_program_is_submitted(amounts: str, tmp_path: Path) -> None:
    """With klamm's settings and those of the person, its arguments, and its own exit code."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    settings = ("--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=7", "--conf", "spark.ui.enabled=false")
    reported = klamm("spark", "submit", *settings, program, amounts, "--more", "x y", code=3)
    assert "sum 19900" in reported and "uds true 7" in reported and "arguments --more x y" in reported
    assert "No such file" in klamm("spark", "submit", tmp_path / "none.py", code=1)


@pytest.mark.long
def test_sql_by_the_command(cluster: LocalCluster, amounts: str, tmp_path: Path) -> None:
    query = "select account, sum(amount) as total from amounts group by account order by account limit 2;"
    env = {"KLAMM_BOOTSTRAP_SERVERS": amounts, "KLAMM_SPARK_LOG": str(tmp_path / "spark.log")}
    reported = klamm("sql", f"{query} select amount from amounts where amount = 7", "--format", "csv", env=env)
    assert reported == "account,total\na0,3900\na1,3940\namount\n7\n"
