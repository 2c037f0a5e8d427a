"""A standalone Spark cluster from the pip package: a master and workers as processes of this machine, on loopback.

Its directory holds `cluster.json` with the processes and addresses, one log file per process, and the workers'
directories.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from klamm.errors import KlammError

LOOPBACK: Final = "127.0.0.1"
START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Node:
    """A process: `started` is the kernel's start time, so that a reused process id is not taken for it."""

    role: str
    pid: int
    started: str


@dataclass(frozen=True, slots=True)
class SparkCluster:
    master: str
    web: str
    nodes: tuple[Node, ...]

    def alive(self) -> list[Node]:
        return [node for node in self.nodes if _start_time(node.pid) == node.started]


def up(directory: Path, workers: int, cores: int, memory: str, port: int = 0) -> SparkCluster:
    """Start the cluster and return when the master knows all workers."""
    if (known := read(directory)) is not None and known.alive():
        raise KlammError(f"A Spark cluster of {directory} runs already on {known.master}.")
    directory.mkdir(parents=True, exist_ok=True)
    port, web_port = port or _free_port(), _free_port()
    nodes: list[Node] = []
    master = f"spark://{LOOPBACK}:{port}"
    try:
        arguments = ["--host", LOOPBACK, "--port", str(port), "--webui-port", str(web_port)]
        nodes.append(_start(directory, "master", "org.apache.spark.deploy.master.Master", arguments))
        for number in range(1, workers + 1):
            work = ["--work-dir", str(directory / f"worker-{number}"), "--webui-port", "0", "--host", LOOPBACK]
            arguments = ["--cores", str(cores), "--memory", memory, *work, master]
            nodes.append(_start(directory, f"worker-{number}", "org.apache.spark.deploy.worker.Worker", arguments))
        cluster = SparkCluster(master, f"http://{LOOPBACK}:{web_port}", tuple(nodes))
        (directory / "cluster.json").write_text(json.dumps(asdict(cluster), indent=1))
        _wait_for(lambda: _is_complete(cluster, workers, directory), START_TIMEOUT_S)
    except BaseException:
        _end(nodes)
        raise
    return cluster


def down(directory: Path) -> list[Node]:
    """Stop the remaining processes and remove the cluster's state; logs and work directories stay."""
    if (cluster := read(directory)) is None:
        raise KlammError(f"There is no Spark cluster in {directory}.")
    nodes = cluster.alive()
    _end(nodes)
    (directory / "cluster.json").unlink(missing_ok=True)
    return nodes


def read(directory: Path) -> SparkCluster | None:
    try:
        stored = json.loads((directory / "cluster.json").read_text())
        nodes = tuple(Node(**node) for node in stored["nodes"])
        return SparkCluster(stored["master"], stored["web"], nodes)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise KlammError(f"{directory / 'cluster.json'} is damaged.") from None


def master_state(cluster: SparkCluster, timeout_s: float = 5.0) -> dict[str, Any] | None:
    """Return the master's state: workers, cores, applications; None while it does not answer."""
    try:
        with urllib.request.urlopen(f"{cluster.web}/json/", timeout=timeout_s) as answer:
            state: dict[str, Any] = json.load(answer)
            return state
    except (OSError, ValueError):
        return None


def _is_complete(cluster: SparkCluster, workers: int, directory: Path) -> bool:
    alive = {node.role for node in cluster.alive()}
    for node in cluster.nodes:
        if node.role not in alive:
            log = directory / f"{node.role}.log"
            raise KlammError(f"The Spark {node.role} ended at once: {_last_line(log)} See {log}.")
    state = master_state(cluster)
    return state is not None and sum(worker.get("state") == "ALIVE" for worker in state["workers"]) >= workers


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing."


def _start(directory: Path, role: str, main_class: str, arguments: list[str]) -> Node:
    import pyspark

    home = Path(pyspark.__file__).parent
    env = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_DAEMON_MEMORY": "512m",
        "SPARK_NO_DAEMONIZE": "1",
    }
    env.pop("PYSPARK_GATEWAY_PORT", None)
    with (directory / f"{role}.log").open("wb") as log:
        process = subprocess.Popen(
            [str(home / "bin" / "spark-class"), main_class, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=directory,
            start_new_session=True,
        )
    return Node(role, process.pid, _start_time(process.pid) or "")


def _start_time(pid: int) -> str | None:
    """Return the kernel's start time of the process; None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return _without_proc(pid)
    return None if fields[0] in ("Z", "X") else fields[19]


def _without_proc(pid: int) -> str | None:
    if Path("/proc/self").exists():
        return None
    found = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True)
    return found.stdout.strip() or None


def _end(nodes: list[Node]) -> None:
    """Stop workers first, and kill processes that do not stop. Each leads a process group with its executors."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        for node in reversed(nodes):
            if _start_time(node.pid) == node.started:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(node.pid, sign)
        _reap(nodes)
        with contextlib.suppress(KlammError):
            _wait_for(lambda: not any(_running(nodes)), STOP_TIMEOUT_S)
            return


def _running(nodes: list[Node]) -> Iterator[bool]:
    _reap(nodes)
    return (_start_time(node.pid) == node.started for node in nodes)


def _reap(nodes: list[Node]) -> None:
    for node in nodes:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(node.pid, os.WNOHANG)


def _wait_for(done: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > deadline:
            raise KlammError(f"The Spark cluster was not ready within {timeout_s:g} s.")
        time.sleep(0.1)


def _free_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as server:
        port: int = server.getsockname()[1]
        return port
