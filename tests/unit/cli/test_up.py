"""`klamm up`: what it refuses before it starts anything, and what it leaves behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from klamm.cli.up import DirectoryLock, _report_slow_stop, _warn_of_absent_brokers
from klamm.local.ports import ReservedPort


def refused(*arguments: str) -> str:
    command = [sys.executable, "-m", "klamm.cli.main", "up", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("broker.id=7", "broker.id is set by klamm up: brokers count from 1."),
        ("listeners=PLAINTEXT://:1", "listeners is set by klamm up; use --port."),
        ("log.dirs=/data", "log.dirs is set by klamm up; use --data-dir."),
        ("zookeeper.connect=h:1", "zookeeper.connect is set by klamm up; use --zookeeper."),
    ],
)
def test_keys_that_are_not_the_persons(tmp_path: Path, setting: str, told: str) -> None:
    assert refused("-d", str(tmp_path / "data"), "--config", setting) == f"Error: {told}\n"
    assert not (tmp_path / "data").exists()


def test_a_zookeeper_that_is_not_there(tmp_path: Path) -> None:
    with ReservedPort() as nobody:
        address = f"127.0.0.1:{nobody.number}/chroot"
        told = refused("-d", str(tmp_path / "data"), "--zookeeper", address)
    assert told == f"Error: ZooKeeper does not answer at {address}.\n"
    assert not (tmp_path / "data").exists()
    assert "expected HOST:PORT" in refused("-d", str(tmp_path / "data"), "--zookeeper", "h:p")


def test_a_port_in_use_leaves_no_directory(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        told = refused("-d", str(tmp_path / "new" / "data"), "-p", str(server.getsockname()[1]))
    assert "Address already in use" in told
    assert not (tmp_path / "new").exists()


def test_a_directory_stays_when_it_was_there_or_holds_something(tmp_path: Path) -> None:
    with DirectoryLock(tmp_path):
        pass
    assert tmp_path.exists()
    with DirectoryLock(tmp_path / "data"):
        (tmp_path / "data" / "broker-1.log").touch()
    assert (tmp_path / "data" / "broker-1.log").exists()


def test_data_of_brokers_that_are_not_started(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("broker-2/t-0", "broker-3/t-0", "broker-3/t-1", "broker-4/empty", "broker-x/t-0"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "broker-9").touch()
    _warn_of_absent_brokers(tmp_path, 2)
    assert capsys.readouterr().err == (
        f"Warning: broker 3 is not started, but {tmp_path} holds 2 partitions of it: they are under-replicated, or "
        "offline if no other replica is in sync. To start it, pass --brokers 4.\n"
    )
    _warn_of_absent_brokers(tmp_path, 3)
    assert capsys.readouterr().err == ""


def test_what_a_slow_stop_waits_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "broker-1.log"
    log.write_text("[now] INFO all is well (klamm)\n[now] WARNING nobody can lead t-0 (klamm)\n[now] INFO on (klamm)\n")
    _report_slow_stop(1, log)
    last = "[now] WARNING nobody can lead t-0 (klamm)"
    told = f"Waiting for broker 1 to hand over its leaderships; see {log}. Its last warning: {last}\n"
    assert capsys.readouterr().err == told
    _report_slow_stop(2, tmp_path / "none.log")
    assert capsys.readouterr().err.endswith("none.log.\n")
