"""aiokafka: the asyncio client; opens with ApiVersions v0 and uses the oldest versions of the set."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import TopicAlreadyExistsError

from klamm.testing import LocalCluster

Name = Callable[[str], str]
WAIT_S = 120


async def make_topic(servers: str, topic: str, partitions: int = 1, config: dict[str, str] | None = None) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    try:
        response = await admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=config or {})])
        code = response.topic_errors[0][1]
        if code == TopicAlreadyExistsError.errno:
            raise TopicAlreadyExistsError(topic)
        assert code == 0, response
    finally:
        await admin.close()


async def produce_all(servers: str, topic: str, values: list[bytes], **extra: Any) -> list[int]:
    producer = AIOKafkaProducer(bootstrap_servers=servers, **extra)
    await producer.start()
    try:
        sent = [await producer.send(topic, value) for value in values]
        return [metadata.offset for metadata in await asyncio.gather(*sent)]
    finally:
        await producer.stop()


async def take(consumer: AIOKafkaConsumer, count: int) -> list[ConsumerRecord[Any, Any]]:
    return [await asyncio.wait_for(consumer.getone(), WAIT_S) for _ in range(count)]


def reader(servers: str, *topics: str, **extra: Any) -> AIOKafkaConsumer:
    """No member is put out of its group because the machine let it wait: others would read its records again."""
    settings: dict[str, Any] = {"auto_offset_reset": "earliest", "enable_auto_commit": False, **extra}
    settings["session_timeout_ms"] = 60_000
    return AIOKafkaConsumer(*topics, bootstrap_servers=servers, **settings)


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_comes_back_as_sent(servers: str, name: Name, codec: str | None) -> None:
    async def scenario() -> None:
        topic = name("codec")
        await make_topic(servers, topic)
        values = [b"%d-" % n + b"payload" * 50 for n in range(300)]
        await produce_all(servers, topic, values, compression_type=codec, linger_ms=20)
        async with reader(servers, topic) as consumer:
            assert [m.value for m in await take(consumer, 300)] == values

    asyncio.run(scenario())


def test_keys_headers_timestamps_null_and_empty_values(servers: str, name: Name) -> None:
    async def scenario() -> None:
        topic = name("shapes")
        await make_topic(servers, topic)
        async with AIOKafkaProducer(bootstrap_servers=servers, acks="all") as producer:
            await producer.send_and_wait(topic, None, key=b"gone")
            await producer.send_and_wait(topic, b"", key=b"")
            await producer.send_and_wait(topic, b"v", headers=[("h", b"1"), ("h", b"2")], timestamp_ms=1234)
        async with reader(servers, topic) as consumer:
            first, second, third = await take(consumer, 3)
            assert (first.key, first.value) == (b"gone", None)
            assert (second.key, second.value) == (b"", b"")
            assert (third.key, third.value, third.timestamp) == (None, b"v", 1234)
            assert list(third.headers) == [("h", b"1"), ("h", b"2")]
            tp = TopicPartition(topic, 0)
            found = (await consumer.offsets_for_times({tp: 2000}))[tp]
            assert found is not None and found.offset == 0
            assert await consumer.end_offsets([tp]) == {tp: 3}
            assert await consumer.beginning_offsets([tp]) == {tp: 0}

    asyncio.run(scenario())


def test_a_group_rebalances_and_every_message_is_read_once(servers: str, name: Name) -> None:
    async def scenario() -> None:
        topic, group = name("work"), name("workers")
        await make_topic(servers, topic, partitions=4)
        async with (
            reader(servers, topic, group_id=group) as first,
            reader(servers, topic, group_id=group) as second,
        ):
            async with asyncio.timeout(WAIT_S):
                while not (len(first.assignment()) == len(second.assignment()) == 2):
                    await asyncio.gather(first.getmany(timeout_ms=100), second.getmany(timeout_ms=100))
            await produce_all(servers, topic, [b"%d" % n for n in range(100)], acks="all")
            seen: list[bytes | None] = []
            async with asyncio.timeout(WAIT_S):
                while len(seen) < 100:
                    for batch in await asyncio.gather(first.getmany(timeout_ms=100), second.getmany(timeout_ms=100)):
                        seen += [m.value for records in batch.values() for m in records]
            assert sorted(seen, key=lambda v: int(v or b"-1")) == [b"%d" % n for n in range(100)]

    asyncio.run(scenario())


def test_commits_survive_a_restart(cluster: LocalCluster, servers: str, name: Name) -> None:
    topic, group = name("durable"), name("readers")

    async def before() -> None:
        await make_topic(servers, topic)
        await produce_all(servers, topic, [b"%d" % n for n in range(10)])
        async with reader(servers, topic, group_id=group) as consumer:
            await take(consumer, 4)
            await consumer.commit()

    async def after() -> None:
        async with reader(servers, topic, group_id=group) as consumer:
            assert [m.value for m in await take(consumer, 6)] == [b"%d" % n for n in range(4, 10)]

    asyncio.run(before())
    cluster.stop(cluster.broker_ids[0])
    cluster.start(cluster.broker_ids[0])
    asyncio.run(after())


def test_an_idempotent_producer_writes_each_message_once(servers: str, name: Name) -> None:
    async def scenario() -> None:
        topic = name("once")
        await make_topic(servers, topic)
        offsets = await produce_all(servers, topic, [b"%d" % n for n in range(500)], enable_idempotence=True)
        assert offsets == list(range(500))

    asyncio.run(scenario())


def test_admin_and_config(servers: str, name: Name) -> None:
    async def scenario() -> None:
        topic = name("admin")
        await make_topic(servers, topic, partitions=2, config={"retention.ms": "4321"})
        with pytest.raises(TopicAlreadyExistsError):
            await make_topic(servers, topic)
        admin = AIOKafkaAdminClient(bootstrap_servers=servers)
        await admin.start()
        try:
            (described,) = await admin.describe_topics([topic])
            assert len(described["partitions"]) == 2
            resource = ConfigResource(ConfigResourceType.TOPIC, topic)
            (configs,) = await admin.describe_configs([resource])
            values = {entry[0]: entry[1] for entry in configs.resources[0][4]}
            assert values["retention.ms"] == "4321"
            groups = await admin.list_consumer_groups()
            assert isinstance(groups, list)
            await admin.delete_topics([topic])
            assert topic not in await admin.list_topics()
        finally:
            await admin.close()

    asyncio.run(scenario())
