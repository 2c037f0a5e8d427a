"""Ending a broker's ZooKeeper session from outside, as ZooKeeper does after a silence that was too long."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from klamm.errors import KlammError
from klamm.server.coordination import SESSION_FILE
from klamm.zk.client import predecessor
from klamm.zk.client.blocking import BlockingSession
from klamm.zk.client.client_connection import SessionCredentials
from klamm.zk.model.ops import ConnectionLoss


def expire_session(hosts: str, log_dirs: Iterable[Path], timeout_s: float) -> bool:
    """Ends the session that a broker has noted in one of its directories; True when it was there and has ended.

    False when none is noted, or ZooKeeper no longer knew it: a broker notes a new session a moment after it has it.
    """
    noted = [found for path in log_dirs if (found := predecessor.load(path / SESSION_FILE)) is not None]
    existed = False
    # once more after it was ended: the broker may have taken its session back in the same moment
    while noted and _take_and_close(hosts, noted[0], timeout_s):
        existed = True
    return existed


def _take_and_close(hosts: str, credentials: SessionCredentials, timeout_s: float) -> bool:
    """Goes on with the session in the broker's place and closes it; False when ZooKeeper did not know it."""
    try:
        with BlockingSession(hosts, timeout_s, credentials) as session:
            return session.is_known
    except ConnectionLoss:
        raise KlammError(f"ZooKeeper did not answer at {hosts} within {timeout_s:g} s.") from None
