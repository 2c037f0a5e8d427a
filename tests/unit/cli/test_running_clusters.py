"""Clusters of `klamm up` that announce themselves, and the default of --bootstrap-server."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from klamm.cli.client import BOOTSTRAP_VARIABLE, BootstrapServer, unreachable
from klamm.cli.running_clusters import (
    RunningCluster,
    announced,
    other_clusters,
    running_clusters,
    with_all_brokers,
)

THREE = "127.0.0.1:19092,127.0.0.1:19093,127.0.0.1:19094"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("KLAMM_STATE_DIR", str(tmp_path / "state"))
    yield tmp_path / "state"


def test_the_address_of_one_broker_stands_for_all(tmp_path: Path) -> None:
    assert running_clusters() == []
    with announced(RunningCluster(THREE, str(tmp_path))):
        assert running_clusters() == [RunningCluster(THREE, str(tmp_path))]
        assert with_all_brokers("localhost:19092") == with_all_brokers("127.0.0.1:19093") == THREE
        assert with_all_brokers("localhost:9092") == "localhost:9092", "another port is another cluster"
        assert with_all_brokers("kafka:19092") == "kafka:19092", "another host is another cluster"
    assert running_clusters() == []
    assert with_all_brokers("localhost:19092") == "localhost:19092"


def test_one_broker_needs_no_other_address(tmp_path: Path) -> None:
    with announced(RunningCluster("127.0.0.1:19092", str(tmp_path))):
        assert with_all_brokers("localhost:19092") == "localhost:19092"


def test_a_command_that_was_killed_announces_nothing(state: Path) -> None:
    """Its file stays, and the kernel has released the lock on it."""
    folder = state / "clusters"
    folder.mkdir(parents=True)
    left = folder / f"{socket.gethostname()}-1.json"
    elsewhere = folder / "another-machine-1.json"
    for path in (left, elsewhere):
        path.write_text(f'{{"bootstrap_servers": "{THREE}", "data_dir": "/d"}}')
    assert running_clusters() == []
    assert not left.exists() and elsewhere.exists(), "only its own machine knows whether a process runs"


def test_without_a_state_directory_nothing_is_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("KLAMM_STATE_DIR", str(tmp_path / "file"))
    with announced(RunningCluster(THREE, str(tmp_path))):
        assert running_clusters() == []


def test_a_user_without_a_home_directory_announces_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose user id is in no list of users."""
    for name in ("KLAMM_STATE_DIR", "XDG_STATE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 7)
    with announced(RunningCluster(THREE, str(tmp_path))):
        assert running_clusters() == []
        assert with_all_brokers("localhost:19092") == "localhost:19092"


def test_only_the_default_stands_for_all(tmp_path: Path) -> None:
    app = typer.Typer()

    @app.command()
    def show(bootstrap_server: BootstrapServer = "localhost:19092") -> None:
        print(bootstrap_server)

    def shown(*words: str, env: dict[str, str] | None = None) -> str:
        return CliRunner().invoke(app, words, env=env).output.strip()

    with announced(RunningCluster(THREE, str(tmp_path))):
        assert shown() == THREE
        assert shown("-b", "localhost:19092") == "localhost:19092"
        assert shown(env={BOOTSTRAP_VARIABLE: "localhost:19092"}) == "localhost:19092"
    assert shown() == "localhost:19092"
    assert "all brokers of a `klamm up`" in " ".join(shown("--help").replace("│", "").split())


def test_the_error_names_a_cluster_at_another_address(tmp_path: Path) -> None:
    with announced(RunningCluster(THREE, str(tmp_path))):
        assert other_clusters("localhost:19093") == ""
        reported = unreachable("127.0.0.1:1")
    assert f"No broker answers at 127.0.0.1:1. `klamm up` runs at {THREE} (data in {tmp_path})." in reported
    assert "--bootstrap-server" in reported and BOOTSTRAP_VARIABLE in reported
    assert "--command-config" not in reported


def test_the_error_names_the_file_that_a_secured_cluster_requires(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    with announced(RunningCluster(THREE, str(tmp_path)), path):
        assert running_clusters() == [RunningCluster(THREE, str(tmp_path), str(path))]
        reported = unreachable("127.0.0.1:1")
    assert f"(data in {tmp_path}; secured, requires --command-config {path})" in reported
