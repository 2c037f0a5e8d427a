"""readMode=direct on the files of a running broker, which removes and compacts them while they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from klamm.spark.data_source import KlammDataSource
from klamm.spark.source.data_loss import DataLossError
from klamm.testing import LocalCluster

COUNT = 2000
KEYS = 40


@pytest.fixture(scope="module")
def tidy() -> Iterator[LocalCluster]:
    """One broker that runs its log passes all the time."""
    config = {
        "log.retention.check.interval.ms": 50,
        "log.initial.task.delay.ms": 0,
        "log.segment.delete.delay.ms": 0,
        "log.cleaner.backoff.ms": 50,
    }
    with LocalCluster(broker_configs=config) as running:
        yield running


class LiveTopic:
    """A topic of many small segments, and a reading of it that is under way."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self.name = cluster.unique_topic_name("live")
        cluster.create_topic(self.name, 1, 1, {"segment.bytes": 16384})
        self.produce([b"k%d" % (number % KEYS) for number in range(COUNT)])
        assert len(self.segments()) > 8

    def produce(self, keys: list[bytes]) -> None:
        """In batches of ten."""
        servers = self._cluster.bootstrap_servers
        producer = Producer({"bootstrap.servers": servers, "batch.num.messages": 10, "acks": "all"})
        for number, key in enumerate(keys):
            producer.produce(self.name, value(number), key, partition=0)
            if number % 200 == 0:
                producer.flush(60)
        assert producer.flush(60) == 0

    def read(self, **options: str) -> Iterator[pa.RecordBatch]:
        servers = self._cluster.bootstrap_servers
        given = {"kafka.bootstrap.servers": servers, "subscribe": self.name, "batchBytes": "4096", **options}
        source = KlammDataSource(given)
        reader = source.reader(source.schema())
        (partition,) = reader.partitions()
        found: Iterator[pa.RecordBatch] = iter(reader.read(partition))
        return found

    def configure(self, **config: object) -> None:
        entries = [
            ConfigEntry(key.replace("_", "."), str(item), incremental_operation=AlterConfigOpType.SET)
            for key, item in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, self.name, incremental_configs=entries)
        admin = AdminClient({"bootstrap.servers": self._cluster.bootstrap_servers})
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(60)

    def wait_for(self, done: Callable[[], bool], what: str) -> None:
        self._cluster.wait_for(lambda: done() or None, timeout_s=120, what=what)

    def size(self) -> int:
        try:
            return sum(path.stat().st_size for path in self.segments())
        except FileNotFoundError:  # put in place of another one right now
            return self.size()

    def segments(self) -> list[Path]:
        return sorted((self._cluster.data_dir / "broker-1" / f"{self.name}-0").glob("*.log"))


def value(number: int) -> bytes:
    return b"%06d" % number * 20


def offsets(batches: Iterator[pa.RecordBatch]) -> list[int]:
    """Return the offsets, and check that each record has the value written at its offset."""
    found: list[int] = []
    for batch in batches:
        here = batch.column("offset").to_pylist()
        assert batch.column("value").to_pylist() == [value(offset) for offset in here]
        found += here
    return found


@pytest.mark.parametrize("mode", ["direct", "auto"])
def test_retention_while_files_are_read(tidy: LocalCluster, mode: str) -> None:
    topic = LiveTopic(tidy)
    strict = topic.read(readMode=mode)
    relaxed = topic.read(readMode=mode, failOnDataLoss="false")
    begun = {reading: offsets(iter([next(reading)])) for reading in (strict, relaxed)}
    topic.configure(retention_bytes=1)
    topic.wait_for(lambda: len(topic.segments()) == 1, "the deletion of segments")
    first = int(topic.segments()[0].stem)
    seen = begun[relaxed] + offsets(relaxed)
    before = [offset for offset in seen if offset < first]
    assert before == [*range(len(before))] and begun[relaxed] < before, "the file that was open was read to its end"
    assert seen[len(before) :] == [*range(first, COUNT)]
    lost = rf"{topic.name}-0: the offsets {len(before)} to {first - 1} are gone: retention or DeleteRecords"
    with pytest.raises(DataLossError, match=lost):
        offsets(strict)


@pytest.mark.parametrize("mode", ["direct", "auto"])
def test_compaction_while_files_are_read(tidy: LocalCluster, mode: str) -> None:
    topic = LiveTopic(tidy)
    reading = topic.read(readMode=mode)
    seen = offsets(iter([next(reading)]))
    whole, count = topic.size(), len(topic.segments())
    topic.configure(cleanup_policy="compact", min_cleanable_dirty_ratio=0.01)
    topic.wait_for(lambda: topic.size() < whole // 2, "a compaction")
    seen += offsets(iter([next(reading)]))
    topic.produce([b"another"] * 300)
    topic.wait_for(lambda: len(topic.segments()) < count // 2, "one that merges segments")
    seen += offsets(reading)
    assert seen == sorted({*seen}), "in order, none twice"
    assert len(seen) < COUNT - KEYS, "the rest is that of the compacted log"
    assert {*range(COUNT - KEYS, COUNT)} <= {*seen}, "the newest record of every key"
