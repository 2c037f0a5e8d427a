"""Counts of producers and of partitions whose transactions should have ended long ago."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm.log import append_as_leader
from klamm.log.producer_state import LATE_TRANSACTION_BUFFER_MS
from klamm.metrics.instruments import Gauge
from klamm.model import TopicPartition
from klamm.protocol.record_batch import Record, build_batch
from klamm.replica import transaction_watch
from tests.support.one_broker import START_MS, OneBroker

TIMEOUT_MS = 900_000


@pytest.fixture
def one(tmp_path: Path) -> Iterator[OneBroker]:
    broker = OneBroker(tmp_path)
    broker.update_metadata({})
    yield broker
    broker.close()


def write(one: OneBroker, index: int, producer_id: int, *, timestamp: int, transactional: bool) -> None:
    partition = one.broker.replicas.partitions[TopicPartition("t", index)]
    assert partition.log is not None
    rows = [Record(timestamp=timestamp, key=b"k", value=b"v")]
    data = build_batch(rows, producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=transactional)
    assert append_as_leader(partition.log, data, 0).error == 0


def gauge(one: OneBroker, name: str) -> object:
    metric = one.broker.metrics.find("kafka.server", "ReplicaManager", name)
    assert isinstance(metric, Gauge)
    return metric.value


def look(one: OneBroker, now_ms: int) -> tuple[object, object, int]:
    replicas = one.broker.replicas
    slices = sum(1 for _ in replicas.transaction_watch.look(replicas.partitions, now_ms, TIMEOUT_MS))
    return gauge(one, "ProducerIdCount"), gauge(one, "PartitionsWithLateTransactionsCount"), slices


def test_producers_and_late_transactions_are_counted(one: OneBroker) -> None:
    one.lead("t", 3)
    assert look(one, START_MS) == (0, 0, 0)
    write(one, 0, 1, timestamp=START_MS, transactional=True)
    write(one, 0, 2, timestamp=START_MS, transactional=False)
    write(one, 1, 1, timestamp=START_MS + 1000, transactional=True)
    late = START_MS + TIMEOUT_MS + LATE_TRANSACTION_BUFFER_MS
    assert look(one, late) == (3, 0, 0)
    assert look(one, late + 1) == (3, 1, 0)
    assert look(one, late + 1001) == (3, 2, 0)
    one.leader_and_isr({"t": [1]}, leader=2, leader_epoch=1, replicas=(1, 2), isr=(1, 2))
    assert look(one, late + 1001) == (3, 1, 0), "the leader counts it"


def test_many_partitions_are_counted_in_slices(one: OneBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_watch, "_SLICE", 3)
    one.lead("t", 7)
    assert look(one, START_MS)[2] == 3, "after the list, and between the slices"
