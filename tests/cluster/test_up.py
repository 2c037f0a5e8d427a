"""`klamm up` while its processes die one after the other, its metrics, and its fault drill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from klamm.cli.client import BootstrapServer, admin_client
from klamm.errors import ErrorCode
from klamm.local.ports import ReservedPort
from tests.support.raw_client import RawClient, eventually

WAIT_S = 300


@contextmanager
def klamm_up(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "klamm.cli.main", "up", "--port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def children(process: subprocess.Popen[str], words: str) -> list[int]:
    """The processes that `klamm up` has started with these words in their command."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                command = (entry / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
            if parent == process.pid and words in command:
                found.append(int(entry.name))
    return found


def offsets_topic(port: int) -> Any:
    """The topic as a broker knows it, None until it exists. The request does not create it."""
    (topic,) = RawClient(port).metadata("__consumer_offsets").topics
    return topic if topic.error_code == ErrorCode.NONE else None


def say_next(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.readline()


def servers(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None
    line = process.stdout.readline().removeprefix("bootstrap servers ")
    return [int(address.rpartition(":")[2]) for address in line.strip().split(",")]


def reached_by_default(server: str) -> str:
    """Return the servers of a command whose default is the address of one broker, as localhost:9092 is for `klamm`."""
    app = typer.Typer()

    @app.command()
    def reach(bootstrap_server: BootstrapServer = server) -> None:
        admin_client(bootstrap_server)
        print(bootstrap_server)

    done = CliRunner().invoke(app)
    assert done.exit_code == 0, done.exception
    return done.output.strip()


def test_the_others_stay_up_until_the_last_one_is_gone(tmp_path: Path) -> None:
    with klamm_up("-n", "2", "-d", str(tmp_path)) as process:
        ports = servers(process)
        assert "2 brokers up" in say_next(process)
        # The factor is 2, so that only a topic that is created now lets groups survive the first kill.
        found = eventually(lambda: offsets_topic(ports[0]), "__consumer_offsets was not created at the start")
        assert all(len(partition.replica_nodes) == 2 for partition in found.partitions)
        for broker_id, rest in ((1, True), (2, False)):
            (pid,) = children(process, f"broker-{broker_id}.properties")
            os.kill(pid, signal.SIGKILL)
            log = tmp_path / f"broker-{broker_id}.log"
            if rest:
                reported = f"Warning: Broker 1 has exited; see {log}. Still running: 2. To start it again: "
                assert say_next(process) == f"{reported}klamm broker --config {tmp_path / 'broker-1.properties'}\n"
                assert RawClient(ports[1]).metadata().brokers
                expected = ",".join(f"127.0.0.1:{port}" for port in ports)
                assert reached_by_default(f"localhost:{ports[0]}") == expected
        assert process.wait(WAIT_S) == 1
        assert process.stderr is not None
        reported = f"Broker 2 has exited; see {log}. No broker of this cluster is running."
        assert process.stderr.read() == f"Stopping.\nError: {reported}\n"


@pytest.mark.long
def test_zookeeper_stays_for_brokers_that_were_started_by_hand(tmp_path: Path) -> None:
    config = tmp_path / "broker-1.properties"
    with klamm_up("-d", str(tmp_path)) as process, ReservedPort() as port:
        servers(process)
        say_next(process)
        (pid,) = children(process, config.name)
        with broker_by_hand(config, tmp_path / "broker-2", port.number):
            eventually(lambda: answers(port.number), "the broker that was started by hand does not answer")
            os.kill(pid, signal.SIGKILL)
            assert "No broker of this cluster is running, but ZooKeeper has other clients" in say_next(process)
            assert RawClient(port.number).metadata().brokers
            process.send_signal(signal.SIGINT)
            assert process.wait(WAIT_S) == 0
        assert process.stderr is not None
        assert process.stderr.read() == f"Stopping.\nStopped; the data stays in {tmp_path}.\n"


@contextmanager
def broker_by_hand(config: Path, log_dir: Path, port: int) -> Iterator[None]:
    """Broker 2, on the ZooKeeper of `klamm up`."""
    command = [sys.executable, "-m", "klamm.cli.main", "broker", "--config", str(config)]
    for setting in ("broker.id=2", f"log.dirs={log_dir}", f"listeners=PLAINTEXT://127.0.0.1:{port}"):
        command += ["--override", setting]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def answers(port: int) -> bool:
    try:
        return bool(RawClient(port).metadata().brokers)
    except OSError:
        return False


@pytest.mark.long
def test_without_zookeeper_nothing_continues(tmp_path: Path) -> None:
    with klamm_up("-d", str(tmp_path)) as process:
        servers(process)
        assert "1 broker up" in say_next(process)
        (pid,) = children(process, "klamm.zk.server.main")
        os.kill(pid, signal.SIGKILL)
        assert process.wait(WAIT_S) == 1
        assert process.stderr is not None
        assert f"Error: ZooKeeper has exited; see {tmp_path / 'zookeeper.log'}.\n" in process.stderr.read()


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=WAIT_S) as response:
        return str(response.read().decode())


def test_metrics_and_the_control_plane(tmp_path: Path) -> None:
    """/metrics is served by default, and the line after the bootstrap servers says where."""
    with klamm_up("-n", "2", "-d", str(tmp_path), "--control-plane") as process:
        servers(process)
        assert process.stdout is not None
        name, *urls = process.stdout.readline().split()
        assert name == "metrics" and len(urls) == 2 and all(url.startswith("http://127.0.0.1:") for url in urls)
        connected = 'socket_server_metrics_connection_count{listener="CONTROLLER",networkProcessor="1"} 1'
        for url in urls:
            eventually(lambda url=url: connected in page(url), "no connection of the controller")  # type: ignore[misc]
        with urllib.request.urlopen(urls[0].replace("/metrics", "/readyz"), timeout=WAIT_S) as response:
            assert response.read() == b"ok\n"
        name, address = process.stdout.readline().split()
        assert name == "dashboard" and address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address, timeout=WAIT_S) as response:
            assert b"static/live.js" in response.read()
        assert "control.plane.listener.name=CONTROLLER\n" in (tmp_path / "broker-1.properties").read_text()


def asked(address: str, body: dict[str, Any] | None = None, headers: dict[str, str] | None = None) -> Any:
    """Return the JSON answer of the viewer, or the status of a refusal."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"Content-Type": "application/json", **(headers or {})})
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as response:
            return json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_the_drill_of_a_page(tmp_path: Path) -> None:
    """`--drill`: the printed address accepts faults from its own page, and the broker's process shows them."""
    with klamm_up("-d", str(tmp_path), "--drill") as process:
        servers(process)
        assert process.stdout is not None
        address = next(line.split()[1] for line in process.stdout if line.startswith("dashboard ")).rstrip("/")
        (pid,) = children(process, "broker-1.properties")
        status = Path(f"/proc/{pid}/stat")

        def broker() -> str:
            state = asked(f"{address}/api/drill")
            assert [it["id"] for it in state["brokers"]] == [1] and state["zookeeper"] == "running"
            return str(state["brokers"][0]["state"])

        def is_stopped() -> bool:
            return status.read_text().rpartition(")")[2].split()[0] == "T"

        assert broker() == "running" and not is_stopped()
        own = {"Origin": address, "X-Klamm-Token": asked(f"{address}/api/about")["token"]}
        fault = {"action": "pause", "broker": 1}
        for refused in (
            {"Origin": address},
            {**own, "X-Klamm-Token": "guessed"},
            {**own, "Origin": "http://a.example"},
        ):
            assert asked(f"{address}/api/drill", fault, refused) == 403
        assert broker() == "running" and not is_stopped()
        done = asked(f"{address}/api/drill", fault, own)
        assert [(it["name"], it["place"], it["problem"]) for it in done["actions"]] == [("pause", "1", None)]
        assert broker() == "paused"
        eventually(is_stopped, "the process of the broker runs")
        asked(f"{address}/api/drill", {"action": "resume", "broker": 1}, own)
        assert broker() == "running"
        eventually(lambda: not is_stopped(), "the process of the broker stands still")
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 0
