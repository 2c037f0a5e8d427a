"""Cost of the death of one broker for the others: the requests, the partition states and the bytes sent to them.

Counted in this process, without sockets: the controller's core handles the BrokerChange and encodes its requests.
Requests are counted before a sender cuts large ones into slices. The counts do not depend on the machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bench.control_plane.core import BROKERS, CoreDriver, cluster
from bench.report import Row
from klamm.controller.events import BrokerChange
from klamm.controller.requests import ControlRequest, LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest
from klamm.zk.model import ops, paths

PARTITIONS: Final = 3_000


def kill_one_broker(partitions: int = PARTITIONS) -> CoreDriver:
    """A driver whose last event was the death of a broker with a replica of every partition, a third of them led."""
    tree = cluster(partitions)
    driver = CoreDriver(tree)
    driver.start()
    dead = BROKERS[-1]
    tree.multi(1, [ops.Delete(paths.broker_path(dead))], 0)
    driver.process(BrokerChange())
    assert not any(broker == dead for broker, _ in driver.sent)
    return driver


def states_in(request: ControlRequest) -> int:
    return len(request.body.partitions if isinstance(request, UpdateMetadataRequest) else request.partitions)


def rows(partitions: int = PARTITIONS) -> Iterator[Row]:
    driver = kill_one_broker(partitions)
    title = f"death of a broker with {partitions:,} partitions"
    for kind in (LeaderAndIsrRequest, UpdateMetadataRequest, StopReplicaRequest):
        found = [request for _, request in driver.sent if isinstance(request, kind)]
        name = kind.__name__.removesuffix("Request")
        yield Row(f"{title}: {name} requests", len(found), "requests")
        yield Row(f"{title}: states in {name}", sum(map(states_in, found)), "states")
    yield Row(f"{title}: bytes sent", driver.sent_bytes, "bytes")
