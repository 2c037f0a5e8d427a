"""kafka-python: the pure-Python client; opens with ApiVersions v4 and negotiates high."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import InvalidConfigurationError, TopicAlreadyExistsError

from klamm.testing import LocalCluster

Name = Callable[[str], str]
WAIT_S = 120


def make_topic(servers: str, topic: str, partitions: int = 1, config: dict[str, str] | None = None) -> None:
    with_admin(
        servers,
        lambda admin: admin.create_topics(
            {topic: {"num_partitions": partitions, "replication_factor": 1, "configs": config or {}}}
        ),
    )


def with_admin(servers: str, call: Callable[[Any], Any]) -> Any:
    admin = KafkaAdminClient(bootstrap_servers=servers)
    try:
        return call(admin)
    finally:
        admin.close()


def produce_all(servers: str, topic: str, values: list[bytes | None], **extra: Any) -> list[int]:
    producer = KafkaProducer(bootstrap_servers=servers, **extra)
    try:
        futures = [producer.send(topic, value=value, partition=0) for value in values]
        producer.flush(WAIT_S)
        return [future.get(WAIT_S).offset for future in futures]
    finally:
        producer.close()


def reader(servers: str, *topics: str, **extra: Any) -> Any:
    settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False, **extra}
    if "group_id" in extra:  # no member is put out of its group because the machine let it wait
        settings["session_timeout_ms"] = 60_000
    return KafkaConsumer(*topics, bootstrap_servers=servers, **settings)


def take(consumer: Any, count: int, timeout_s: float = WAIT_S) -> list[Any]:
    deadline = time.monotonic() + timeout_s
    out: list[Any] = []
    while len(out) < count and time.monotonic() < deadline:
        for records in consumer.poll(timeout_ms=500).values():
            out += records
    assert len(out) == count, f"{len(out)} of {count} messages in {timeout_s} s"
    return out


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_comes_back_as_sent(servers: str, name: Name, codec: str | None) -> None:
    topic = name("codec")
    make_topic(servers, topic)
    values: list[bytes | None] = [b"%d-" % n + b"payload" * 50 for n in range(200)]
    assert produce_all(servers, topic, values, compression_type=codec, linger_ms=20) == list(range(200))
    consumer = reader(servers, topic)
    assert [m.value for m in take(consumer, 200)] == values
    consumer.close()


@pytest.mark.parametrize("api_version", [(0, 9), (0, 10, 0)], ids=["format 0", "format 1"])
def test_clients_of_old_message_formats(servers: str, name: Name, api_version: tuple[int, ...]) -> None:
    """A client of that age writes and reads message sets; the broker converts them, for newer clients too."""
    topic = name("old")
    make_topic(servers, topic)
    old: dict[str, Any] = {"api_version": api_version}
    values: list[bytes | None] = [b"%d" % n for n in range(60)]
    for first, codec in ((0, None), (20, "gzip")):
        settings = {**old, "compression_type": codec, "linger_ms": 20, "enable_idempotence": False}
        offsets = produce_all(servers, topic, values[first : first + 20], **settings)
        assert offsets == list(range(first, first + 20))
    assert produce_all(servers, topic, values[40:], compression_type="zstd", linger_ms=20) == list(range(40, 60))
    for settings in (old, {}):
        consumer = reader(servers, **settings)
        consumer.assign([TopicPartition(topic, 0)])
        assert [(m.offset, m.value) for m in take(consumer, 60)] == list(enumerate(values))
        consumer.close()


def test_keys_headers_timestamps_null_and_empty_values(servers: str, name: Name) -> None:
    topic = name("shapes")
    make_topic(servers, topic)
    producer = KafkaProducer(bootstrap_servers=servers, acks="all")
    producer.send(topic, value=None, key=b"gone").get(WAIT_S)
    producer.send(topic, value=b"", key=b"").get(WAIT_S)
    producer.send(topic, value=b"v", headers=[("h", b"1"), ("h", b"2")], timestamp_ms=1234).get(WAIT_S)
    producer.close()
    consumer = reader(servers, topic)
    first, second, third = take(consumer, 3)
    assert (first.key, first.value) == (b"gone", None)
    assert (second.key, second.value) == (b"", b"")
    assert (third.value, third.timestamp, list(third.headers)) == (b"v", 1234, [("h", b"1"), ("h", b"2")])
    tp = TopicPartition(topic, 0)
    assert consumer.offsets_for_times({tp: 2000})[tp].offset == 0
    assert consumer.end_offsets([tp]) == {tp: 3}
    consumer.close()


def test_a_group_rebalances_and_commits_survive_a_restart(cluster: LocalCluster, servers: str, name: Name) -> None:
    topic, group = name("work"), name("workers")
    make_topic(servers, topic, partitions=4)
    consumers = [reader(servers, topic, group_id=group) for _ in range(2)]
    stop = threading.Event()
    seen: list[bytes] = []

    def work(consumer: Any) -> None:
        while not stop.is_set():
            for records in consumer.poll(timeout_ms=100).values():
                seen.extend(m.value for m in records)
                consumer.commit()

    threads = [threading.Thread(target=work, args=(c,), daemon=True) for c in consumers]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + WAIT_S
    while [len(c.assignment()) for c in consumers] != [2, 2] and time.monotonic() < deadline:
        stop.wait(0.05)
    assert [len(c.assignment()) for c in consumers] == [2, 2]
    producer = KafkaProducer(bootstrap_servers=servers)
    for n in range(100):
        producer.send(topic, b"%d" % n, partition=n % 4)
    producer.flush(WAIT_S)
    producer.close()
    while len(seen) < 100 and time.monotonic() < deadline:
        stop.wait(0.05)
    stop.set()
    for thread in threads:
        thread.join(WAIT_S)
    for consumer in consumers:
        consumer.close()
    assert sorted(seen, key=int) == [b"%d" % n for n in range(100)]
    cluster.stop(cluster.broker_ids[0])
    cluster.start(cluster.broker_ids[0])
    produce_all(servers, topic, [b"after"])
    again = reader(servers, topic, group_id=group)
    assert [m.value for m in take(again, 1)] == [b"after"]
    again.close()


def test_an_idempotent_producer_writes_each_message_once(servers: str, name: Name) -> None:
    topic = name("once")
    make_topic(servers, topic)
    values: list[bytes | None] = [b"%d" % n for n in range(1000)]
    assert produce_all(servers, topic, values, enable_idempotence=True) == list(range(1000))


def test_admin_and_config(servers: str, name: Name) -> None:
    topic = name("admin")
    make_topic(servers, topic, partitions=2, config={"retention.ms": "4321"})
    with pytest.raises(TopicAlreadyExistsError):
        make_topic(servers, topic)
    (described,) = with_admin(servers, lambda a: a.describe_topics([topic]))
    assert len(described["partitions"]) == 2
    with_admin(servers, lambda a: a.create_partitions({topic: 3}))
    (described,) = with_admin(servers, lambda a: a.describe_topics([topic]))
    assert len(described["partitions"]) == 3
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    configs = with_admin(servers, lambda a: a.describe_configs([resource], config_filter="all"))
    entries = next(iter(next(iter(configs.values())).values()))
    assert entries["retention.ms"]["value"] == "4321"
    change = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"retention.ms": "9999"})
    with_admin(servers, lambda a: a.alter_configs([change]))
    configs = with_admin(servers, lambda a: a.describe_configs([resource], config_filter="all"))
    entries = next(iter(next(iter(configs.values())).values()))
    assert entries["retention.ms"]["value"] == "9999"
    with pytest.raises(InvalidConfigurationError):
        make_topic(servers, name("bad"), config={"retention.ms": "soon"})
    with_admin(servers, lambda a: a.delete_topics([topic]))
    assert topic not in with_admin(servers, lambda a: a.list_topics())
