"""Where micro-batches begin and end, asked of the stream reader itself, in Spark's order of calls, on real brokers."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from klamm.client.patience import Polling
from klamm.spark.data_source import KlammDataSource
from klamm.spark.source import planner as plan
from klamm.spark.source.data_loss import DataLossError
from klamm.spark.source.reader import SmallRanges
from klamm.spark.source.stream_reader import KlammStreamReader
from klamm.testing import LocalCluster
from tests.support.topics import create_again, delete_everywhere

TopicFactory = Callable[..., str]


_OPEN: list[KlammStreamReader] = []


@pytest.fixture(autouse=True)
def _stopped() -> Iterator[None]:
    """Spark stops its readers; here nobody else does."""
    yield
    while _OPEN:
        _OPEN.pop().stop()


def stream(cluster: LocalCluster, **options: object) -> KlammStreamReader:
    given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "pollMs": "50"}
    source = KlammDataSource(given | {name: str(value) for name, value in options.items()})
    made = source.streamReader(source.schema())
    assert isinstance(made, KlammStreamReader)
    _OPEN.append(made)
    return made


def produce(cluster: LocalCluster, topic: str, count: int, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    problems: list[object] = []
    for i in range(count):
        producer.produce(
            topic,
            b"v%d" % i,
            partition=partition,
            on_delivery=lambda error, _: problems.append(error) if error else None,
        )
    assert producer.flush(60) == 0 and not problems, problems


def through_json(offset: dict[str, Any]) -> dict[str, Any]:
    """As Spark hands it back."""
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found


def next_end(reader: KlammStreamReader, start: dict[str, Any], limit: ReadLimit | None = None) -> dict[str, Any]:
    return through_json(reader.latestOffset(start, limit or reader.getDefaultReadLimit()))


def plain(offset: dict[str, Any]) -> dict[str, Any]:
    """Without the topics' ids, which are there in every offset."""
    assert offset["_ids"].keys() == {topic for topic in offset if not topic.startswith("_")}
    return {key: value for key, value in offset.items() if key != "_ids"}


def ranges(reader: KlammStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, int, int]]:
    return [each[1:] for each in topic_ranges(reader, start, end)]


def topic_ranges(
    reader: KlammStreamReader, start: dict[str, Any], end: dict[str, Any]
) -> list[tuple[str, int, int, int]]:
    """(topic, partition, first, end), whichever of them share a task."""
    found: list[tuple[str, int, int, int]] = []
    for part in reader.partitions(start, end):
        found += part.value if isinstance(part, SmallRanges) else [part.value]
    return found


def test_the_first_batch_is_the_same_when_it_is_run_again(cluster: LocalCluster, topic: TopicFactory) -> None:
    name = topic(partitions=2)
    produce(cluster, name, 5)
    reader = stream(cluster, subscribe=name)
    initial = through_json(reader.initialOffset())
    assert plain(initial) == {name: {"0": 5, "1": 0}, "_initial": True} and reader.initialOffset() == initial
    assert next_end(reader, initial) == initial, "nothing is new"
    produce(cluster, name, 3)
    end = next_end(reader, initial)
    assert plain(end) == {name: {"0": 8, "1": 0}, "_from": {name: {"0": 5, "1": 0}}}
    assert ranges(reader, initial, end) == [(0, 5, 8)]
    produce(cluster, name, 7)
    again = stream(cluster, subscribe=name)  # a driver that died before the batch was done
    later = through_json(again.initialOffset())
    assert later[name]["0"] == 15
    assert ranges(again, later, end) == [(0, 5, 8)]
    after = next_end(again, end)
    assert plain(after) == {name: {"0": 15, "1": 0}}
    assert next_end(again, after) == after


def test_an_idle_query_gets_the_same_text(cluster: LocalCluster, topic: TopicFactory) -> None:
    name = topic(partitions=12)
    produce(cluster, name, 3)
    reader = stream(cluster, subscribe=name, startingOffsets="earliest")
    end = next_end(reader, through_json(reader.initialOffset()))
    assert "_from" in end
    assert json.dumps(reader.latestOffset(end, ReadAllAvailable())) == json.dumps(end)


def test_admission(cluster: LocalCluster, topic: TopicFactory) -> None:
    name = topic(partitions=3)
    for partition, count in enumerate((60, 30, 1)):
        produce(cluster, name, count, partition)
    reader = stream(cluster, subscribe=name, startingOffsets="earliest", maxOffsetsPerTrigger=9)
    assert reader.getDefaultReadLimit() == ReadMaxRows(9)
    start = through_json(reader.initialOffset())
    seen = 0
    for _ in range(40):
        end = next_end(reader, start)
        if end == start:
            break
        sizes = {p: last - first for p, first, last in ranges(reader, start, end)}
        assert sum(sizes.values()) <= 9 + 2
        seen += sum(sizes.values())
        start = end
    assert seen == 91
    assert reader.reportLatestOffset() == {name: {"0": 60, "1": 30, "2": 1}}


def test_a_minimum_waits_for_records_or_time(cluster: LocalCluster, topic: TopicFactory) -> None:
    name = topic()
    produce(cluster, name, 3)
    reader = stream(cluster, subscribe=name, startingOffsets="earliest", minOffsetsPerTrigger=10, maxTriggerDelay="1h")
    first = next_end(reader, through_json(reader.initialOffset()))
    assert first[name] == {"0": 3}, "the first batch does not wait"
    produce(cluster, name, 4)
    assert next_end(reader, first) == first
    produce(cluster, name, 6)
    assert next_end(reader, first)[name] == {"0": 13}
    hasty = stream(cluster, subscribe=name, startingOffsets="earliest", minOffsetsPerTrigger=100, maxTriggerDelay="1ms")
    hasty_first = next_end(hasty, through_json(hasty.initialOffset()))
    produce(cluster, name, 1)
    assert next_end(hasty, hasty_first)[name] == {"0": 14}


def test_available_now_ends_where_it_began(cluster: LocalCluster, topic: TopicFactory) -> None:
    name = topic()
    produce(cluster, name, 10)
    reader = stream(cluster, subscribe=name, startingOffsets="earliest", minOffsetsPerTrigger=100)
    reader.prepareForTriggerAvailableNow()
    initial = through_json(reader.initialOffset())
    produce(cluster, name, 10)
    end = next_end(reader, initial)
    assert end[name] == {"0": 10}
    assert next_end(reader, end) == end
    late = stream(cluster, subscribe=name)
    late.prepareForTriggerAvailableNow()
    produce(cluster, name, 5)
    begun = through_json(late.initialOffset())  # newer than the target
    assert begun[name] == {"0": 25} and next_end(late, begun) == begun


def test_available_now_reports_lost_records_too(cluster: LocalCluster, topic: TopicFactory) -> None:
    name = topic()
    produce(cluster, name, 10)
    strict, relaxed = (stream(cluster, subscribe=name, failOnDataLoss=x) for x in (True, False))
    for reader in (strict, relaxed):
        reader.prepareForTriggerAvailableNow()
    with pytest.raises(DataLossError, match="the offsets 10 to 24 are gone: the log ends at 10"):
        next_end(strict, {name: {"0": 25}})
    end = next_end(relaxed, {name: {"0": 25}})
    assert plain(end) == {name: {"0": 10}, "_from": {name: {"0": 10}}}
    assert next_end(relaxed, end) == end


def test_new_partitions_and_topics_are_read_from_their_beginning(cluster: LocalCluster, topic: TopicFactory) -> None:
    name = topic("grow-a")
    produce(cluster, name, 4)
    reader = stream(cluster, subscribePattern=f"{name}.*")
    start = through_json(reader.initialOffset())
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for future in admin.create_partitions([NewPartitions(name, 2)]).values():
        future.result(60)
    cluster.wait_for(
        lambda: all(cluster._admin._knows_leaders(each, name, 2) for each in cluster.broker_ids),
        what="Both partitions at every broker",
    )
    other = f"{name}-more"
    cluster.create_topic(other, 1, 1)
    produce(cluster, name, 2, 1)
    produce(cluster, other, 3)
    end = next_end(reader, start)
    while len(end.get(name, ())) < 2 or other not in end:
        end = next_end(reader, start)
    assert end[other] == {"0": 3} and end[name] == {"0": 4, "1": 2}
    assert end["_from"] == {name: {"0": 4, "1": 0}, other: {"0": 0}}
    assert topic_ranges(reader, start, end) == [(name, 1, 0, 2), (other, 0, 0, 3)]


def test_lost_records_are_reported_or_skipped(cluster: LocalCluster, topic: TopicFactory) -> None:
    name = topic()
    produce(cluster, name, 20)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for future in admin.delete_records([ConfluentPartition(name, 0, 12)]).values():
        future.result(60)
    start, end = {name: {"0": 5}}, {name: {"0": 20}}
    strict = stream(cluster, subscribe=name)
    (partition,) = strict.partitions(start, end)
    with pytest.raises(DataLossError, match=rf"{name}-0: the offsets 5 to 11 are gone: retention"):
        list(strict.read(partition))
    relaxed = stream(cluster, subscribe=name, failOnDataLoss=False)
    offsets = [o for batch in relaxed.read(partition) for o in batch.column("offset").to_pylist()]
    assert offsets == list(range(12, 20))


def test_a_topic_created_again_is_noticed(cluster: LocalCluster, topic: TopicFactory) -> None:
    name = topic()
    produce(cluster, name, 20)
    readers = [stream(cluster, subscribe=name, startingOffsets="earliest", failOnDataLoss=x) for x in (True, False)]
    ends = [next_end(reader, through_json(reader.initialOffset())) for reader in readers]
    cluster.delete_topic(name)
    create_again(cluster, name)
    produce(cluster, name, 30)
    with pytest.raises(DataLossError, match="created again"):
        while True:
            next_end(readers[0], ends[0])
    end = next_end(readers[1], ends[1])
    assert ranges(readers[1], ends[1], end) == [(0, 0, 30)]
    assert next_end(readers[1], end) == end
    with pytest.raises(DataLossError, match="the offsets 30 to 49 are gone"):
        next_end(stream(cluster, subscribe=name), {name: {"0": 50}})


def test_a_topic_created_again_while_the_query_is_down_is_noticed(cluster: LocalCluster, topic: TopicFactory) -> None:
    name = topic()
    produce(cluster, name, 20)
    first = stream(cluster, subscribe=name, startingOffsets="earliest", maxOffsetsPerTrigger=15)
    done = next_end(first, through_json(first.initialOffset()))
    planned = next_end(first, done)
    assert ranges(first, done, planned) == [(0, 15, 20)]
    cluster.delete_topic(name)
    create_again(cluster, name)
    produce(cluster, name, 30)  # longer than before: offsets alone prove nothing
    strict = stream(cluster, subscribe=name)
    with pytest.raises(DataLossError, match=f"{name}-0: the offsets 15 to 19 are gone.*created again"):
        strict.partitions(done, planned)  # a batch that was planned before, and is run again
    with pytest.raises(DataLossError, match=f"{name}-0.*created again"):
        next_end(stream(cluster, subscribe=name), planned)
    relaxed = stream(cluster, subscribe=name, failOnDataLoss=False)
    assert ranges(relaxed, done, planned) == []
    end = next_end(relaxed, planned)
    assert ranges(relaxed, planned, end) == [(0, 0, 30)]
    assert next_end(stream(cluster, subscribe=name), end) == end, "the new topic is the known one now"
    older = {key: value for key, value in planned.items() if key != "_ids"}
    assert plain(next_end(stream(cluster, subscribe=name), older)) == {name: {"0": 30}}, "a checkpoint without ids"


class NoIds(dict[str, UUID]):
    """A client's knowledge of topic ids when the brokers are older than those."""

    def __setitem__(self, topic: str, topic_id: UUID) -> None:
        pass


def test_brokers_without_topic_ids(cluster: LocalCluster, topic: TopicFactory) -> None:
    name = topic()
    first, older = (stream(cluster, subscribe=name, startingOffsets="earliest") for _ in range(2))
    older._planning().client._metadata.topic_ids = NoIds()
    produce(cluster, name, 5)
    assert next_end(older, through_json(older.initialOffset())) == {name: {"0": 5}, "_from": {name: {"0": 0}}}
    end = next_end(first, through_json(first.initialOffset()))
    produce(cluster, name, 5)
    after = next_end(older, end)
    assert plain(after) == {name: {"0": 10}} and after["_ids"] == end["_ids"], "what is known stays known"


def test_a_topic_created_again_and_empty_is_reported_once(cluster: LocalCluster, topic: TopicFactory) -> None:
    name = topic()
    first = stream(cluster, subscribe=name, startingOffsets="earliest")
    before = through_json(first.initialOffset())
    del before["_initial"]
    cluster.delete_topic(name)
    create_again(cluster, name)
    relaxed = stream(cluster, subscribe=name, failOnDataLoss=False)
    end = next_end(relaxed, before)
    assert end[name] == {"0": 0} and end["_ids"] != before["_ids"]
    assert next_end(relaxed, end) == end


def test_records_after_a_cut_are_all_read(cluster: LocalCluster, topic: TopicFactory) -> None:
    name = topic()
    produce(cluster, name, 10)
    reader = stream(cluster, subscribe=name, failOnDataLoss=False, minOffsetsPerTrigger=5)
    reader.latestOffset({name: {"0": 9}}, ReadAllAvailable())
    cut = next_end(reader, {name: {"0": 25}})
    assert plain(cut) == {name: {"0": 10}, "_from": {name: {"0": 10}}}
    produce(cluster, name, 6)
    end = next_end(reader, cut)
    assert ranges(reader, cut, end) == [(0, 10, 16)]


def test_a_deleted_topic_is_reported(
    cluster: LocalCluster, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "MISSING_PARTITION", Polling(tries=25, every_ms=10))
    kept, name = topic("gone-kept"), topic("gone-deleted")
    delete_everywhere(cluster, name)
    start = {kept: {"0": 0}, name: {"0": 7}}
    with pytest.raises(DataLossError, match=f"{name}-0.*deleted"):
        next_end(stream(cluster, subscribe=f"{kept},{name}"), start)
    produce(cluster, kept, 1)
    relaxed = stream(cluster, subscribe=f"{kept},{name}", failOnDataLoss=False)
    assert plain(next_end(relaxed, start)) == {kept: {"0": 1}}


def test_the_group_shows_the_offsets_of_finished_batches(cluster: LocalCluster, topic: TopicFactory) -> None:
    name = topic()
    produce(cluster, name, 5)
    reader = stream(cluster, subscribe=name, startingOffsets="earliest", commitGroup="lag-of-a-query")
    end = next_end(reader, through_json(reader.initialOffset()))
    assert next_end(reader, end) == end
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "lag-of-a-query"})
    assert consumer.committed([ConfluentPartition(name, 0)], timeout=60)[0].offset == 5
    consumer.close()


def test_a_reader_travels_without_its_connections(cluster: LocalCluster, topic: TopicFactory) -> None:
    name = topic()
    produce(cluster, name, 2)
    reader = stream(cluster, subscribe=name, startingOffsets="earliest")
    start = through_json(reader.initialOffset())
    (partition,) = reader.partitions(start, next_end(reader, start))
    copy, moved = pickle.loads(pickle.dumps((reader, partition)))
    assert sum(batch.num_rows for batch in copy.read(moved)) == 2
    reader.stop()
