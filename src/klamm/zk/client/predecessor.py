"""Ends the session of a dead broker, so that its successor need not wait for the session timeout.

ZooKeeper requires the id and password of a session to continue it. A broker keeps them in a file in its directories
while it runs. The next process that holds the lock of the same directory resumes the session briefly and closes it, so
all ephemeral znodes of the dead broker (its registration, /controller) disappear at once. The file also records which
process wrote it and where, because directories are copied: a copy must not end the session of a live broker.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import struct
from pathlib import Path
from typing import Any, Final

from klamm.zk.client.blocking import BlockingSession
from klamm.zk.client.client_connection import SessionCredentials
from klamm.zk.client.zk_security import UNSECURED, ZkSecurity
from klamm.zk.model.ops import ConnectionLoss

log = logging.getLogger(__name__)

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_START_TIME_FIELD: Final = 19
"""The field of /proc/PID/stat, counted from the state, which is the first field after the name in brackets."""
_INT64: Final = struct.Struct(">q")
_UNREADABLE: Final = (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError, struct.error)
"""Everything that a damaged session file may raise. A broker must start in spite of it."""


def save(path: Path, credentials: SessionCredentials) -> None:
    """Save the credentials. Only the broker's user may read the file, because it allows ending the broker's session."""
    aside = path.with_name(path.name + ".tmp")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    session = {"session_id": credentials.session_id, "password": credentials.password.hex()}
    process = {"pid": os.getpid(), "started": _start_time(os.getpid())}
    with os.fdopen(descriptor, "w") as out:
        json.dump({**session, **_place(path.parent), **process}, out)
    aside.replace(path)


def load(path: Path) -> SessionCredentials | None:
    """Return the credentials of the predecessor; None if there is none or its file is invalid.

    Then its session times out.
    """
    with contextlib.suppress(*_UNREADABLE):
        found = json.loads(path.read_text())
        session_id = int(found["session_id"])
        _INT64.pack(session_id)
        return SessionCredentials(session_id, bytes.fromhex(found["password"]))
    return None


def is_of_dead_process(path: Path) -> bool:
    """Return whether a process that has ended wrote the file in this directory, since this machine was started.

    Any other file may be a copy from a directory whose broker is alive, on this machine or on a clone of it.
    """
    with contextlib.suppress(*_UNREADABLE):
        found = json.loads(path.read_text())
        here = _place(path.parent)
        return {key: found[key] for key in here} == here and not _is_running(int(found["pid"]), found["started"])
    return False


def _place(directory: Path) -> dict[str, Any]:
    stat = directory.stat()
    return {"host": socket.gethostname(), "boot": _boot_id(), "device": stat.st_dev, "inode": stat.st_ino}


def _boot_id() -> str | None:
    """Return the boot id; None if the system has none. Then machine and directory must suffice."""
    with contextlib.suppress(OSError):
        return _BOOT_ID.read_text().strip()
    return None


def _is_running(pid: int, started: int | None) -> bool:
    """Return whether the process has ended.

    Process ids are reused, so the start time is compared too, if it is known.
    """
    if started is not None and Path("/proc/self/stat").exists():
        return _start_time(pid) == started
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _start_time(pid: int) -> int | None:
    """Return the start time in ticks since boot; None if there is no such process, or only a zombie."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else int(fields[_START_TIME_FIELD])
    return None


def end_session(hosts: str, credentials: SessionCredentials, timeout_ms: int, security: ZkSecurity = UNSECURED) -> bool:
    """Close the session if it still exists. Blocks. Returns False if ZooKeeper did not answer."""
    session = BlockingSession(hosts, timeout_ms / 1000, credentials, security)
    try:
        with session:
            pass
    except ConnectionLoss:
        return False
    return session.is_ended
