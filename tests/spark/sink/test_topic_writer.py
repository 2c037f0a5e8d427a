"""The records that a task writes into topics, without Spark: keys, partitions, headers, nulls, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from kafka.partitioner.default import murmur2
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from klamm.errors import KlammError
from klamm.spark.sink import writer
from klamm.spark.sink.write_options import check_schema, parse
from klamm.spark.sink.writer import BatchWriter, Written, write_rows
from klamm.spark.source.read_options import OptionError
from klamm.testing import LocalCluster

TopicFactory = Callable[..., str]
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture(autouse=True)
def _no_senders_left() -> Iterator[None]:
    yield
    for sender in writer._SENDERS.values():
        sender.close()
    writer._SENDERS.clear()


def write(cluster: LocalCluster, columns: dict[str, pa.Array], **options: str) -> int:
    parsed = parse({"kafka.bootstrap.servers": cluster.bootstrap_servers, **options})
    return write_rows(parsed, iter([pa.record_batch(columns)])).rows


def read(cluster: LocalCluster, topic: str, partitions: int, count: int) -> list[Any]:
    """`count` records, by partition and offset; and none is left after them."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "reader"})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found: list[Any] = []
    while len(found) < count:
        found += consumer.consume(count, timeout=1.0)
    assert not [message.error() for message in found if message.error()]
    ends = [consumer.get_watermark_offsets(TopicPartition(topic, number))[1] for number in range(partitions)]
    consumer.close()
    assert len(found) == count == sum(ends)
    return sorted(found, key=lambda message: (message.partition(), message.offset()))


def test_keys_choose_partitions_as_in_kafkas_default_partitioner(cluster: LocalCluster, topic: TopicFactory) -> None:
    name = topic(partitions=5)
    keys = [f"key-{number}" for number in range(200)] + [""]
    columns = {"key": pa.array(keys), "value": pa.array([f"value of {key}" for key in keys])}
    assert write(cluster, columns, topic=name) == 201
    for message in read(cluster, name, 5, 201):
        assert message.partition() == (murmur2(message.key()) & 0x7FFFFFFF) % 5
        assert message.value() == b"value of " + message.key()


def test_a_partition_column_wins_over_the_key_and_null_leaves_it(cluster: LocalCluster, topic: TopicFactory) -> None:
    name = topic(partitions=4)
    columns = {
        "key": pa.array([b"k", b"k", b"k"]),
        "value": pa.array([b"first", b"second", b"by key"]),
        "partition": pa.array([3, 0, None], pa.int32()),
    }
    write(cluster, columns, topic=name)
    places = {message.value(): message.partition() for message in read(cluster, name, 4, 3)}
    assert places == {b"first": 3, b"second": 0, b"by key": (murmur2(b"k") & 0x7FFFFFFF) % 4}


def test_nulls_and_empty_values_are_kept_apart(cluster: LocalCluster, topic: TopicFactory) -> None:
    name = topic()
    columns = {"key": pa.array([b"", b"k", None]), "value": pa.array([b"", None, b"v"])}
    write(cluster, columns, topic=name)
    assert [(m.key(), m.value()) for m in read(cluster, name, 1, 3)] == [(b"", b""), (b"k", None), (None, b"v")]


def test_headers_are_written(cluster: LocalCluster, topic: TopicFactory) -> None:
    name = topic()
    headers = [[{"key": "a", "value": b"1"}, {"key": "a", "value": None}], None, []]
    columns = {"value": pa.array(["x", "y", "z"]), "headers": pa.array(headers, HEADERS)}
    write(cluster, columns, topic=name)
    assert [m.headers() for m in read(cluster, name, 1, 3)] == [[("a", b"1"), ("a", None)], None, None]
    with pytest.raises(KlammError, match="header without a key"):
        write(cluster, {"value": pa.array(["x"]), "headers": pa.array([[{"key": None}]], HEADERS)}, topic=name)


def test_each_row_goes_to_its_topic_in_order(cluster: LocalCluster, topic: TopicFactory) -> None:
    odd, even = topic("odd"), topic("even")
    numbers = range(25_000)
    columns = {
        "topic": pa.array([odd if number % 2 else even for number in numbers]),
        "value": pa.array([str(number) for number in numbers]),
    }
    write(cluster, columns)
    for name, first in ((even, 0), (odd, 1)):
        values = [int(message.value()) for message in read(cluster, name, 1, 12_500)]
        assert values == list(range(first, 25_000, 2))


def test_a_null_topic_fails(cluster: LocalCluster, topic: TopicFactory) -> None:
    columns = {"topic": pa.array([topic(), None]), "value": pa.array(["a", "b"])}
    with pytest.raises(KlammError, match="null topic"):
        write(cluster, columns)


def test_a_delivery_that_fails_names_topic_partition_and_reason(cluster: LocalCluster, topic: TopicFactory) -> None:
    name = topic(partitions=2, config={"max.message.bytes": 1000})
    columns = {"value": pa.array([b"x" * 5000]), "partition": pa.array([1], pa.int32())}
    with pytest.raises(
        KlammError, match=rf"A record for {name}-1 was not delivered: MSG_SIZE_TOO_LARGE.*kafka.max.request.size"
    ):
        write(cluster, columns, topic=name)
    with pytest.raises(
        KlammError, match=rf"A record for {name}-7 was not delivered: UNKNOWN_PARTITION.*has 2 partitions"
    ):
        write(cluster, {"value": pa.array(["x"]), "partition": pa.array([7], pa.int32())}, topic=name)
    with pytest.raises(KlammError, match="partition -3"):
        write(cluster, {"value": pa.array(["x"]), "partition": pa.array([-3], pa.int32())}, topic=name)
    # A task does not fail of it, because Spark would try it again: the driver does.
    made = BatchWriter(parse({"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": name}), StructType())
    reported = made.write(iter([pa.record_batch(columns)]))
    with pytest.raises(KlammError, match="MSG_SIZE_TOO_LARGE"):
        made.commit([Written(3), reported, None])
    made.commit([Written(3), None])
    # The next task of this process gets a producer that knows nothing of it.
    assert write(cluster, {"value": pa.array(["y"])}, topic=name) == 1
    assert [message.value() for message in read(cluster, name, 2, 1)] == [b"y"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"topic": "t"}, "'kafka.bootstrap.servers' must be specified"),
        ({"kafka.bootstrap.servers": "a:1", "kafka.key.serializer": "x"}, "'kafka.key.serializer' is not supported"),
        ({"kafka.bootstrap.servers": "a:1", "kafka.value.serializer": "x"}, "'kafka.value.serializer' is not supp"),
        ({"kafka.bootstrap.servers": "a:1", "kafka.transactional.id": "x"}, "'kafka.transactional.id' is not supp"),
        ({"kafka.bootstrap.servers": "a:1", "kafka.no.such": "1"}, "Option 'kafka.no.such' is refused"),
        ({"kafka.bootstrap.servers": "a:1", "kafka.linger.ms": "soon"}, "Option 'kafka.linger.ms' is refused"),
        (
            {"kafka.bootstrap.servers": "a:1", "guarantee": "exactly_once", "kafka.acks": "1"},
            "'kafka.acks' is 1: exactly_once needs all",
        ),
        (
            {"kafka.bootstrap.servers": "a:1", "guarantee": "exactly_once", "kafka.enable.idempotence": "false"},
            "'kafka.enable.idempotence' is false: exactly_once needs it",
        ),
        ({"kafka.bootstrap.servers": "a:1", "transactionalIdPrefix": "x"}, "no effect without guarantee=exactly_once"),
        (
            {"kafka.bootstrap.servers": "a:1", "guarantee": "exactly_once", "transactionalIdPrefix": " "},
            "'transactionalIdPrefix' is empty",
        ),
        (
            {"kafka.bootstrap.servers": "a:1", "kafka.transaction.timeout.ms": "soon"},
            "'kafka.transaction.timeout.ms' is a number of at least 1000",
        ),
        ({"kafka.bootstrap.servers": "a:1", "guarantee": "perhaps"}, "'guarantee' is at_least_once or exactly_once"),
        ({"kafka.bootstrap.servers": "a:1", "topic": " "}, "'topic' is empty"),
        ({"kafka.bootstrap.servers": "a:1", "kafka.security.providers": "x.Y"}, "kafka.security.providers"),
        ({"kafka.bootstrap.servers": "a:1", "kafka.partitioner.class": "com.x.Mine"}, "com.x.Mine is a Java class"),
        ({"kafka.bootstrap.servers": "a:1", "kafka.buffer.memory": "much"}, "'kafka.buffer.memory' is a number"),
        ({"kafka.bootstrap.servers": "a:1", "kafka.acks": "2x"}, "Option 'kafka.acks' is all, -1, 0 or 1"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], reason: str) -> None:
    with pytest.raises(KlammError, match=reason):
        parse(options)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"Kafka.Security.Protocol": "SSLX"}, "security.protocol cannot be 'SSLX'"),
        ({"kafka.security.protocol": "SASL_SSL"}, "sasl.mechanism is missing"),
        ({"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "GSSAPI"}, "cannot be 'GSSAPI'"),
        ({"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "PLAIN"}, "a user and a password"),
        ({"kafka.security.protocol": "SSL", "kafka.ssl.truststore.location": "/no/such.pem"}, "cannot be read"),
        (
            {"kafka.security.protocol": "SSL", "kafka.ssl.endpoint.identification.algorithm": "maybe"},
            "ssl.endpoint.identification.algorithm cannot be 'maybe'",
        ),
    ],
)
def test_wrong_options_of_security_are_refused_before_the_first_connection(
    options: dict[str, str], reason: str
) -> None:
    """Files may differ between the driver and its tasks, so each process checks them where it connects."""
    parsed = parse({"kafka.bootstrap.servers": "127.0.0.1:1", **options})
    with pytest.raises(OptionError, match=reason):
        writer._check_reachable(parsed)
    with pytest.raises(OptionError, match=reason):
        assert parsed.all_settings


def test_options_reach_the_producer_under_its_names() -> None:
    given = {"kafka.bootstrap.servers": "a:1", "kafka.max.request.size": "5000", "kafka.acks": "1", "Topic": "t"}
    parsed = parse(given)
    settings = dict(parsed.producer)
    assert parsed.topic == "t"
    assert settings["message.max.bytes"] == "5000"
    assert (settings["acks"], settings["enable.idempotence"]) == ("1", "false")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"enable.idempotence": "true", "acks": "all", "partitioner": "murmur2_random"}),
        ({"kafka.acks": "ALL "}, {"enable.idempotence": "true", "acks": "all"}),
        ({"kafka.acks": "-1"}, {"enable.idempotence": "true"}),
        ({"kafka.retries": "0"}, {"enable.idempotence": "false"}),
        ({"kafka.max.in.flight.requests.per.connection": "6"}, {"enable.idempotence": "false"}),
        ({"kafka.partitioner.ignore.keys": "true"}, {"partitioner": "random"}),
        ({"kafka.compression.type": "zstd", "kafka.compression.zstd.level": "7"}, {"compression.level": "7"}),
        ({"kafka.compression.type": "lz4", "kafka.compression.zstd.level": "7"}, {"compression.type": "lz4"}),
        (
            {
                "kafka.max.block.ms": "1000",
                "kafka.partitioner.class": "org.apache.kafka.clients.producer.internals.DefaultPartitioner",
                "kafka.metric.reporters": "",
                "kafka.security.protocol": "plaintext",
            },
            {"partitioner": "murmur2_random"},
        ),
    ],
)
def test_settings_of_kafkas_producer_are_understood(options: dict[str, str], expected: dict[str, str]) -> None:
    settings = dict(parse({"kafka.bootstrap.servers": "a:1", **options}).producer)
    assert settings | expected == settings
    assert "compression.zstd.level" not in settings and "max.block.ms" not in settings


def test_buffer_memory_bounds_unacknowledged_bytes(cluster: LocalCluster, topic: TopicFactory) -> None:
    name = topic()
    rows = pa.record_batch({"value": pa.array([b"%05d" % number * 20 for number in range(2000)])})
    assert max(chunk.nbytes for chunk in writer._chunks(rows, 4000)) <= 4000
    written = write(cluster, {"value": rows.column("value")}, topic=name, **{"kafka.buffer.memory": "16000"})
    assert written == 2000 and len(read(cluster, name, 1, 2000)) == 2000


@pytest.mark.parametrize(
    ("ddl", "topic", "reason"),
    [
        ("key string", "t", "Required attribute 'value' not found"),
        ("value string", None, "Option 'topic' is required"),
        ("value long", "t", "'value' must be string or binary, not bigint"),
        ("value string, key int", "t", "'key' must be string or binary, not int"),
        ("value string, topic int", "t", "'topic' must be string, not int"),
        ("value string, partition long", "t", "'partition' must be integer, not bigint"),
        ("value string, headers map<string,binary>", "t", "'headers' must be array<struct"),
    ],
)
def test_wrong_columns_are_named(spark: SparkSession, ddl: str, topic: str | None, reason: str) -> None:
    options = parse({"kafka.bootstrap.servers": "a:1", **({"topic": topic} if topic else {})})
    schema = StructType.fromDDL(ddl)
    assert isinstance(schema, StructType)
    with pytest.raises(KlammError, match=reason):
        check_schema(schema, options)
