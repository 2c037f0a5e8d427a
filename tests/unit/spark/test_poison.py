"""The records on which a view fails, found by halves; and what a pipeline may say about them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from klamm.model import TopicPartition
from klamm.spark.pipeline.dead_letters import SCHEMA, DeadLetters
from klamm.spark.pipeline.diagnosis import failed_ranges, ranges_of
from klamm.spark.pipeline.failures import failure_of, start_advice
from klamm.spark.pipeline.pipeline_model import dead_letters_of
from klamm.spark.pipeline.pipeline_problems import PipelineError
from klamm.spark.pipeline.poison import Ranges, describe_ranges, halved, search, size
from klamm.spark.pipeline.yaml_file import read_yaml
from klamm.spark.source.checkpoint_files import LocalCheckpoint
from klamm.spark.source.checkpoint_locations import query_id_of
from klamm.spark.source.source_offsets import OffsetRange

A, B = TopicPartition("a", 0), TopicPartition("b", 3)


class Tried:
    """A view that fails on some records, and counts how often it was run."""

    def __init__(self, *wrong: tuple[TopicPartition, int]) -> None:
        self.wrong, self.runs = wrong, 0

    def __call__(self, part: Ranges) -> str | None:
        self.runs += 1
        found = [n for tp, n in self.wrong if any(r.tp == tp and r.start <= n < r.end for r in part)]
        return f"no good: {min(found)}" if found else None


def places(ranges: Ranges) -> list[tuple[TopicPartition, int]]:
    return [(r.tp, offset) for r in ranges for offset in range(r.start, r.end)]


def test_one_record_among_many_is_found_in_few_runs() -> None:
    view = Tried((B, 123_456))
    found = search([OffsetRange(A, 5, 500_000), OffsetRange(B, 100_000, 600_000)], view, limit=1)
    assert [(str(one), one.reason) for one in found.records] == [("b-3 offset 123456", "no good: 123456")]
    assert view.runs == found.tries <= 2 * 20 + 1


def test_all_records_are_found_or_as_many_as_wanted() -> None:
    rng = random.Random(7)
    for _ in range(50):
        everything = [OffsetRange(A, 0, rng.randrange(1, 40)), OffsetRange(B, 7, 7 + rng.randrange(40))]
        wrong = rng.sample(places(everything), rng.randrange(min(6, size(everything) + 1)))
        found = search(everything, Tried(*wrong), limit=100)
        assert sorted((one.at.tp, one.at.start) for one in found.records) == sorted(wrong)
        assert not found.unresolved
    assert len(search([OffsetRange(A, 0, 64)], Tried(*((A, n) for n in range(64))), limit=3).records) == 3


def test_records_that_fail_only_together_are_reported_as_a_range() -> None:
    def overflows(part: Ranges) -> str | None:
        return "sum too large" if size(part) > 10 else None

    found = search([OffsetRange(A, 0, 16)], overflows, limit=5)
    assert not found.records and [describe_ranges(part) for part in found.unresolved] == ["a-0 offsets 0 to 15"]
    assert not search([OffsetRange(A, 0, 16)], lambda part: None, limit=5).unresolved


def test_a_search_ends_after_so_many_runs() -> None:
    view = Tried(*((A, n) for n in range(0, 1000, 2)))
    found = search([OffsetRange(A, 0, 1000)], view, limit=1000, max_tries=60)
    assert view.runs <= 60 and found.records and found.unresolved


def test_a_search_that_is_over_keeps_the_records_it_has() -> None:
    """A stop of the pipeline does not wait for the end of a search; neither do its other queries for long."""
    view = Tried((A, 0), (A, 900))
    found = search([OffsetRange(A, 0, 1000)], view, limit=10, is_over=lambda: view.runs > 20)
    assert [str(one) for one in found.records] == ["a-0 offset 0"] and found.unresolved
    assert view.runs <= 22
    early = search([OffsetRange(A, 0, 1000)], Tried((A, 7)), limit=10, is_over=lambda: True)
    assert (early.tries, early.records, [describe_ranges(part) for part in early.unresolved]) == (
        1,
        [],
        ["a-0 offsets 0 to 999"],
    )


def test_halves_are_the_whole() -> None:
    everything = [OffsetRange(A, 0, 3), OffsetRange(B, 5, 6), OffsetRange(B, 9, 14)]
    left, right = halved(everything)
    assert places(left) + places(right) == places(everything) and size(left) == 4


PIPELINE = """\
name: p
checkpoint: {base}/ck
sources:
  orders: {{schema: id long, options: {{columns: "{columns}"}}}}
views:
  risky: {{sql: SELECT 1 / id AS x FROM orders, {view}}}
sinks: {{lake: {{from: risky, table: "{base}/t"}}}}
"""


def pipeline(base: Path, view: str = "on_error: dead_letter", columns: str = "id, _topic, _partition, _offset") -> str:
    return PIPELINE.format(base=base, view=view, columns=columns)


@pytest.mark.parametrize(
    ("view", "columns", "reason"),
    [
        (
            "on_error: skip",
            "id",
            "p.yaml:6: 'on_error' of view 'risky' cannot be 'skip'. There are: dead_letter, fail.",
        ),
        ("dead_letters: somewhere", "id", "view 'risky' has 'dead_letters' without 'on_error: dead_letter'"),
        ("on_error: dead_letter", "id", "p.yaml:4: 'columns' of source 'orders' must have _topic, _partition, _offset"),
        ("on_error: dead_letter, dead_letters: s3://x/y", "id, _topic, _partition, _offset", "must be a directory"),
    ],
)
def test_mistakes_in_dead_letter_settings(tmp_path: Path, view: str, columns: str, reason: str) -> None:
    with pytest.raises(PipelineError) as caught:
        read_yaml(pipeline(tmp_path, view, columns), "p.yaml")
    assert reason in str(caught.value)


def test_where_dead_letters_go(tmp_path: Path) -> None:
    spec = read_yaml(pipeline(tmp_path), "p.yaml")
    assert dead_letters_of(spec, spec.views[0]) == f"{tmp_path}/ck_dead_letters/risky"
    named = read_yaml(pipeline(tmp_path, "on_error: dead_letter, dead_letters: dl"), "p.yaml")
    assert dead_letters_of(named, named.views[0]) == "dl"


def test_dead_letters_are_left_out_by_the_query_that_met_them(tmp_path: Path) -> None:
    import pyarrow as pa

    spec = read_yaml(pipeline(tmp_path), "p.yaml")
    letters = DeadLetters(spec, spec.views[0])
    assert letters.locations("q1") == set()
    row = {"_topic": "orders", "_partition": 1, "_offset": 7, "value": b"x", "_error": "no", "_query_id": "q1"}
    letters.add(pa.Table.from_pylist([row], schema=SCHEMA))
    letters.add(pa.Table.from_pylist([row | {"_offset": 9, "_query_id": "q2"}], schema=SCHEMA))
    assert letters.locations("q1") == {(TopicPartition("orders", 1), 7)}
    assert letters.locations("q2") == {(TopicPartition("orders", 1), 9)} and letters.locations("") == set()


def test_the_failed_batch_is_the_newest_of_the_checkpoint(tmp_path: Path) -> None:
    offsets = tmp_path / "offsets"
    offsets.mkdir()
    (tmp_path / "metadata").write_text('{"id":"q1"}')
    files = LocalCheckpoint(tmp_path)
    assert failed_ranges(files) is None and query_id_of(str(tmp_path)) == "q1"
    (offsets / "9").write_text('v1\n{}\n{"orders":{"0":4}}\n{"users":{"0":1}}')
    (offsets / "10").write_text('v1\n{}\n{"orders":{"0":6,"1":2},"_from":{"orders":{"1":0}}}\n{"users":{"0":1}}')
    found = failed_ranges(files)
    assert found is not None
    source = read_yaml(pipeline(tmp_path), "p.yaml").sources[0]
    orders = [OffsetRange(TopicPartition("orders", 0), 4, 6), OffsetRange(TopicPartition("orders", 1), 0, 2)]
    assert ranges_of(source, found) == orders
    assert query_id_of("hdfs://namenode/ck") == ""


def test_an_exception_of_the_pipelines_own_code_is_one_of_the_batch() -> None:
    trace = 'Traceback (most recent call last):\n  File "/x/p.py", line 3, in f\n{}\nCurrent Available Offsets: {{a}}'
    assert failure_of(Exception(trace.format("shop.errors.BadPrice: -1")), "/x/p.py", "s").batch
    assert not failure_of(Exception(trace.format("ConnectionRefusedError: no")), "/x/p.py", "s").batch


@pytest.mark.parametrize(
    ("problem", "advice"),
    [
        ("Sorting is not supported on streaming DataFrames, unless in Complete output mode", "Leave out ORDER BY"),
        (
            "[STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION] Invalid streaming output mode: append",
            "give the source a water",
        ),
    ],
)
def test_advice_about_a_query_that_cannot_start(problem: str, advice: str, tmp_path: Path) -> None:
    sink = read_yaml(pipeline(tmp_path), "p.yaml").sinks[0]
    assert advice in start_advice(RuntimeError(problem), sink)
