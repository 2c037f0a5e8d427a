"""Ends a broker's ZooKeeper session from outside, as ZooKeeper does when a session times out."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from klamm.errors import KlammError
from klamm.server.coordination import SESSION_FILE
from klamm.zk.client import predecessor
from klamm.zk.client.blocking import BlockingSession
from klamm.zk.client.client_connection import SessionCredentials
from klamm.zk.client.zk_security import UNSECURED, ZkSecurity
from klamm.zk.model.ops import ConnectionLoss


def expire_session(hosts: str, log_dirs: Iterable[Path], timeout_s: float, security: ZkSecurity = UNSECURED) -> bool:
    """End the session that a broker has saved in one of its directories; return whether it existed.

    Returns False if none is saved or ZooKeeper no longer knows it: a broker saves a new session with a small delay.
    """
    noted = [found for path in log_dirs if (found := predecessor.load(path / SESSION_FILE)) is not None]
    existed = False
    # repeat after success: the broker may have resumed its session at the same moment
    while noted and _take_and_close(hosts, noted[0], timeout_s, security):
        existed = True
    return existed


def _take_and_close(hosts: str, credentials: SessionCredentials, timeout_s: float, security: ZkSecurity) -> bool:
    """Resume the session in the broker's place and close it; return whether ZooKeeper knew it."""
    try:
        with BlockingSession(hosts, timeout_s, credentials, security) as session:
            return session.is_known
    except ConnectionLoss:
        raise KlammError(f"ZooKeeper did not answer at {hosts} within {timeout_s:g} s.") from None
