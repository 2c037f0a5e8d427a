"""Ending the session of a broker that is known to be dead, so that its successor need not wait for the time-out.

The id and password of a session are what ZooKeeper asks of whoever wants to go on with it. A broker keeps them in a
file while it runs; the next process that holds the lock of the same directories goes on with the session for a moment
and closes it, and all ephemeral znodes of the dead broker (its registration, /controller) go at once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from pathlib import Path
from typing import NamedTuple

log = logging.getLogger(__name__)


class SessionCredentials(NamedTuple):
    session_id: int
    password: bytes


def save(path: Path, credentials: SessionCredentials) -> None:
    """Only the broker's user may read it: with it one can end the broker's session."""
    aside = path.with_name(path.name + ".tmp")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as out:
        json.dump({"session_id": credentials.session_id, "password": credentials.password.hex()}, out)
    aside.replace(path)


def load(path: Path) -> SessionCredentials | None:
    """None when there is no predecessor, or its file cannot be understood: then its session times out."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads(path.read_text())
        return SessionCredentials(int(found["session_id"]), bytes.fromhex(found["password"]))
    return None


def end_session(hosts: str, credentials: SessionCredentials, timeout_ms: int) -> bool:
    """Closes the session if it still exists; blocks. False when ZooKeeper could not be asked."""
    from kazoo.client import KazooClient
    from kazoo.handlers.threading import KazooTimeoutError

    client = KazooClient(hosts, timeout=timeout_ms / 1000, client_id=tuple(credentials))
    try:
        client.start(timeout=timeout_ms / 1000)
    except KazooTimeoutError:
        return False
    finally:
        client.stop()
        client.close()
    return True
