"""Clusters in which no broker counts as dead or out of sync on its own, even on a very slow machine.

LocalCluster's own times are short, so that the others soon notice a death: a broker that stands still for two seconds
counts as dead, and a follower as out of sync. A test that controls leaders and ISRs must not be disturbed by that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from klamm.local.broker_sessions import expire_session
from klamm.testing import LocalCluster

CALM: Final[Mapping[str, object]] = {"zookeeper.session.timeout.ms": 40_000, "replica.lag.time.max.ms": 40_000}
"""For `broker_configs`. The embedded ZooKeeper gives nobody a longer session."""
WAIT_S: Final = 60.0


def kill_at_once(cluster: LocalCluster, broker_id: int) -> None:
    """Kills a broker and ends its session, which in a calm cluster would last: the others need not wait for it."""
    cluster.kill(broker_id)
    expire_session(cluster.zookeeper_connect, [cluster.data_dir / f"broker-{broker_id}"], WAIT_S)
