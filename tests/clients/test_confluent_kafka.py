"""librdkafka through confluent-kafka: what most of the non-JVM world runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from klamm.testing import LocalCluster

Name = Callable[[str], str]
LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
MAX_TIMESTAMP: OffsetSpec = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]
WAIT_S = 120
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def make_topic(servers: str, topic: str, partitions: int = 1, config: dict[str, str] | None = None) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=config or {})
    admin.create_topics([new])[topic].result(WAIT_S)


def producer(servers: str, **extra: Any) -> Producer:
    return Producer({"bootstrap.servers": servers, "message.timeout.ms": 60_000, "log_level": 0, **extra})


def consumer(servers: str, group: str, **extra: Any) -> Consumer:
    settings = {
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": 60_000,  # no rebalance on a slow machine makes another member read the same records again
        "log_level": 0,
        **extra,
    }
    return Consumer({"bootstrap.servers": servers, "group.id": group, **settings})


def take(client: Consumer, count: int, timeout_s: float = WAIT_S) -> list[Message]:
    deadline = time.monotonic() + timeout_s
    out: list[Message] = []
    while len(out) < count and time.monotonic() < deadline:
        message = client.poll(0.5)
        if message is None:
            continue
        assert message.error() is None, message.error()
        out.append(message)
    assert len(out) == count, f"{len(out)} of {count} messages in {timeout_s} s"
    return out


def produce_all(servers: str, topic: str, values: list[bytes], **extra: Any) -> list[Message]:
    delivered: list[Message] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        delivered.append(message)

    client = producer(servers, **extra)
    for value in values:
        client.produce(topic, value, on_delivery=on_delivery)
    assert client.flush(WAIT_S) == 0
    return delivered


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_comes_back_as_sent(servers: str, name: Name, codec: str) -> None:
    topic = name(codec)
    make_topic(servers, topic)
    values = [b"%d-" % n + b"payload" * 50 for n in range(500)]
    delivered = produce_all(servers, topic, values, **{"compression.type": codec, "linger.ms": 50})
    assert sorted(m.offset() or 0 for m in delivered) == list(range(500))
    client = consumer(servers, name("g"))
    client.subscribe([topic])
    got = take(client, 500)
    assert [m.value() for m in got] == values
    assert [m.offset() for m in got] == list(range(500))
    client.close()


def test_keys_headers_null_and_empty_values(servers: str, name: Name) -> None:
    topic = name("shapes")
    make_topic(servers, topic)
    client = producer(servers)
    headers: list[tuple[str, str | bytes | None]] = [
        ("trace", b"abc"),
        ("trace", b"second"),
        ("empty", b""),
        ("null", None),
    ]
    client.produce(topic, value=None, key=b"tombstone", partition=0)
    client.produce(topic, value=b"", key=b"", partition=0)
    client.produce(topic, value=b"v", key=None, headers=headers, partition=0)
    client.produce(topic, value="grüß dich 河".encode(), key="ключ".encode(), partition=0)
    assert client.flush(WAIT_S) == 0
    reader = consumer(servers, name("g"))
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    first, second, third, fourth = take(reader, 4)
    assert (first.key(), first.value()) == (b"tombstone", None)
    assert (second.key(), second.value()) == (b"", b"")
    assert (third.key(), third.value(), third.headers()) == (None, b"v", headers)
    assert (fourth.key(), fourth.value()) == ("ключ".encode(), "grüß dich 河".encode())
    reader.close()


def test_timestamps_of_both_kinds_and_lookup_by_time(servers: str, name: Name) -> None:
    created, appended = name("create-time"), name("append-time")
    make_topic(servers, created)
    make_topic(servers, appended, config={"message.timestamp.type": "LogAppendTime"})
    now_ms = int(time.time() * 1000)
    client = producer(servers, **{"linger.ms": 0})
    for n in range(10):
        client.produce(created, b"x", timestamp=now_ms - 10_000 + n * 1000)
        client.flush(WAIT_S)
    client.produce(appended, b"x", timestamp=1000)
    assert client.flush(WAIT_S) == 0
    reader = consumer(servers, name("g"))
    (found,) = reader.offsets_for_times([TopicPartition(created, 0, now_ms - 5_500)], timeout=WAIT_S)
    assert found.offset == 5
    reader.assign([TopicPartition(created, 0, found.offset)])
    assert take(reader, 1)[0].timestamp() == (TIMESTAMP_CREATE_TIME, now_ms - 5_000)
    reader.assign([TopicPartition(appended, 0, OFFSET_BEGINNING)])
    kind, stamp = take(reader, 1)[0].timestamp()
    assert kind == TIMESTAMP_LOG_APPEND_TIME and stamp >= now_ms
    admin = AdminClient({"bootstrap.servers": servers})
    tp = TopicPartition(created, 0)
    assert admin.list_offsets({tp: LATEST})[tp].result(WAIT_S).offset == 10
    assert admin.list_offsets({tp: EARLIEST})[tp].result(WAIT_S).offset == 0
    assert admin.list_offsets({tp: MAX_TIMESTAMP})[tp].result(WAIT_S).offset == 9
    reader.close()


@pytest.mark.parametrize("strategy", [pytest.param("range", marks=pytest.mark.long), "cooperative-sticky"])
def test_a_group_rebalances_and_every_message_is_read_once(servers: str, name: Name, strategy: str) -> None:
    topic, group = name("work"), name("workers")
    make_topic(servers, topic, partitions=4)
    first = consumer(servers, group, **{"partition.assignment.strategy": strategy})
    first.subscribe([topic])
    deadline = time.monotonic() + WAIT_S
    while len(first.assignment()) != 4 and time.monotonic() < deadline:
        first.poll(0.2)
    assert len(first.assignment()) == 4
    second = consumer(servers, group, **{"partition.assignment.strategy": strategy})
    second.subscribe([topic])
    while (len(first.assignment()), len(second.assignment())) != (2, 2) and time.monotonic() < deadline:
        first.poll(0.1)
        second.poll(0.1)
    owned = {tp.partition for tp in first.assignment()} | {tp.partition for tp in second.assignment()}
    assert owned == {0, 1, 2, 3}
    client = producer(servers)
    for n in range(200):
        client.produce(topic, b"%d" % n, partition=n % 4)
    assert client.flush(WAIT_S) == 0
    seen: list[bytes] = []
    while len(seen) < 200 and time.monotonic() < deadline:
        for reader in (first, second):
            message = reader.poll(0.05)
            if message is not None and message.error() is None:
                seen.append(message.value() or b"")
    assert sorted(seen, key=int) == [b"%d" % n for n in range(200)]
    second.close()
    while len(first.assignment()) != 4 and time.monotonic() < deadline:
        first.poll(0.2)
    assert len(first.assignment()) == 4
    first.close()


def test_static_member_comes_back_without_a_rebalance(servers: str, name: Name) -> None:
    topic, group = name("static"), name("statics")
    make_topic(servers, topic, partitions=2)
    produce_all(servers, topic, [b"1", b"2"])
    member = consumer(servers, group, **{"group.instance.id": "one"})
    member.subscribe([topic])
    take(member, 2)
    member.commit(asynchronous=False)
    admin = AdminClient({"bootstrap.servers": servers})
    before = admin.describe_consumer_groups([group])[group].result(WAIT_S)
    member.close()
    again = consumer(servers, group, **{"group.instance.id": "one"})
    again.subscribe([topic])
    produce_all(servers, topic, [b"3"])
    assert take(again, 1)[0].value() == b"3"
    after = admin.describe_consumer_groups([group])[group].result(WAIT_S)
    assert [m.group_instance_id for m in after.members] == ["one"]
    assert before.members[0].assignment.topic_partitions == after.members[0].assignment.topic_partitions
    again.close()


def test_commits_and_data_survive_a_restart_and_a_kill(cluster: LocalCluster, servers: str, name: Name) -> None:
    topic, group = name("durable"), name("readers")
    make_topic(servers, topic)
    produce_all(servers, topic, [b"%d" % n for n in range(20)])
    reader = consumer(servers, group)
    reader.subscribe([topic])
    messages = take(reader, 10)
    reader.commit(message=messages[-1], asynchronous=False)
    reader.close()
    cluster.stop(cluster.broker_ids[0])
    cluster.start(cluster.broker_ids[0])
    reader = consumer(servers, group)
    reader.subscribe([topic])
    rest = take(reader, 10)
    assert [m.value() for m in rest] == [b"%d" % n for n in range(10, 20)]
    reader.commit(message=rest[-1], asynchronous=False)
    reader.close()
    cluster.kill(cluster.broker_ids[0])
    cluster.start(cluster.broker_ids[0])
    produce_all(servers, topic, [b"after"])
    reader = consumer(servers, group)
    reader.subscribe([topic])
    assert [m.value() for m in take(reader, 1)] == [b"after"]
    reader.close()


def test_an_idempotent_producer_writes_each_message_once(servers: str, name: Name) -> None:
    topic = name("once")
    make_topic(servers, topic)
    values = [b"%d" % n for n in range(2000)]
    delivered = produce_all(servers, topic, values, **{"enable.idempotence": True, "linger.ms": 5})
    assert sorted(m.offset() or 0 for m in delivered) == list(range(2000))
    reader = consumer(servers, name("g"))
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert [m.value() for m in take(reader, 2000)] == values
    reader.close()


def test_admin_topics_partitions_and_records(servers: str, name: Name) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    topic = name("admin")
    make_topic(servers, topic, partitions=2)
    with pytest.raises(KafkaException) as again:
        make_topic(servers, topic)
    assert again.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    with pytest.raises(KafkaException) as wide:
        admin.create_topics([NewTopic(name("wide"), 1, 5)])[name("wide")].result(WAIT_S)
    assert wide.value.args[0].code() == KafkaError.INVALID_REPLICATION_FACTOR
    with pytest.raises(KafkaException) as bad_name:
        admin.create_topics([NewTopic("no spaces", 1, 1)])["no spaces"].result(WAIT_S)
    assert bad_name.value.args[0].code() == KafkaError.TOPIC_EXCEPTION
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result(WAIT_S)
    assert len(admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions) == 4
    client = producer(servers)
    for _ in range(10):
        client.produce(topic, b"x", partition=0)
    client.flush(WAIT_S)
    tp = TopicPartition(topic, 0, 6)
    assert admin.delete_records([tp])[tp].result(WAIT_S).low_watermark == 6
    reader = consumer(servers, name("g"))
    assert reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=WAIT_S) == (6, 10)
    reader.close()
    cluster = admin.describe_cluster().result(WAIT_S)
    assert len(cluster.nodes) == 1 and cluster.cluster_id
    admin.delete_topics([topic])[topic].result(WAIT_S)
    assert topic not in admin.list_topics(timeout=WAIT_S).topics


def test_config_is_described_altered_and_refused(servers: str, name: Name) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    topic = name("configured")
    make_topic(servers, topic, config={"retention.ms": "123456"})
    resource = ConfigResource(ResourceType.TOPIC, topic)

    def described() -> dict[str, ConfigEntry]:
        return dict(admin.describe_configs([resource])[resource].result(WAIT_S))

    before = described()
    assert before["retention.ms"].value == "123456" and not before["retention.ms"].is_default
    assert before["cleanup.policy"].value == "delete" and before["cleanup.policy"].is_default
    resource.add_incremental_config(
        ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    )
    resource.add_incremental_config(ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE))
    admin.incremental_alter_configs([resource])[resource].result(WAIT_S)
    after = described()
    assert after["cleanup.policy"].value == "compact" and after["retention.ms"].value == "604800000"
    wrong = ConfigResource(ResourceType.TOPIC, topic)
    wrong.add_incremental_config(ConfigEntry("retention.ms", "soon", incremental_operation=AlterConfigOpType.SET))
    with pytest.raises(KafkaException) as refused:
        admin.incremental_alter_configs([wrong])[wrong].result(WAIT_S)
    assert refused.value.args[0].code() == KafkaError.INVALID_CONFIG
    broker = ConfigResource(ResourceType.BROKER, str(next(iter(admin.list_topics(timeout=WAIT_S).brokers))))
    entries = admin.describe_configs([broker])[broker].result(WAIT_S)
    assert entries["num.io.threads"].value == "8"


def test_a_keyless_record_on_a_compacted_topic_is_refused(servers: str, name: Name) -> None:
    topic = name("compacted")
    make_topic(servers, topic, config={"cleanup.policy": "compact"})
    errors: list[KafkaError | None] = []
    client = producer(servers)
    client.produce(topic, b"no key", on_delivery=lambda error, _: errors.append(error))
    client.produce(topic, b"with key", key=b"k", on_delivery=lambda error, _: errors.append(error))
    client.flush(WAIT_S)
    assert any(e is not None and e.code() == KafkaError.INVALID_RECORD for e in errors)


def test_groups_are_listed_described_reset_and_deleted(servers: str, name: Name) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    topic, group = name("grouped"), name("group")
    make_topic(servers, topic)
    produce_all(servers, topic, [b"1", b"2", b"3"])
    reader = consumer(servers, group, **{"client.id": "reader-1"})
    reader.subscribe([topic])
    take(reader, 3)
    reader.commit(asynchronous=False)
    described = admin.describe_consumer_groups([group])[group].result(WAIT_S)
    assert described.state.name == "STABLE" and described.members[0].client_id == "reader-1"
    reader.close()
    assert group in {g.group_id for g in admin.list_consumer_groups().result(WAIT_S).valid}
    target = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 1)])
    admin.alter_consumer_group_offsets([target])[group].result(WAIT_S)
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])
    offsets = admin.list_consumer_group_offsets([asked])[group].result(WAIT_S)
    assert offsets.topic_partitions[0].offset == 1
    admin.delete_consumer_groups([group])[group].result(WAIT_S)
    assert group not in {g.group_id for g in admin.list_consumer_groups().result(WAIT_S).valid}


def test_topics_are_created_on_first_use(servers: str, name: Name) -> None:
    topic = name("auto")
    (message,) = produce_all(servers, topic, [b"first"])
    assert (message.topic(), message.offset()) == (topic, 0)
