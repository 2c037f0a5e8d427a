"""Topics for the bench: records of one size, values that do not repeat, batches of 16 KiB as of Java's producer."""

from __future__ import annotations

import random
import time
from typing import Final

import crc32c
import numpy as np
from numpy.typing import NDArray

from bench.clusters import KlammCluster
from klamm.client.blocking_connection import BlockingConnection
from klamm.errors import KlammError
from klamm.model import TopicPartition
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from klamm.protocol.record_batch import ATTRIBUTES_POSITION, CRC_POSITION, Record, build_batch
from klamm.spark.source.client_options import task_client

PARTITIONS: Final = 6
BATCH_BYTES: Final = 16 * 1024
KEY: Final = b"key-%08d"
KEY_BYTES: Final = len(KEY % 0)
_IN_FLIGHT: Final = 4
_POOL_BYTES: Final = 8 << 20
_LETTERS: Final = b"0123456789abcdef"


def fill(cluster: KlammCluster, topic: str, value_bytes: int, rows: int, partitions: int = PARTITIONS) -> int:
    """Makes the topic and writes at least that many rows, evenly over its partitions; returns how many."""
    cluster.create_topic(topic, partitions, 1)
    batches = _Batches(value_bytes, min(BATCH_BYTES // (value_bytes + KEY_BYTES), rows // partitions or 1))
    turns = -(-rows // (batches.rows * partitions))
    with task_client(cluster.bootstrap_servers) as client:
        _, host, port = client.leader_address(TopicPartition(topic, 0))
    broker = BlockingConnection((host, port), client_id="bench", timeout_ms=60_000)
    try:
        for _ in range(turns):
            parts = [PartitionProduceData(index=index, records=batches.next()) for index in range(partitions)]
            data = [TopicProduceData(name=topic, partition_data=parts)]
            broker.send(ProduceRequest(acks=1, timeout_ms=30_000, topic_data=data), 9)
            if broker.in_flight >= _IN_FLIGHT:
                _check(broker)
        while broker.in_flight:
            _check(broker)
    finally:
        broker.close()
    return turns * batches.rows * partitions


def _check(broker: BlockingConnection) -> None:
    answer = broker.receive()
    assert isinstance(answer, ProduceResponse)
    codes = {part.error_code for part in answer.responses[0].partition_responses}
    if codes != {0}:
        raise KlammError(f"The broker refused records of the bench: {codes}.")


class _Batches:
    """Batches of one shape: each is a copy of the first with other values and its own checksum."""

    def __init__(self, value_bytes: int, rows: int) -> None:
        self.rows = rows
        self._value_bytes = value_bytes
        self._random = random.Random(value_bytes)
        letters = np.frombuffer(_LETTERS, np.uint8)
        self._pool = letters[np.random.default_rng(value_bytes).integers(0, len(letters), _POOL_BYTES)]
        self._first = np.frombuffer(self._template(0), np.uint8)
        self._places = self._value_places()

    def next(self) -> bytes:
        batch = self._first.copy()
        size = self.rows * self._value_bytes
        start = self._random.randrange(len(self._pool) - size)
        batch[self._places] = self._pool[start : start + size]
        crc = crc32c.crc32c(batch[ATTRIBUTES_POSITION:].data)
        batch[CRC_POSITION : CRC_POSITION + 4] = np.frombuffer(crc.to_bytes(4, "big"), np.uint8)
        return batch.tobytes()

    def _value_places(self) -> NDArray[np.int64]:
        """Where the values lie: where batches that differ in nothing else differ."""
        places = np.flatnonzero(self._first != np.frombuffer(self._template(1), np.uint8))
        return places[places >= ATTRIBUTES_POSITION]

    def _template(self, letter: int) -> bytes:
        value = _LETTERS[letter : letter + 1] * self._value_bytes
        now_ms = int(time.time() * 1000) // 60_000 * 60_000
        return build_batch([Record(timestamp=now_ms + i, key=KEY % i, value=value) for i in range(self.rows)])
