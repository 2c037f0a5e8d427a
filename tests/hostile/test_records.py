"""Record batches that would stop consumers, or that cost far more than they look, sent to a running broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest
from confluent_kafka import Consumer

from klamm.client.blocking_connection import BlockingConnection
from klamm.errors import ErrorCode
from klamm.protocol.compression import CompressionType, compress
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from klamm.protocol.record_batch import Record, build_batch
from klamm.testing import LocalCluster
from tests.support.raw_client import RawClient, batch_of
from tests.support.record_attacks import with_checksum
from tests.unit.log.test_hostile_records import raw_batch, small_records
from tests.unit.log.test_packed_records import BROKEN, CODECS

BOMBS = 4
UNPACKED_BYTES = 30 << 20


@pytest.fixture(scope="module")
def client() -> Iterator[RawClient]:
    with LocalCluster(brokers=1) as cluster:
        yield RawClient(int(cluster.bootstrap_servers.split(":")[1]))


@pytest.mark.parametrize("codec", CODECS)
def test_a_broken_batch_does_not_stop_consumers(client: RawClient, codec: CompressionType) -> None:
    topic = f"broken-{codec.label}"
    client.create_topic(topic)
    assert client.offset(topic, -1) == 0
    for body in BROKEN.values():
        answer = client.produce(topic, raw_batch(compress(codec, body), 2, codec=codec))
        assert answer.error_code == ErrorCode.INVALID_RECORD
    assert client.produce(topic, raw_batch(b"not compressed at all", 2, codec=codec)).error_code == 87
    assert client.produce(topic, batch_of([b"after"])).base_offset == 0
    host, port = client.address
    consumer = Consumer({"bootstrap.servers": f"{host}:{port}", "group.id": topic, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        message = consumer.poll(120)
        assert message is not None and message.error() is None and message.value() == b"after"
    finally:
        consumer.close()


def test_uncompressed_batches_are_parsed_too(client: RawClient) -> None:
    """One record of many is not what its lengths say. A consumer of librdkafka would wait at it for ever."""
    topic = "broken-inside"
    client.create_topic(topic)
    assert client.offset(topic, -1) == 0
    values = [b"%03d" % number + b"v" * (100 + number % 7) for number in range(100)]
    whole = bytearray(build_batch([Record(value=value) for value in values]))
    at = whole.index(values[50]) - 1
    for position in (at, at - 1, at - 2, at - 3):  # length of the value (two bytes), of the key, offset
        for flipped in (2, 64, 128):
            broken = bytearray(whole)
            broken[position] ^= flipped
            assert client.produce(topic, with_checksum(broken)).error_code == ErrorCode.INVALID_RECORD
    assert client.produce(topic, batch_of([b"after"])).base_offset == 0


def test_others_are_answered_while_bombs_are_unpacked(client: RawClient) -> None:
    """Each bomb is 30 KB and unpacks to 30 MB, or has 40,000 records. The answers keep their order."""
    client.create_topic("bombs")
    client.create_topic("others")
    assert client.offset("bombs", -1) == client.offset("others", -1) == 0
    bomb = build_batch([Record(value=bytes(UNPACKED_BYTES))], compression=CompressionType.GZIP)
    assert len(bomb) < 40_000
    many = raw_batch(compress(CompressionType.ZSTD, small_records(40_000)), 40_000, codec=4)
    sent = [
        ProduceRequest(
            transactional_id=None,
            acks=1,
            timeout_ms=60_000,
            topic_data=[TopicProduceData(name="bombs", partition_data=[PartitionProduceData(index=0, records=data)])],
        )
        for data in [bomb, many] * (BOMBS // 2)
    ]
    with BlockingConnection(client.address, client_id="bombs", timeout_ms=120_000) as connection:
        for request in sent:
            connection.send(request, 9)
        offsets = [client.produce("others", batch_of([b"v"])).base_offset for _ in range(20)]
        received = [connection.receive() for _ in sent]
    assert all(isinstance(response, ProduceResponse) for response in received)
    answers = [cast(ProduceResponse, response).responses[0].partition_responses[0] for response in received]
    assert offsets == list(range(20))
    assert [a.error_code for a in answers] == [0] * BOMBS
    assert [a.base_offset for a in answers] == [(i + 1) // 2 + 40_000 * (i // 2) for i in range(BOMBS)]
