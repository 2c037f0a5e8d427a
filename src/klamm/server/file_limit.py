"""The limit of open files, and the shares of logs and connections."""

from __future__ import annotations

import logging
import resource
from typing import Final

from klamm.metrics.http_places import MAX_CONNECTIONS
from klamm.network.connection_quotas import BROKER_RESERVE, NO_LIMIT, DescriptorRoom
from klamm.zk.model import limits as zookeeper

_MAX_LIMIT: Final = 1 << 20
_MIN_SEGMENTS: Final = 16
_MAX_SEGMENTS: Final = 50_000
_MIN_CONNECTIONS: Final = 16
_MIN_OWN: Final = 24
_MIN_METRICS: Final = 8
_MIN_ZOOKEEPER: Final = 16
_MAX_OWN: Final = 128
"""Files of the process that are neither open segments nor accepted connections: libraries, the files of ZooKeeper,
connections to other brokers, checkpoints."""
_log = logging.getLogger(__name__)


def raise_to_hard_limit() -> int:
    """Raise the limit to the system's maximum; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = _MAX_LIMIT if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < allowed:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        except (OSError, ValueError) as error:  # Not possible on this system: the old limit is enough to continue.
            _log.warning("the limit of open files stays at %d: raising it to %d failed: %s", soft, allowed, error)
            return soft
        _log.info("the limit of open files was raised from %d to %d, the system's maximum", soft, allowed)
    return allowed


def open_segments(limit: int | None = None, *, has_zookeeper: bool = False) -> int:
    """Return the number of segments that logs may keep open: at least half of the files are left for connections."""
    soft = _current() if limit is None else limit
    if soft == resource.RLIM_INFINITY:
        return _MAX_SEGMENTS
    left = soft - _own(soft, has_zookeeper) - _for_brokers(soft) - _MIN_CONNECTIONS
    return max(_MIN_SEGMENTS, min(soft // 2, left, _MAX_SEGMENTS))


def connections(limit: int | None = None, *, has_zookeeper: bool = False) -> DescriptorRoom:
    """Return how many connections may be open, so that the logs and the broker itself always have their share.

    `has_zookeeper` is whether the embedded ZooKeeper runs in this process.
    """
    soft = _current() if limit is None else limit
    if soft == resource.RLIM_INFINITY:
        return DescriptorRoom(NO_LIMIT)
    own, for_brokers = _own(soft, has_zookeeper), _for_brokers(soft)
    segments = open_segments(soft, has_zookeeper=has_zookeeper)
    return DescriptorRoom(max(soft - segments - own - for_brokers, _MIN_CONNECTIONS), for_brokers)


def _own(soft: int, has_zookeeper: bool) -> int:
    """Return the files that are neither segments nor connections of a listener."""
    zookeeper_share = zookeeper_connections(soft) if has_zookeeper else 0
    return min(max(soft // 8, _MIN_OWN), _MAX_OWN) + metrics_connections(soft) + zookeeper_share


def _for_brokers(soft: int) -> int:
    return min(soft // 8, BROKER_RESERVE)


def metrics_connections(limit: int | None = None) -> int:
    """Return how many connections the metrics endpoint may have: they do not use up the share of others."""
    soft = _current() if limit is None else limit
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(_MIN_METRICS, min(soft // 16, MAX_CONNECTIONS))


def zookeeper_connections(limit: int | None = None) -> int:
    """Return how many connections the embedded ZooKeeper may have in a broker's process."""
    soft = _current() if limit is None else limit
    if soft == resource.RLIM_INFINITY:
        return zookeeper.MAX_CONNECTIONS
    return max(_MIN_ZOOKEEPER, min(soft // 16, zookeeper.MAX_CONNECTIONS))


def _current() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
