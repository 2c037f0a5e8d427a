"""A broker that stands still (SIGSTOP) while the cluster changes a thousand times: how long does its queue become?

Read from the controller's own metrics. A request that was coalesced was put and is not sent on its own, so the queue
without coalescing would be as long as the queue and the coalesced requests together.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.control_plane.large_cluster import LargeCluster
from bench.report import Row
from klamm.client.blocking_connection import ask_once
from klamm.errors import KlammError
from klamm.local.ports import LOOPBACK
from klamm.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)

CHANGES, PAUSE_S = 1_000, 30.0
PARTITIONS = 10
_QUEUE = "kafka_controller_controllerchannelmanager_queuesize"
_COALESCED = "kafka_controller_controllerchannelmanager_coalescedrequestcount"
_AGE = "kafka_controller_controllerchannelmanager_oldestitemagems"


def rows(changes: int = CHANGES, pause_s: float = PAUSE_S) -> Iterator[Row]:
    """Replicas of ten partitions move between two brokers; the third, which has none of them, learns of it."""
    with LargeCluster(3, {"zookeeper.session.timeout.ms": 40_000}) as cluster:
        controller = cluster.local.controller_id
        other, stopped = (b for b in cluster.brokers if b != controller)
        _create(cluster, controller, other)
        before = cluster.metrics(controller)[_label(_COALESCED, stopped)]
        cluster.local.pause(stopped)
        begun = time.monotonic()
        done = 0
        while done < changes and (done < PARTITIONS or time.monotonic() < begun + pause_s):
            _move(
                cluster,
                controller,
                (controller, other) if done // PARTITIONS % 2 else (other, controller),
                done % PARTITIONS,
            )
            done += 1
        metrics = cluster.metrics(controller)
        length = metrics[_label(_QUEUE, stopped)]
        coalesced = metrics[_label(_COALESCED, stopped)] - before
        yield Row(f"Broker stopped under {done:,} changes: its queue", length, "requests")
        yield Row("The same without coalescing", length + coalesced, "requests")
        time.sleep(max(0.0, begun + pause_s - time.monotonic()))
        cluster.local.resume(stopped)
        resumed = time.monotonic()
        while cluster.metrics(controller)[_label(_AGE, stopped)]:
            if time.monotonic() > resumed + 60:
                raise KlammError(f"Broker {stopped} did not catch up within 60 s.")
            time.sleep(0.02)
        yield Row(
            f"Broker stopped for {pause_s:g} s: resumed until it has answered everything",
            time.monotonic() - resumed,
            "s",
        )


def _label(name: str, broker_id: int) -> str:
    return f'{name}{{broker_id="{broker_id}"}}'


def _create(cluster: LargeCluster, controller: int, other: int) -> None:
    cluster.local.create_topic("moved", PARTITIONS, 3)
    for partition in range(PARTITIONS):
        _move(cluster, controller, (controller, other), partition)


def _move(cluster: LargeCluster, controller: int, replicas: tuple[int, int], partition: int) -> None:
    wanted = ReassignablePartition(partition_index=partition, replicas=list(replicas))
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=30_000, topics=[ReassignableTopic(name="moved", partitions=[wanted])]
    )
    address = (LOOPBACK, cluster.local.port(controller))
    answer = ask_once(address, request, 0, AlterPartitionReassignmentsResponse, 60.0)
    if answer.error_code:
        raise KlammError(f"the reassignment was refused: {answer.error_code} {answer.error_message}")
