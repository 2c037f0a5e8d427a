"""The files of a broker hold its clients' records: no other user of the machine may read them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from klamm.clock import SystemClock
from klamm.log import LogManager
from klamm.log.checkpoints import MetaProperties
from klamm.model import TopicPartition
from klamm.testing import LocalCluster
from klamm.zk.client import predecessor
from klamm.zk.client.client_connection import SessionCredentials
from tests.unit.log.harness import append, batch


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode_of(path: Path) -> int | None:
    """None if a running broker has replaced or removed the file."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return None


@pytest.mark.usefixtures("no_umask")
def test_only_its_user_can_read_the_files_of_a_local_cluster(tmp_path: Path) -> None:
    """In a directory that others may enter, with settings of an earlier version that everyone could read."""
    tmp_path.chmod(0o755)
    settings = tmp_path / "broker-1.properties"
    settings.touch(0o644)
    with LocalCluster(brokers=1, data_dir=tmp_path):
        modes = {
            path.relative_to(tmp_path): mode for path in tmp_path.rglob("*") if (mode := mode_of(path)) is not None
        }
    assert {Path("broker-1.properties"), Path("broker-1.log"), Path("zookeeper.log")} <= set(modes)
    assert {str(path): oct(mode) for path, mode in modes.items() if mode & 0o077} == {}


@pytest.mark.usefixtures("no_umask")
def test_only_the_brokers_user_can_read_its_files(tmp_path: Path) -> None:
    log_dir = tmp_path / "logs"
    manager = LogManager([str(log_dir)], clock=SystemClock(), rng=Random(0))
    manager.load_logs(MetaProperties(1, "cluster-a"))
    log = manager.get_or_create_log(TopicPartition("orders", 0), is_new=True)
    append(log, batch(b"secret"))
    log.roll()
    manager.checkpoints.write_high_watermarks({log.topic_partition: 1})
    predecessor.save(log_dir / "zookeeper.session", SessionCredentials(1, b"password"))
    manager.shutdown({log.topic_partition: 1})

    modes = {p: stat.S_IMODE(p.stat().st_mode) for p in (log_dir, *log_dir.rglob("*"))}
    assert len(modes) > 10
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {path.name: oct(mode) for path, mode in modes.items() if path.is_file() and mode != 0o600} == {}


def load(log_dir: Path) -> LogManager:
    manager = LogManager([str(log_dir)], clock=SystemClock(), rng=Random(0))
    manager.load_logs(MetaProperties(1, "cluster-a"))
    return manager


class TestDirectoriesOfEarlierVersions:
    """Their modes stay: another user may read them on purpose (`readMode=direct`). The broker warns at its start."""

    @pytest.fixture
    def log_dir(self, tmp_path: Path) -> Path:
        log_dir = tmp_path / "logs"
        manager = load(log_dir)
        manager.get_or_create_log(TopicPartition("orders", 0), is_new=True)
        manager.shutdown({})
        return log_dir

    def share(self, log_dir: Path) -> None:
        for path in (log_dir, *log_dir.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)

    def warnings(self, log_dir: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
        caplog.clear()
        load(log_dir).shutdown({})
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    def test_the_mode_and_the_remedy_are_logged(self, log_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
        self.share(log_dir)
        (warning,) = self.warnings(log_dir, caplog)
        assert "has mode 0755" in warning and f"chmod 700 {log_dir}" in warning
        assert mode_of(log_dir) == mode_of(log_dir / "orders-0") == 0o755
        log_dir.chmod(0o700)
        assert self.warnings(log_dir, caplog) == []

    @pytest.mark.parametrize("mode", [0o700, 0o750, 0o755])
    def test_nothing_is_said_if_no_file_can_be_read(
        self, log_dir: Path, mode: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A directory that a package or an operator made, with files of this version."""
        log_dir.chmod(mode)
        assert self.warnings(log_dir, caplog) == []

    def test_a_group_may_be_admitted(self, log_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
        self.share(log_dir)
        log_dir.chmod(0o750)
        assert self.warnings(log_dir, caplog) == []
