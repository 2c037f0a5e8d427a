"""Offsets as Spark stores them, and the decisions about where batches end and how ranges are split."""

from __future__ import annotations

import json
import subprocess
import sys
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.errors import KlammError
from klamm.model import TopicPartition
from klamm.spark.source.read_options import parse_read_options
from klamm.spark.source.reader import RangePartition, SmallRanges, input_partitions
from klamm.spark.source.source_offsets import (
    OffsetRange,
    available,
    is_delayed,
    parse_source_offset,
    rate_limit,
    source_offset,
    split_ranges,
    to_json,
)

A0, A10, B0 = TopicPartition("a", 0), TopicPartition("a", 10), TopicPartition("b", 0)
partitions = st.builds(
    TopicPartition,
    st.sampled_from(["a", "b", "_from", "__from", "_ids", "__ids", "_initial", "___initial", "ä"]),
    st.integers(0, 12),
)
offset_maps = st.dictionaries(partitions, st.integers(0, 1 << 62), max_size=8)


def test_the_json_is_that_of_the_kafka_source() -> None:
    assert to_json({B0: 5, A10: 2, A0: 1}) == '{"a":{"0":1,"10":2},"b":{"0":5}}'
    found = parse_source_offset('{"b":{"0":5},"a":{"10":2,"0":1}}')
    assert found.offsets == {A0: 1, A10: 2, B0: 5} and not found.is_initial and not found.resolved_from


@settings(deadline=None)
@given(offset_maps, offset_maps, st.booleans(), st.dictionaries(st.sampled_from(["a", "b", "_ids"]), st.uuids()))
def test_offsets_survive_the_checkpoint(
    offsets: dict[TopicPartition, int], begun: dict[TopicPartition, int], initial: bool, ids: dict[str, UUID]
) -> None:
    made = source_offset(offsets, begun, is_initial=initial, topic_ids=ids)
    stored = json.dumps(made.to_dict())
    assert parse_source_offset(json.loads(stored)) == made
    assert json.dumps(parse_source_offset(stored).to_dict()) == stored


def test_topic_ids_are_a_key_of_their_own() -> None:
    made = source_offset({A0: 1}, topic_ids={"b": UUID(int=2), "a": UUID(int=1)})
    assert made.to_dict() == {"_ids": {"a": "AAAAAAAAAAAAAAAAAAAAAQ"}, "a": {"0": 1}}, "of the topics that are read"
    older = parse_source_offset('{"a":{"0":1}}')
    assert older.topic_ids == {} and "_ids" not in older.to_dict()


def test_topics_that_are_called_as_our_own_keys_keep_their_offsets() -> None:
    named = {TopicPartition(name, 0): 7 for name in ("_ids", "_from", "__from", "_initial")}
    made = source_offset({**named, A0: 1}, {A0: 0}, is_initial=True, topic_ids={"a": UUID(int=1), "_ids": UUID(int=2)})
    assert made.to_dict() == {
        **{name: {"0": 7} for name in ("_ids", "_from", "__from", "_initial")},
        "a": {"0": 1},
        "___from": {"a": {"0": 0}},
        "__ids": {"_ids": "AAAAAAAAAAAAAAAAAAAAAg", "a": "AAAAAAAAAAAAAAAAAAAAAQ"},
        "__initial": True,
    }
    assert parse_source_offset(json.dumps(made.to_dict())) == made
    older = '{"_from":{"a":{"0":0}},"_ids":{"a":"AAAAAAAAAAAAAAAAAAAAAQ"},"_initial":true,"a":{"0":1}}'
    assert parse_source_offset(older) == source_offset(
        {A0: 1}, {A0: 0}, is_initial=True, topic_ids={"a": UUID(int=1)}
    ), "checkpoints of before"


def test_the_same_offsets_are_the_same_text() -> None:
    one = source_offset({A0: 1, A10: 2, B0: 3}).to_dict()
    other = source_offset({B0: 3, A10: 2, A0: 1}).to_dict()
    assert json.dumps(one) == json.dumps(other)


@pytest.mark.parametrize("text", ["[]", '"x"', '{"a":5}', '{"a":{"x":1}}', '{"a":{"0":"x"}}', '{"_ids":{"a":"x"}}'])
def test_invalid_offsets(text: str) -> None:
    with pytest.raises(KlammError):
        parse_source_offset(text)


@st.composite
def backlogs(draw: st.DrawFn) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    start = draw(st.dictionaries(partitions, st.integers(0, 1 << 40), min_size=1, max_size=8))
    return start, {tp: offset + draw(st.integers(0, 1 << 30)) for tp, offset in start.items()}


@settings(deadline=None)
@given(backlogs(), st.integers(1, 1 << 31))
def test_a_limit_is_shared_in_proportion(
    backlog: tuple[dict[TopicPartition, int], dict[TopicPartition, int]], limit: int
) -> None:
    start, end = backlog
    limited = rate_limit(limit, start, end)
    total = available(start, end)
    assert limited.keys() == end.keys()
    assert all(start[tp] <= limited[tp] <= end[tp] for tp in end)
    assert available(start, limited) <= max(limit, 0) + len(end)
    for tp in end:
        if end[tp] > start[tp]:
            assert limited[tp] > start[tp], "a small partition starves"
            share = limit * (end[tp] - start[tp]) / total
            assert limited[tp] == end[tp] or abs(limited[tp] - start[tp] - share) <= max(1, share * 1e-9)


def test_a_limit_above_the_backlog_takes_all() -> None:
    assert rate_limit(100, {A0: 0, B0: 10}, {A0: 50, B0: 60}) == {A0: 50, B0: 60}
    assert rate_limit(10, {A0: 0, B0: 10}, {A0: 30, B0: 20}) == {A0: 7, B0: 12}


@pytest.mark.parametrize(
    ("available_now", "last_ms", "now_ms", "delayed"),
    [(5, None, 0, False), (5, 0, 50, True), (10, 0, 50, False), (5, 0, 100, False), (0, 0, 99, True)],
)
def test_a_batch_waits_for_enough_or_long_enough(
    available_now: int, last_ms: int | None, now_ms: int, delayed: bool
) -> None:
    found = is_delayed(
        available=available_now, min_offsets=10, last_trigger_ms=last_ms, now_ms=now_ms, max_trigger_delay_ms=100
    )
    assert found is delayed


ranges = st.lists(
    st.builds(lambda p, start, size: OffsetRange(TopicPartition("t", p), start, start + size), st.integers(0, 9),
              st.integers(0, 1 << 40), st.integers(0, 5000)),
    max_size=6, unique_by=lambda r: r.tp,
)  # fmt: skip


@settings(deadline=None)
@given(ranges, st.none() | st.integers(1, 40), st.none() | st.integers(1, 3000))
def test_split_ranges_cover_everything_once(
    whole: list[OffsetRange], min_partitions: int | None, max_records: int | None
) -> None:
    split = split_ranges(whole, min_partitions=min_partitions, max_records=max_records)
    for r in whole:
        parts = [s for s in split if s.tp == r.tp]
        assert [s.start for s in parts] == [r.start, *(s.end for s in parts[:-1])][: len(parts)]
        assert (parts[-1].end if parts else r.start) == r.end
    assert all(s.size > 0 for s in split)
    if max_records is not None:
        assert all(s.size <= max_records for s in split)
    if min_partitions is not None and max_records is None and sum(r.size for r in whole) >= min_partitions:
        assert len(split) >= min_partitions - len(whole)


def test_large_ranges_are_split_first() -> None:
    big, small = OffsetRange(A0, 0, 900), OffsetRange(B0, 0, 100)
    assert [s.size for s in split_ranges([big, small], min_partitions=4)] == [300, 300, 300, 100]
    assert split_ranges([big, small], min_partitions=2) == [big, small]
    assert [s.size for s in split_ranges([big, small], max_records=400)] == [300, 300, 300, 100]


def test_ranges_with_few_records_share_a_task() -> None:
    """2,500 records of 500 partitions were 500 tasks, and in a table 500 files."""
    ranges = [OffsetRange(TopicPartition("orders", index), 10, 15) for index in range(500)]
    large = OffsetRange(TopicPartition("users", 0), 0, 5000)
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "orders,users"}
    tasks = input_partitions([*ranges, large], parse_read_options(given, streaming=True), {})
    assert [len(task.parts) if isinstance(task, SmallRanges) else 1 for task in tasks] == [200, 200, 100, 1]
    parts = [part for task in tasks for part in (task.parts if isinstance(task, SmallRanges) else (task,))]
    assert [part.range for part in parts if isinstance(part, RangePartition)] == [*ranges, large]
    for option in ("minPartitions", "maxRecordsPerPartition"):
        wanted = parse_read_options({**given, option: "5"}, streaming=True)
        assert len(input_partitions(ranges, wanted, {})) == 500, "the query says how many tasks it wants"


def test_planning_does_not_load_the_decoders() -> None:
    """numba takes 1.6 s of CPU to load, and Spark starts several processes per query that only plan."""
    used = "klamm.spark.source.stream_reader, klamm.spark.data_source, klamm.spark.tables.delta"
    code = f"import sys, {used}; print('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
