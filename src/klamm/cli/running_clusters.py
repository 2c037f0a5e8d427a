"""The clusters of `klamm up` on this machine: each announces its brokers in the user's state directory.

Commands without --bootstrap-server contact one address. If that broker dies, the announcement leads them to the others.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final, NamedTuple, Protocol

from klamm.state_directory import state_directory

_FOLDER: Final = "clusters"
_LOOPBACK: Final = ("localhost", "127.0.0.1")


class RunningCluster(NamedTuple):
    """A cluster whose `klamm up` is running."""

    bootstrap_servers: str
    data_dir: str
    command_config: str | None = None
    """The file for --command-config if the cluster is secured."""


class Announced(Protocol):
    """A cluster as its owner has it."""

    @property
    def bootstrap_servers(self) -> str: ...
    @property
    def data_dir(self) -> Path | str: ...


@contextmanager
def announced(cluster: Announced, command_config: Path | None = None) -> Iterator[None]:
    """Announce a cluster while this process runs it. Without a writable state directory, nothing is announced.

    `command_config` is the file that clients of a secured cluster need.
    """
    file = path = None
    with suppress(OSError, RuntimeError):  # the latter from a user without a home directory
        folder = state_directory() / _FOLDER
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = f"{socket.gethostname()}-{os.getpid()}"
        file = (folder / f"{name}.new").open("w")
        fcntl.flock(file, fcntl.LOCK_EX)  # before the file has its name: a command removes files without a lock
        file_name = None if command_config is None else str(command_config.absolute())
        shown = RunningCluster(cluster.bootstrap_servers, str(Path(cluster.data_dir).absolute()), file_name)
        json.dump(shown._asdict(), file)
        file.flush()
        path = (folder / f"{name}.new").rename(folder / f"{name}.json")
    try:
        yield
    finally:
        if path is not None:
            path.unlink(missing_ok=True)
        if file is not None:
            file.close()


def running_clusters() -> list[RunningCluster]:
    """Return the clusters of this user on this machine. A `klamm up` that was killed has lost its lock."""
    found: list[RunningCluster] = []
    try:
        folder = state_directory() / _FOLDER
    except RuntimeError:  # a user without a home directory, as in a container, announces nothing
        return found
    for path in sorted(folder.glob(f"{socket.gethostname()}-*.json")):
        with suppress(OSError, ValueError, TypeError), path.open() as file:
            if _is_locked(file):
                found.append(RunningCluster(**json.load(file)))
            else:
                path.unlink(missing_ok=True)
    return found


def _is_locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def with_all_brokers(server: str) -> str:
    """Return all brokers of the `klamm up` that has this address; the address itself if there is none."""
    host, _, port = server.rpartition(":")
    names = {f"{each}:{port}" for each in _LOOPBACK} if host in _LOOPBACK else {server}
    for cluster in running_clusters():
        servers = cluster.bootstrap_servers.split(",")
        if len(servers) > 1 and not names.isdisjoint(servers):
            return cluster.bootstrap_servers
    return server


def other_clusters(servers: str) -> str:
    """Return a sentence about running clusters that none of these servers belongs to; an empty text without any."""
    asked = {server.replace("localhost", "127.0.0.1") for server in servers.split(",")}
    others = [each for each in running_clusters() if asked.isdisjoint(each.bootstrap_servers.split(","))]
    if not others:
        return ""
    listed = " and ".join(map(_shown, others))
    return f"`klamm up` runs at {listed}."


def _shown(cluster: RunningCluster) -> str:
    secured = f"; secured, requires --command-config {cluster.command_config}" if cluster.command_config else ""
    return f"{cluster.bootstrap_servers} (data in {cluster.data_dir}{secured})"
