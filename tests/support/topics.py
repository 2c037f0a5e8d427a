"""Records into topics and out of them, as the tests of Spark need them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from klamm.errors import KlammError
from klamm.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from klamm.testing import LocalCluster
from tests.support.raw_client import RawClient


def create_again(cluster: LocalCluster, name: str) -> None:
    """Creates a topic that was deleted just now: as in Kafka, it has its name for a moment longer.

    Returns when no broker knows the deleted one any longer.
    """
    deadline = time.monotonic() + 60
    while not _is_created(cluster, name):
        assert time.monotonic() < deadline, f"{name} is still being deleted"
        time.sleep(0.05)
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)

    def ids() -> set[object]:
        answers = [RawClient(cluster.port(each)).ask(request, 10, MetadataResponse) for each in cluster.broker_ids]
        return {topic.topic_id for answer in answers for topic in answer.topics}

    cluster.wait_for(lambda: len(ids()) == 1, 60, what=f"The new {name} at every broker")


def _is_created(cluster: LocalCluster, name: str) -> bool:
    try:
        cluster.create_topic(name, 1, 1)
    except KlammError as error:
        assert "TOPIC_ALREADY_EXISTS" in str(error), error
        return False
    return True


def delete_everywhere(cluster: LocalCluster, name: str) -> None:
    """Deletes a topic and waits until no broker knows it, and its name is free again."""
    cluster.delete_topic(name)
    cluster.wait_for(lambda: cluster._admin._partition(name, 0) is None, 60, what=f"The end of {name} everywhere")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})

    def is_free() -> bool:
        try:
            admin.create_topics([NewTopic(name, 1, 1)], validate_only=True)[name].result(60)
        except KafkaException as error:
            assert error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS, error
            return False
        return True

    cluster.wait_for(is_free, 60, what=f"The name {name}")


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


def committed_json(servers: str, topic: str, timeout_s: float = 60.0) -> list[Any]:
    """All committed values of the topic up to the end of each partition, partition by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "unused",
            "log_level": 0,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=timeout_s).topics[topic].partitions
        tps = [TopicPartition(topic, index, 0) for index in sorted(partitions)]
        found: dict[int, list[Any]] = {tp.partition: [] for tp in tps}
        ends = {tp.partition: _end(servers, topic, tp.partition, timeout_s) for tp in tps}
        consumer.assign(tps)
        deadline = time.monotonic() + timeout_s
        while ends:
            assert time.monotonic() < deadline, f"{topic}: the ends {ends} were not reached"
            for message in consumer.consume(100, 0.2):
                partition, offset = message.partition(), message.offset()
                assert partition is not None and offset is not None
                if (error := message.error()) is None:
                    found[partition].append(json.loads(message.value() or b"null"))
                    continue
                assert error.code() == KafkaError._PARTITION_EOF, error
                if offset >= ends.get(partition, 0):
                    ends.pop(partition, None)  # An open transaction would end the partition before.
    finally:
        consumer.close()
    return [value for values in found.values() for value in values]


def _end(servers: str, topic: str, partition: int, timeout_s: float) -> int:
    """The end of the log, with records of open and of aborted transactions, and with markers."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "unused", "log_level": 0, "isolation.level": "read_uncommitted"}
    )
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=timeout_s)
    finally:
        consumer.close()
    return int(end)
