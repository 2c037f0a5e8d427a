"""Records into topics and out of them, as the tests of Spark need them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from klamm.errors import KlammError
from klamm.testing import LocalCluster


def create_anew(cluster: LocalCluster, name: str) -> None:
    """Creates a topic that was deleted just now: as in Kafka, it has its name for a moment longer."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return cluster.create_topic(name, 1, 1)
        except KlammError as error:
            assert "TOPIC_ALREADY_EXISTS" in str(error) and time.monotonic() < deadline, error
            time.sleep(0.05)


def produce_json(
    servers: str, topic: str, values: Iterable[Mapping[str, Any]], key: str | None = None, timestamp: str | None = None
) -> None:
    """Each value as JSON; `key` and `timestamp` name the fields that are the record's own."""
    producer = Producer({"bootstrap.servers": servers, "log_level": 0, "acks": "all"})
    problems: list[Any] = []
    for value in values:
        given: dict[str, Any] = {"timestamp": value[timestamp]} if timestamp is not None else {}
        producer.produce(
            topic,
            json.dumps(value).encode(),
            str(value[key]).encode() if key is not None else None,
            on_delivery=lambda error, _: problems.append(error) if error else None,
            **given,
        )
    assert producer.flush(60) == 0 and not problems, problems


def consume_json(servers: str, topic: str, count: int, timeout_s: float = 60.0) -> list[Any]:
    """The topic's first `count` values, of all partitions, in the order in which they were written."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "unused", "log_level": 0, "enable.auto.commit": False}
    )
    try:
        partitions = consumer.list_topics(topic, timeout=timeout_s).topics[topic].partitions
        consumer.assign([TopicPartition(topic, index, 0) for index in partitions])
        found: list[tuple[int, Any]] = []
        deadline = time.monotonic() + timeout_s
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} records came"
            for message in consumer.consume(count - len(found), 0.2):
                assert message.error() is None, message.error()
                found.append((message.timestamp()[1], json.loads(message.value() or b"null")))
    finally:
        consumer.close()
    return [value for _, value in sorted(found, key=lambda pair: pair[0])]
