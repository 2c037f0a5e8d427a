"""Starts the processes of a local cluster and checks that they answer."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path

from klamm.local.ports import LOOPBACK
from klamm.local.processes import ChildProcess


def zookeeper_process(
    data_dir: Path, port: int, *, is_temporary: bool, secret_file: Path | None = None
) -> ChildProcess:
    """Return the embedded server. Data that is removed with the cluster is not forced to disk."""
    arguments = ["--data-dir", str(data_dir / "zookeeper"), "--host", LOOPBACK, "--port", str(port)]
    arguments += ["--min-session-timeout-ms", "200", *(["--no-fsync"] if is_temporary else [])]
    if secret_file is not None:
        arguments += ["--secret-file", str(secret_file)]
    log_path = data_dir / "zookeeper.log"
    return ChildProcess("ZooKeeper", "klamm.zk.server.main", arguments, log_path, lambda: _accepts_connections(port))


def broker_process(
    broker_id: int, config_file: Path, ready_file: Path, log_path: Path, delay_file: Path | None = None
) -> ChildProcess:
    """Return a broker. With `delay_file`, its disk can be made slow."""
    arguments = ["--config", str(config_file), "--ready-file", str(ready_file)]
    module = "klamm.server"
    if delay_file is not None:
        module, arguments = "klamm.local.drill_broker", [str(delay_file), *arguments]
    return ChildProcess(f"Broker {broker_id}", module, arguments, log_path, lambda: _is_json(ready_file))


@contextlib.contextmanager
def nothing_left_of(process: ChildProcess) -> Iterator[None]:
    """End the process if the block fails."""
    try:
        yield
    except BaseException:
        process.discard()
        raise


def _accepts_connections(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), 1.0):
        return True
    return False


def _is_json(path: Path) -> bool:
    """Whether the file exists and is complete."""
    with contextlib.suppress(OSError, ValueError):
        json.loads(path.read_text())
        return True
    return False
