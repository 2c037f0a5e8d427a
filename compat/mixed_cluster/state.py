"""The state of a mixed cluster: transactions, and the invariants at rest: one metadata, whole ISRs, equal logs."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from compat.mixed_cluster.cluster import MixedCluster

from klamm.client.blocking_connection import ask_once
from klamm.errors import KlammError
from klamm.protocol.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse

_VERSION: Final = 12
_ANSWER_S: Final = 90.0
Partition = tuple[str, int]


def metadata_of(cluster: MixedCluster, broker_id: int) -> dict[object, object]:
    """Brokers, and every partition with its topic id, leader, epoch, replicas and ISR."""
    request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    address, security = cluster.answering()[broker_id], cluster.client_security
    answer = ask_once(address, request, _VERSION, MetadataResponse, 10.0, security=security)
    view: dict[object, object] = {
        (topic.name, part.partition_index): (
            topic.topic_id,
            part.error_code,
            part.leader_id,
            part.leader_epoch,
            list(part.replica_nodes),
            sorted(part.isr_nodes),
            list(part.offline_replicas),
        )
        for topic in answer.topics
        for part in topic.partitions
    }
    view["brokers"] = sorted((it.node_id, it.host, it.port, it.rack) for it in answer.brokers)
    view["cluster"] = answer.cluster_id
    return view


def partitions_of(cluster: MixedCluster) -> dict[Partition, tuple[object, ...]]:
    view = metadata_of(cluster, next(iter(cluster.answering())))
    return {key: value for key, value in view.items() if isinstance(key, tuple) and isinstance(value, tuple)}


def differences(cluster: MixedCluster) -> list[str]:
    """Empty if all running brokers report the same and every partition has all its running replicas in sync."""
    views = {broker_id: metadata_of(cluster, broker_id) for broker_id in cluster.answering()}
    first, *others = views
    found = [
        f"{key}: broker {first} says {views[first].get(key)}, broker {other} {views[other].get(key)}"
        for other in others
        for key in views[first].keys() | views[other].keys()
        if views[first].get(key) != views[other].get(key)
    ]
    running = set(views)
    for key, value in views[first].items():
        if isinstance(key, tuple) and isinstance(value, tuple):
            replicas, isr, leader = value[4], value[5], value[2]
            if set(isr) != set(replicas) & running or leader not in running:
                found.append(f"{key}: leader {leader}, replicas {replicas}, in sync {isr}")
    return found


def records(cluster: MixedCluster, broker_id: int, partition: Partition) -> bytes:
    """All segments of a replica, one after the other."""
    folder = Path(cluster.log_dir(broker_id)) / f"{partition[0]}-{partition[1]}"
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))


def unequal_logs(cluster: MixedCluster) -> list[str]:
    """Replicas of running brokers that do not have the very bytes of the first one. Nobody may write meanwhile."""
    found = []
    for partition, state in partitions_of(cluster).items():
        replicas = [it for it in state[4] if it in cluster.answering()]  # type: ignore[attr-defined]
        sizes = {replica: records(cluster, replica, partition) for replica in replicas}
        if len(set(sizes.values())) > 1:
            found.append(f"{partition}: " + ", ".join(f"{it} has {len(data)} bytes" for it, data in sizes.items()))
    return found


def await_transaction(cluster: MixedCluster, broker_id: int, transactional_id: str, state: str) -> None:
    """Wait until this broker coordinates the transaction and reports this state."""
    found: list[str] = []

    def is_reached() -> bool:
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        address, security = cluster.answering()[broker_id], cluster.client_security
        try:
            response = ask_once(address, request, 0, DescribeTransactionsResponse, _ANSWER_S, security=security)
        except OSError:
            return False
        [answer] = response.transaction_states
        found[:] = [answer.transaction_state or f"error {answer.error_code}"]
        return found == [state]

    try:
        cluster.wait(is_reached, "")
    except KlammError:
        raise KlammError(f"{transactional_id} is {found} on broker {broker_id}, not {state}") from None
