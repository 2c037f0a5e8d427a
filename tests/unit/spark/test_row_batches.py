"""Rows become record batches: equal records whichever way they are encoded, in the partitions of Kafka's producer."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from kafka.partitioner.default import murmur2

from klamm.client.transactional_producer import RecordSet
from klamm.model import TopicPartition
from klamm.protocol.produced_batch import transactional_batch
from klamm.protocol.record_batch import Record, next_batch, records
from klamm.spark.sink.row_batches import RowBatches
from klamm.spark.sink.writer_errors import PermanentWriteError

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def emitted(columns: dict[str, pa.Array], partitions: int = 3, **options: Any) -> list[dict[TopicPartition, RecordSet]]:
    found: list[dict[TopicPartition, RecordSet]] = []
    given: dict[str, Any] = {"batch_bytes": 1 << 20, "memory_bytes": 1 << 24, "chance": random.Random(7), **options}
    batches = RowBatches(found.append, lambda _: partitions, **given)
    for start in range(0, len(columns["value"]), 1000):
        # Slices share the buffers of the whole column.
        batches.add("t", pa.record_batch(columns).slice(start, 1000))
    batches.close()
    return found


def decoded(sets: list[dict[TopicPartition, RecordSet]]) -> Iterator[tuple[int, Record]]:
    for each in sets:
        for tp, (data, rows) in each.items():
            sealed = transactional_batch(data, rows, producer_id=1, producer_epoch=0, base_sequence=0, timestamp_ms=5)
            batch = next_batch(memoryview(sealed))
            assert batch is not None and batch.is_valid() and batch.record_count == rows
            for number, record in enumerate(records(batch)):
                assert (record.offset, record.timestamp) == (number, 5)
                yield tp.partition, record


def test_records_have_the_keys_and_values_of_the_rows_in_their_order() -> None:
    chance = random.Random(1)
    keys = [None if number % 5 == 0 else chance.randbytes(chance.choice((0, 1, 3, 70, 300))) for number in range(5000)]
    values = [
        None if number % 7 == 0 else b"%d|" % number + bytes(chance.choice((0, 9, 2000))) for number in range(5000)
    ]
    sets = emitted({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}, batch_bytes=50_000)
    found = [*decoded(sets)]
    assert sorted(map(repr, zip(keys, values, strict=True))) == sorted(repr((r.key, r.value)) for _, r in found)
    for partition, record in found:
        if record.key is not None:
            assert partition == (murmur2(record.key) & 0x7FFFFFFF) % 3
    for partition in range(3):
        numbers = [int(r.value.split(b"|")[0]) for p, r in found if p == partition and r.value and r.key is not None]
        assert numbers == sorted(numbers)
    assert all(len(each.data) <= 50_000 for some in sets for each in some.values())


def test_text_is_written_as_utf8_and_rows_without_keys_stay_together() -> None:
    sets = emitted({"value": pa.array(["grün", "", None])})
    assert [record.value for _, record in decoded(sets)] == ["grün".encode(), b"", None]
    assert len({partition for partition, _ in decoded(sets)}) == 1


def test_batches_without_keys_change_the_partition() -> None:
    sets = emitted({"value": pa.array([b"x" * 100] * 20_000)}, batch_bytes=10_000)
    assert {partition for partition, _ in decoded(sets)} == {0, 1, 2}


def test_a_record_that_is_larger_than_a_batch_is_alone_in_its_batch() -> None:
    sets = emitted({"value": pa.array([b"a", b"b" * 5000, b"c"])}, partitions=1, batch_bytes=1000)
    assert [len(records) for records in sets] == [1, 1, 1]
    assert [[r.value for _, r in decoded([each])] for each in sets] == [[b"a"], [b"b" * 5000], [b"c"]]


def test_memory_is_bounded_over_many_partitions() -> None:
    numbers = pa.array([number % 500 for number in range(50_000)], pa.int32())
    columns = {"value": pa.array([b"x" * 100] * 50_000), "partition": numbers}
    sets = emitted(columns, partitions=500, memory_bytes=100_000)
    assert len(sets) > 40
    assert all(sum(len(each.data) for each in some.values()) < 150_000 for some in sets)
    assert sum(each.rows for some in sets for each in some.values()) == 50_000


def test_a_partition_column_wins_over_the_key_and_null_leaves_it() -> None:
    columns = {
        "key": pa.array([b"k", b"k", b"k"]),
        "value": pa.array([b"first", b"second", b"by key"]),
        "partition": pa.array([2, 0, None], pa.int32()),
    }
    places = {record.value: partition for partition, record in decoded(emitted(columns))}
    assert places == {b"first": 2, b"second": 0, b"by key": (murmur2(b"k") & 0x7FFFFFFF) % 3}
    for wrong, reason in ((3, "UNKNOWN_PARTITION. The topic has 3 partitions"), (-3, "partition -3: expected 0 or")):
        with pytest.raises(PermanentWriteError, match=reason):
            emitted({"value": pa.array([b"x"]), "partition": pa.array([wrong], pa.int32())})


def test_keys_may_be_ignored() -> None:
    columns = {"key": pa.array([b"%d" % number for number in range(50)]), "value": pa.array([b"v"] * 50)}
    assert len({partition for partition, _ in decoded(emitted(columns, ignore_keys=True))}) == 1


def test_headers_are_written() -> None:
    headers = [[{"key": "a", "value": b"1"}, {"key": "ä", "value": None}], None, []]
    columns = {"value": pa.array(["x", "y", "z"]), "headers": pa.array(headers, HEADERS)}
    found = [record.headers for _, record in decoded(emitted(columns, partitions=1))]
    assert found == [(("a", b"1"), ("ä", None)), (), ()]
    with pytest.raises(PermanentWriteError, match="header without a key"):
        emitted({"value": pa.array(["x"]), "headers": pa.array([[{"key": None}]], HEADERS)})
