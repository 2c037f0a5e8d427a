"""Transactions written into a log by hand, read by Fetch and directly: aborted records, markers, open transactions."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from klamm.protocol.record_batch import Record, build_batch
from klamm.spark.data_source import KlammDataSource
from klamm.spark.source.data_loss import DataLossError
from klamm.testing import LocalCluster


def batch(first: int, count: int, **options: Any) -> bytes:
    rows = [Record(timestamp=1_900_000_000_000, value=b"v%d" % (first + i)) for i in range(count)]
    return build_batch(rows, base_offset=first, partition_leader_epoch=0, **options)


def transactional(first: int, count: int, producer_id: int, sequence: int) -> bytes:
    return batch(first, count, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, is_transactional=True)


def marker(offset: int, producer_id: int, *, commit: bool) -> bytes:
    key = struct.pack(">hh", 0, 1 if commit else 0)
    return build_batch(
        [Record(timestamp=1_900_000_000_000, key=key, value=struct.pack(">hi", 0, 0))],
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=0,
        is_control=True,
        is_transactional=True,
        partition_leader_epoch=0,
    )


LOG = [
    transactional(0, 3, 1, 0),
    transactional(3, 2, 2, 0),
    batch(5, 1),
    marker(6, 1, commit=False),
    marker(7, 2, commit=True),
    transactional(8, 1, 1, 3),
    marker(9, 1, commit=True),
    transactional(10, 1, 3, 0),  # never ended: the last stable offset stays here
    batch(11, 1),
]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A broker that finds the log when it starts after a crash."""
    data = tmp_path_factory.mktemp("transactions")
    with LocalCluster(brokers=1, data_dir=data) as cluster:
        cluster.create_topic("orders", 1, 1)
        cluster.kill(1)
        folder = data / "broker-1" / "orders-0"
        (folder / f"{0:020d}.log").write_bytes(b"".join(LOG))
        cluster.start(1)
        yield cluster


def offsets(cluster: LocalCluster, mode: str, isolation: str) -> list[int]:
    given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "orders", "readMode": mode}
    source = KlammDataSource({**given, "kafka.isolation.level": isolation, "columns": "offset"})
    reader = source.reader(source.schema())
    found: list[int] = []
    for partition in reader.partitions():
        for part in reader.read(partition):
            found += part.column("offset").to_pylist()  # type: ignore[union-attr]
    return found


@pytest.mark.parametrize("mode", ["fetch", "direct"])
def test_each_isolation_level_reads_its_records(written: LocalCluster, mode: str) -> None:
    assert offsets(written, mode, "read_uncommitted") == [0, 1, 2, 3, 4, 5, 8, 10, 11]
    assert offsets(written, mode, "read_committed") == [3, 4, 5, 8]


def test_the_log_was_read_from_its_place(written: LocalCluster) -> None:
    assert (Path(written.data_dir) / "broker-1" / "orders-0" / f"{0:020d}.txnindex").stat().st_size > 0


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_a_position_beyond_the_last_stable_offset_is_not_a_loss(written: LocalCluster, isolation: str) -> None:
    """A query that read uncommitted records continues with read_committed: it waits for the open transaction."""
    given = {"kafka.bootstrap.servers": written.bootstrap_servers, "subscribe": "orders", "pollMs": "0"}
    source = KlammDataSource({**given, "kafka.isolation.level": isolation})
    reader = source.streamReader(source.schema())
    try:
        start = {"orders": {"0": 12}}
        assert reader.latestOffset(start, ReadAllAvailable()) == start
        with pytest.raises(DataLossError, match="orders-0"):
            reader.latestOffset({"orders": {"0": 13}}, ReadAllAvailable())
    finally:
        reader.stop()
