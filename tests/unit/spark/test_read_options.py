"""The options of a read, table-wise: names, precedence, defaults and what is refused."""

from __future__ import annotations

import pickle

import pytest

from klamm.model import TopicPartition
from klamm.spark.source.client_options import parse_addresses
from klamm.spark.source.read_options import EARLIEST, LATEST, OptionError, ReadOptions, Subscription, parse_read_options

MINIMAL = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders"}
T0, T1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def parse(streaming: bool = False, /, **options: str) -> ReadOptions:
    given = {name.replace("__", "."): value for name, value in options.items()}
    return parse_read_options({**MINIMAL, **given}, streaming=streaming)


def test_defaults_are_those_of_the_connector() -> None:
    batch, stream = parse(), parse(True)
    assert (batch.starting.offset, batch.ending.offset) == (EARLIEST, LATEST)
    assert stream.starting.offset == LATEST
    assert batch.fail_on_data_loss and not batch.include_headers and not batch.read_committed
    assert batch.poll_timeout_ms == 120_000 and batch.offset_retries == 3 and batch.offset_retry_interval_ms == 10
    assert batch.max_trigger_delay_ms == 15 * 60_000 and batch.metadata_cache_ttl_ms == -1
    assert batch.group_id == "spark-kafka-source" and batch.read_mode == "fetch" and batch.value_format == "raw"


def test_names_come_in_any_case_and_unknown_ones_are_ignored() -> None:
    found = parse_read_options(
        {
            "KAFKA.BOOTSTRAP.SERVERS": "h:1",
            "SubScribe": " a , b,a",
            "failondataloss": "FALSE",
            "MINPARTITIONS": "7",
            "kafka.fetch.max.bytes": "99",
            "somethingElse": "x",
        },
        streaming=True,
    )
    assert found.subscription == Subscription(topics=("a", "b"))
    assert not found.fail_on_data_loss and found.min_partitions == 7
    assert found.client["fetch.max.bytes"] == "99"


def test_the_group_id_wins_over_its_prefix() -> None:
    assert parse(groupIdPrefix="mine").group_id == "mine"
    assert parse(groupIdPrefix="mine", kafka__group__id="other").group_id == "other"


@pytest.mark.parametrize(
    ("options", "timestamp", "timestamps", "offsets"),
    [
        ({"startingTimestamp": "5", "startingOffsetsByTimestamp": '{"orders":{"0":6}}'}, 5, None, None),
        ({"startingTimestamp": "5", "startingOffsets": "earliest"}, 5, None, None),
        ({"startingOffsetsByTimestamp": '{"orders":{"0":6}}', "startingOffsets": "earliest"}, None, {T0: 6}, None),
        ({"startingOffsets": '{"orders":{"0":23,"1":-2}}'}, None, None, {T0: 23, T1: EARLIEST}),
    ],
)
def test_precedence_of_where_to_begin(
    options: dict[str, str],
    timestamp: int | None,
    timestamps: dict[TopicPartition, int] | None,
    offsets: dict[TopicPartition, int] | None,
) -> None:
    found = parse(**options).starting
    assert (found.timestamp, found.timestamps, found.offsets) == (timestamp, timestamps, offsets)


@pytest.mark.parametrize(
    ("text", "milliseconds"), [("30s", 30_000), ("15m", 900_000), ("2h", 7_200_000), ("250", 250), ("250 ms", 250)]
)
def test_durations(text: str, milliseconds: int) -> None:
    assert parse(True, maxTriggerDelay=text).max_trigger_delay_ms == milliseconds


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"kafka.auto.offset.reset": "earliest"}, "kafka.auto.offset.reset"),
        ({"kafka.key.deserializer": "x"}, "kafka.key.deserializer"),
        ({"kafka.value.deserializer": "x"}, "kafka.value.deserializer"),
        ({"kafka.enable.auto.commit": "true"}, "kafka.enable.auto.commit"),
        ({"kafka.interceptor.classes": "x"}, "kafka.interceptor.classes"),
        ({"subscribePattern": "a.*"}, "subscribePattern"),
        ({"assign": '{"a":[0]}'}, "assign"),
        ({"subscribe": " , "}, "subscribe"),
        ({"minPartitions": "0"}, "minPartitions"),
        ({"maxRecordsPerPartition": "-1"}, "maxRecordsPerPartition"),
        ({"maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "minOffsetsPerTrigger"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay"),
        ({"includeHeaders": "yes"}, "includeHeaders"),
        ({"failOnDataLoss": "1"}, "failOnDataLoss"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "startingOffsetsByTimestampStrategy"),
        ({"kafka.isolation.level": "dirty"}, "kafka.isolation.level"),
        ({"kafka.security.providers": "x.Y"}, "kafka.security.providers"),
        ({"startingOffsets": "first"}, "startingOffsets"),
        ({"startingOffsets": '{"orders":[1]}'}, "startingOffsets"),
        ({"startingOffsets": '{"orders":{"0":-3}}'}, "startingOffsets"),
        ({"startingOffsets": "{}"}, "startingOffsets"),
        ({"startingTimestamp": "-1"}, "startingTimestamp"),
        ({"startingOffsetsByTimestamp": "5"}, "startingOffsetsByTimestamp"),
        ({"readMode": "telepathy"}, "readMode"),
        ({"logDirs": "x"}, "logDirs"),
        ({"batchBytes": "1"}, "batchBytes"),
        ({"maxUnpackedBytes": str(1 << 31)}, "maxUnpackedBytes"),
        ({"commitGroup": " "}, "commitGroup"),
        ({"valueFormat": "xml"}, "valueFormat"),
        ({"valueFormat": "json"}, "valueSchema"),
        ({"valueSchema": "a int"}, "valueSchema"),
        ({"valueFormat": "json", "valueSchema": "a int", "valueSchemaFile": "f"}, "valueSchemaFile"),
        ({"columns": ","}, "columns"),
        ({"kafka.bootstrap.servers": " "}, "kafka.bootstrap.servers"),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_refusals_name_the_option(options: dict[str, str], named: str, streaming: bool) -> None:
    with pytest.raises(OptionError, match=named.replace(".", r"\.")):
        parse_read_options({**MINIMAL, **options}, streaming=streaming)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets"),
        ({"startingOffsets": '{"orders":{"0":-1}}'}, "startingOffsets"),
        ({"endingOffsets": "earliest"}, "endingOffsets"),
        ({"endingOffsets": '{"orders":{"0":-2}}'}, "endingOffsets"),
        ({"startingOffsets": '{"orders":{"0":1}}', "endingOffsets": '{"orders":{"1":2}}'}, "same partitions"),
        ({"startingOffsets": '{"orders":{"0":3}}', "endingOffsets": '{"orders":{"0":2}}'}, "startingOffsets"),
        ({"startingTimestamp": "9", "endingTimestamp": "8"}, "startingTimestamp"),
    ],
)
def test_refusals_of_batch_queries(options: dict[str, str], named: str) -> None:
    with pytest.raises(OptionError, match=named):
        parse(**options)


@pytest.mark.parametrize("name", ["endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    with pytest.raises(OptionError, match=name):
        parse(True, **{name: "5"})


@pytest.mark.parametrize("missing", ["kafka.bootstrap.servers", "subscribe"])
def test_required_options(missing: str) -> None:
    with pytest.raises(OptionError, match=missing.replace(".", r"\.")):
        parse_read_options({k: v for k, v in MINIMAL.items() if k != missing}, streaming=False)


def test_assignments_are_sorted_and_offsets_must_name_them() -> None:
    given = {"kafka.bootstrap.servers": "h:1", "assign": '{"b":[1,0],"a":[2]}'}
    found = parse_read_options(given, streaming=False).subscription.partitions
    assert found == (TopicPartition("a", 2), TopicPartition("b", 0), TopicPartition("b", 1))
    with pytest.raises(OptionError, match=r"assign.*b-1"):
        parse_read_options({**given, "startingOffsets": '{"a":{"2":0},"b":{"0":0}}'}, streaming=False)


@pytest.mark.parametrize("text", ["[0]", '{"a":0}', '{"a":["0"]}', '{"a":[-1]}', "{}", '{"a":[true]}', "{" * 5000])
def test_invalid_assignments(text: str) -> None:
    with pytest.raises(OptionError, match="assign"):
        parse_read_options({"kafka.bootstrap.servers": "h:1", "assign": text}, streaming=False)


@pytest.mark.parametrize("pattern", ["(", "*a"])
def test_a_pattern_must_be_one(pattern: str) -> None:
    with pytest.raises(OptionError, match="subscribePattern"):
        parse_read_options({"kafka.bootstrap.servers": "h:1", "subscribePattern": pattern}, streaming=False)


def test_options_travel_to_workers() -> None:
    options = parse(startingOffsets='{"orders":{"0":23}}', columns="offset,value")
    assert pickle.loads(pickle.dumps(options)) == options


def test_addresses() -> None:
    assert parse_addresses("a:1, [::1]:2,PLAINTEXT://b:3") == (("a", 1), ("::1", 2), ("b", 3))
    for wrong in ("a", "a:b", ":1", "a:0", " , "):
        with pytest.raises(OptionError, match=r"kafka\.bootstrap\.servers"):
            parse_addresses(wrong)
