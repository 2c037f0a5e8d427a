"""A transaction that is open in a log and that no coordinator knows, as brokers without verification can have."""

from __future__ import annotations

from typing import Final

from klamm.cli.client import parse_address
from klamm.client.blocking_connection import ask_once
from klamm.client.cluster_client import ClusterClient
from klamm.client.connection_pool import ClientConfig
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from klamm.protocol.record_batch import Record, build_batch
from klamm.security.client_security import PLAINTEXT, ClientSecurity

PRODUCER_ID: Final = 4_711
VERSION: Final = 9
WAIT_S: Final = 60.0


def write_hanging_batch(
    servers: str, topic: str, partition: int, *, timestamp_ms: int, security: ClientSecurity = PLAINTEXT
) -> None:
    """Write a transactional batch of a producer that nobody knows. The brokers must not verify transactions."""
    batch = build_batch(
        [Record(timestamp=timestamp_ms, key=None, value=b"hangs")],
        producer_id=PRODUCER_ID,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
    data = PartitionProduceData(index=partition, records=batch)
    request = ProduceRequest(
        transactional_id="nobody",
        acks=-1,
        timeout_ms=30_000,
        topic_data=[TopicProduceData(name=topic, partition_data=[data])],
    )
    addresses = tuple(map(parse_address, servers.split(",")))
    with ClusterClient(ClientConfig(addresses, security=security)) as client:
        _, host, port = client.leader_address(TopicPartition(topic, partition))
    answer = ask_once((host, port), request, VERSION, ProduceResponse, WAIT_S, security=security)
    (row,) = [row for each in answer.responses for row in each.partition_responses]
    assert row.error_code == ErrorCode.NONE, ErrorCode(row.error_code).name
