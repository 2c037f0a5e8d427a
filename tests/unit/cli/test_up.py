"""`klamm up`: what it refuses before it starts anything, and what it leaves behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from klamm.cli.up import DirectoryLock, _report_slow_stop, _warn_of_absent_brokers
from klamm.local.cluster_security import ClusterSecurity
from klamm.local.ports import ReservedPort
from klamm.local.security_choice import SecurityChoice
from tests.support.forked_command import run_klamm


def refused(*arguments: str) -> str:
    done = run_klamm("up", *arguments)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("setting", "reported"),
    [
        ("broker.id=7", "broker.id is set by klamm up: brokers count from 1."),
        ("listeners=PLAINTEXT://:1", "listeners is set by klamm up; use --port."),
        ("log.dirs=/data", "log.dirs is set by klamm up; use --data-dir."),
        ("zookeeper.connect=h:1", "zookeeper.connect is set by klamm up; use --zookeeper."),
    ],
)
def test_keys_that_are_not_the_persons(tmp_path: Path, setting: str, reported: str) -> None:
    assert refused("-d", str(tmp_path / "data"), "--config", setting) == f"Error: {reported}\n"
    assert not (tmp_path / "data").exists()


def test_a_zookeeper_that_is_not_there(tmp_path: Path) -> None:
    with ReservedPort() as nobody:
        address = f"127.0.0.1:{nobody.number}/chroot"
        reported = refused("-d", str(tmp_path / "data"), "--zookeeper", address)
    assert reported == f"Error: ZooKeeper does not answer at {address}.\n"
    assert not (tmp_path / "data").exists()
    assert "expected HOST:PORT" in refused("-d", str(tmp_path / "data"), "--zookeeper", "h:p")


def test_a_secured_cluster_is_not_started_with_less(tmp_path: Path) -> None:
    """Without SASL and access control lists, everyone could read records that were guarded before."""
    choice = SecurityChoice.of(True, "SCRAM-SHA-512", True)
    assert SecurityChoice.of(True, "scram-sha-512", True) == choice, "in any case, as the option of klamm up"
    ClusterSecurity(choice, tmp_path, has_own_zookeeper=True).prepare()
    expected = f"Error: The cluster in {tmp_path} was started with --tls --sasl SCRAM-SHA-512 --acls. "
    expected += "Pass these options again, or choose another --data-dir.\n"
    for arguments in ((), ("--tls",), ("--tls", "--sasl", "SCRAM-SHA-512"), ("--tls", "--sasl", "PLAIN", "--acls")):
        assert refused("-d", str(tmp_path), *arguments) == expected
    assert choice.covers(choice) and choice.covers(SecurityChoice.of(True, None, False))
    mutual = SecurityChoice.of("mutual", None, False)
    assert choice.covers(mutual) and not SecurityChoice.of(True, None, False).covers(mutual), "a certificate was needed"


def test_a_drill_is_not_for_secured_clusters(tmp_path: Path) -> None:
    """Its viewer acts with the rights of a super user and has no login."""
    reported = refused("-d", str(tmp_path / "data"), "--drill", "--tls", "--sasl", "SCRAM-SHA-512", "--acls")
    assert "a viewer without a login" in reported and "Leave out --tls --sasl SCRAM-SHA-512 --acls." in reported
    assert not (tmp_path / "data").exists()


def test_a_port_in_use_leaves_no_directory(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        reported = refused("-d", str(tmp_path / "new" / "data"), "-p", str(server.getsockname()[1]))
    assert "Address already in use" in reported
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


def test_a_slow_stop_names_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "broker-1.log"
    log.write_text("[now] INFO all is well (klamm)\n[now] WARNING nobody can lead t-0 (klamm)\n[now] INFO on (klamm)\n")
    _report_slow_stop(1, log)
    last = "[now] WARNING nobody can lead t-0 (klamm)"
    reported = f"Waiting for broker 1 to hand over its leaderships; see {log}. Its last warning: {last}\n"
    assert capsys.readouterr().err == reported
    _report_slow_stop(2, tmp_path / "none.log")
    assert capsys.readouterr().err.endswith("none.log.\n")
