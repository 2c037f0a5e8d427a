"""Quotas in a mixed cluster: a quota that a broker of either kind sets is applied by all brokers."""

from __future__ import annotations

from functools import partial
from typing import Final

from compat.mixed_cluster.cluster import Kind, MixedCluster

from klamm.client.blocking_connection import ask_once
from klamm.errors import ErrorCode, KlammError
from klamm.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    OpData,
)
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from klamm.protocol.record_batch import Record, build_batch

TOPIC: Final = "limited"
PARTITIONS: Final = 6
TIMEOUT_S: Final = 60.0


def check(cluster: MixedCluster) -> None:
    """Set a quota through one broker of each kind, and produce to all brokers until each of them throttles."""
    cluster.admin.create_topic(TOPIC, PARTITIONS, 1, {})
    leaders = {cluster.admin.leader(TOPIC, partition): partition for partition in range(PARTITIONS)}
    if missing := set(cluster.running()) - leaders.keys():
        raise KlammError(f"brokers {missing} lead no partition of {TOPIC}")
    kinds: tuple[Kind, ...] = ("klamm", "kafka")
    for kind in kinds:
        for remove in (False, True):
            _set_quota(cluster, cluster.of(kind)[0], kind, remove=remove)
            for broker_id, partition in leaders.items():
                problem = f"broker {broker_id} does not apply a change by {kind}"
                cluster.wait(partial(_is_throttled, cluster, broker_id, partition, kind, not remove), problem)
    cluster.admin.delete_topic(TOPIC)


def _set_quota(cluster: MixedCluster, broker_id: int, client_id: str, *, remove: bool) -> None:
    op = OpData(key="producer_byte_rate", value=0.0 if remove else 1000.0, remove=remove)
    entry = EntryData(entity=[EntityData(entity_type="client-id", entity_name=client_id)], ops=[op])
    request = AlterClientQuotasRequest(entries=[entry], validate_only=False)
    address = cluster.answering()[broker_id]
    security = cluster.client_security
    answer = ask_once(address, request, 1, AlterClientQuotasResponse, TIMEOUT_S, security=security).entries[0]
    if answer.error_code != ErrorCode.NONE:
        raise KlammError(f"the quota was not changed: {answer.error_message}")


def _is_throttled(cluster: MixedCluster, broker_id: int, partition: int, client_id: str, wanted: bool) -> bool:
    data = PartitionProduceData(index=partition, records=build_batch([Record(0, 0, None, b"x" * 20_000)]))
    request = ProduceRequest(
        acks=1, timeout_ms=30_000, topic_data=[TopicProduceData(name=TOPIC, partition_data=[data])]
    )
    address = cluster.answering()[broker_id]
    security = cluster.client_security
    response = ask_once(address, request, 9, ProduceResponse, TIMEOUT_S, client_id=client_id, security=security)
    return (response.throttle_time_ms > 0) == wanted
