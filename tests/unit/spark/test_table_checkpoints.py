"""Checkpoints that do not fit their table: older than it by one batch, deleted, of another query."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import StructType

from klamm.cli.pipeline import reset
from klamm.errors import KlammError
from klamm.spark.pipeline.failures import failure_of
from klamm.spark.pipeline.run import check_checkpoint
from klamm.spark.pipeline.yaml_file import read_yaml
from klamm.spark.source.batch_offsets import BatchOffsets, batch_offsets, from_metadata
from klamm.spark.source.checkpoint_files import NO_BATCH, LocalCheckpoint
from klamm.spark.source.checkpoint_locations import CheckpointError
from klamm.spark.tables.commits import BatchOfFiles, commit, planned_batch
from klamm.spark.tables.delta import PLANNED_BATCH, TableLayout, parse_options
from klamm.spark.tables.existing import may_append, queries_of, refuse_new_query
from klamm.spark.tables.parquet_files import ParquetFiles
from klamm.spark.tables.table_definition import load_definition

ROWS = StructType().add("id", "long").add("_error", "string").add("_raw", "binary")
IDS = {"orders": "vPeOCWypqUOSepEvx0cbog"}
OTHER_IDS = {"orders": "Qq4kWC9rRGuLTeOf2VhtZw"}


class Query:
    """A query with a checkpoint as Spark writes it, and the driver's side of its sink."""

    def __init__(self, root: Path, query_id: str = "query", checkpoint: str = "ck", **options: str) -> None:
        self.table, self.checkpoint, self.id = root / "t", root / checkpoint, query_id
        self.options = {"path": str(self.table), "checkpointLocation": str(self.checkpoint), **options}

    def log(self, batch: int, *sources: object) -> None:
        """Spark writes the offsets of a batch before it runs."""
        (self.checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": self.id}))
        lines = ["v1", "{}", *(json.dumps(source) if source is not None else "-" for source in sources)]
        (self.checkpoint / "offsets" / str(batch)).write_text("\n".join(lines))

    def run(self, batch: int, ids: list[int], bad: list[int] | None = None) -> None:
        layout = TableLayout(parse_options(self.options), ROWS, overwrite=False)
        errors = [None] * len(ids) + ["broken"] * len(bad or [])
        rows = [pa.array([*ids, *(bad or [])], pa.int64()), pa.array(errors, pa.string()), pa.nulls(len(errors))]
        arrow = pa.record_batch([rows[0], rows[1], rows[2].cast(pa.binary())], schema=layout.arrow)
        layout.commit([layout.write(iter([arrow]), self.id)], batch)

    def ids(self) -> list[int]:
        return sorted(DeltaTable(str(self.table)).to_pyarrow_table().column("id").to_pylist())


def end(offset: int, **more: object) -> dict[str, object]:
    return {"orders": {"0": offset}, "_ids": IDS, **more}


def two_batches(root: Path, **options: str) -> Query:
    query = Query(root, **options)
    query.log(0, end(2, _from={"orders": {"0": 0}}))
    query.run(0, [0, 1])
    query.log(1, end(3))
    query.run(1, [2])
    return query


def test_a_batch_of_a_known_number_with_other_records_is_refused(tmp_path: Path) -> None:
    """The checkpoint is one batch older than the table; more records came in the meantime."""
    query = two_batches(tmp_path)
    query.run(1, [2])  # the same batch again is not a second one
    query.log(1, end(5))
    with pytest.raises(CheckpointError, match="batch 1 of this query with other records") as caught:
        query.run(1, [2, 3, 4])
    reported = str(caught.value)
    assert "orders-0: 2 to orders-0: 3 in the table, orders-0: 2 to orders-0: 5 in the checkpoint" in reported
    assert """startingOffsets '{"orders":{"0":3}}' and append_to_existing""" in reported, "the way out"
    assert query.ids() == [0, 1, 2]
    assert len([*query.table.glob("*.parquet")]) == 2, "the files of the refused batch are removed"


def test_the_way_out_of_the_message_loses_and_repeats_nothing(tmp_path: Path) -> None:
    two_batches(tmp_path)
    again = Query(tmp_path, "new", "ck2", appendToExisting="true")
    again.log(0, end(5, _from={"orders": {"0": 3}}))
    again.run(0, [3, 4])
    assert again.ids() == [0, 1, 2, 3, 4]


def test_a_refused_batch_adds_no_bad_records_either(tmp_path: Path) -> None:
    query = two_batches(tmp_path)
    query.log(1, end(5))
    with pytest.raises(CheckpointError):
        query.run(1, [2], bad=[3, 4])
    assert not DeltaTable.is_deltatable(str(tmp_path / "t_bad")) and not [*tmp_path.glob("t_bad/*")]


def test_bad_records_of_an_unfinished_batch_are_not_a_place_to_continue_from(tmp_path: Path) -> None:
    """The power failed between the commits of both tables, and took the offsets of the batch from the checkpoint."""
    query = two_batches(tmp_path)
    query.log(2, end(5))
    layout = TableLayout(parse_options(query.options), ROWS, overwrite=False)
    rows = pa.record_batch([[3, 4], [None, "broken"], pa.nulls(2, pa.binary())], schema=layout.arrow)
    commit(tmp_path / "t_bad", layout.batches([layout.write(iter([rows]), query.id)], 2)[1])
    query.log(2, end(6))
    with pytest.raises(
        CheckpointError, match=f"The table {tmp_path}/t_bad has batch 2 .* with other records"
    ) as reported:
        query.run(2, [3, 5], bad=[4])
    assert "startingOffsets" not in str(reported.value), "record 3 is in neither table"


def test_a_topic_of_the_same_name_is_another_one(tmp_path: Path) -> None:
    query = two_batches(tmp_path)
    query.log(1, end(3) | {"_ids": OTHER_IDS})
    with pytest.raises(CheckpointError, match="with other records"):
        query.run(1, [9])


def test_without_offsets_only_a_batch_planned_before_the_start_is_a_repeated_one(tmp_path: Path) -> None:
    """The driver's Python cannot read the checkpoint; `to_table` reads it through Spark when the query starts."""
    remote = {"checkpointLocation": "hdfs://namenode/ck"}
    first = Query(tmp_path, **remote, **{PLANNED_BATCH: "-1"})
    first.run(0, [0, 1])
    first.run(1, [2])
    repeated = Query(tmp_path, **remote, **{PLANNED_BATCH: "1"})
    repeated.run(1, [2])
    older = Query(tmp_path, **remote, **{PLANNED_BATCH: "0"})
    with pytest.raises(CheckpointError, match=r"Another run of this query has committed batch 1 .* Stop one"):
        older.run(1, [2, 3])
    assert repeated.ids() == [0, 1, 2]
    assert len([*repeated.table.glob("*.parquet")]) == 2, "the files of the refused batch are removed"


def test_without_offsets_and_without_a_look_at_the_checkpoint_a_known_number_is_refused(tmp_path: Path) -> None:
    remote = {"checkpointLocation": "hdfs://namenode/ck"}
    query = Query(tmp_path, **remote)
    query.run(0, [0])
    with pytest.raises(CheckpointError, match=r"cannot be compared .* to_table\(\).* trustBatchNumbers=true"):
        query.run(0, [0])
    Query(tmp_path, **remote, trustBatchNumbers="true").run(0, [0])
    query.run(1, [1])
    assert query.ids() == [0, 1]


def test_commits_without_offsets_of_earlier_versions(tmp_path: Path) -> None:
    query = Query(tmp_path)
    made = ParquetFiles(query.table, None)
    made.write(pa.record_batch({"id": pa.array([1])}))
    commit(query.table, BatchOfFiles(pa.schema([("id", pa.int64())]), made.close(), False, "query", 0))
    assert from_metadata(DeltaTable(str(query.table)).history()[0]) is None
    query.log(0, end(7))
    with pytest.raises(CheckpointError, match="cannot be compared"):
        query.run(0, [9])
    with pytest.raises(CheckpointError, match="Another run of this query has committed batch"):
        Query(tmp_path, **{PLANNED_BATCH: "-1"}).run(0, [9])
    Query(tmp_path, **{PLANNED_BATCH: "0"}).run(0, [9])
    assert query.ids() == [1]


def test_a_commit_that_delta_removed_from_its_log_does_not_hide_an_older_checkpoint(tmp_path: Path) -> None:
    query = two_batches(tmp_path)
    DeltaTable(str(query.table)).create_checkpoint()
    for entry in sorted((query.table / "_delta_log").glob("*.json")):
        entry.unlink()
    query.log(1, end(5))
    with pytest.raises(CheckpointError, match="Another run of this query has committed batch"):
        Query(tmp_path, **{PLANNED_BATCH: "0"}).run(1, [2, 3, 4])
    Query(tmp_path, **{PLANNED_BATCH: "1"}).run(1, [2])
    assert query.ids() == [0, 1, 2]


def test_a_checkpoint_that_lacks_a_batch_of_the_table_is_refused_before_the_start(tmp_path: Path) -> None:
    query = two_batches(tmp_path)
    files, bad = LocalCheckpoint(query.checkpoint), tmp_path / "t_bad"
    assert planned_batch(files, query.table, bad) == 1
    assert planned_batch(files, tmp_path / "nothing", bad) == 1
    (query.checkpoint / "offsets" / "1").unlink()
    with pytest.raises(CheckpointError, match=r"/t has batch 1 .* ends with batch 0: .*'\{\"orders\":\{\"0\":3\}\}'"):
        planned_batch(files, query.table, bad)
    (query.checkpoint / "offsets" / "0").unlink()
    with pytest.raises(CheckpointError, match="/t has batch 1 of this query, and the checkpoint has no batch"):
        planned_batch(files, query.table, bad)
    (query.checkpoint / "metadata").write_text(json.dumps({"id": "another"}))
    assert planned_batch(files, query.table, bad) == NO_BATCH
    (query.checkpoint / "metadata").unlink()
    assert planned_batch(files, query.table, bad) == NO_BATCH, "a new query"


def test_a_checkpoint_that_lacks_a_batch_of_bad_records_is_refused_before_the_start(tmp_path: Path) -> None:
    """The driver died between the commits of both tables."""
    query = two_batches(tmp_path)
    commit(tmp_path / "t_bad", BatchOfFiles(pa.schema([("_error", pa.string())]), [], False, "query", 2))
    with pytest.raises(CheckpointError, match="/t_bad has batch 2 of this query") as reported:
        planned_batch(LocalCheckpoint(query.checkpoint), query.table, tmp_path / "t_bad")
    assert "startingOffsets" not in str(reported.value), "the table may lack the good records of that batch"
    query.log(2, end(5))
    assert planned_batch(LocalCheckpoint(query.checkpoint), query.table, tmp_path / "t_bad") == 2


def test_an_older_checkpoint_is_refused_with_the_way_out(tmp_path: Path) -> None:
    query = two_batches(tmp_path)
    with pytest.raises(CheckpointError, match=r"has batch 1 .* continues with batch 0.*'\{\"orders\":\{\"0\":3\}\}'"):
        query.run(0, [0])


def test_offsets_of_several_sources_and_of_foreign_ones(tmp_path: Path) -> None:
    query = Query(tmp_path)
    query.log(0, end(2, _from={"orders": {"0": 0}}), None, 41)
    query.log(1, {"orders": {"0": 4, "1": 1}, "_from": {"orders": {"1": 0}}, "_ids": IDS}, "a", 42)
    found = batch_offsets(str(query.checkpoint), 1)
    assert found is not None
    assert found.start == ({"orders": {"0": 2, "1": 0}}, None, 41)
    assert found.end == ({"_ids": IDS, "orders": {"0": 4, "1": 1}}, "a", 42)
    assert from_metadata(found.to_metadata()) == found
    assert found.is_same(found) and not found.is_same(replace(found, end=(*found.end[:2], 43)))
    assert found.starting_offsets() is None, "of several sources there is no single option"
    assert batch_offsets(f"file://{query.checkpoint}", 1) == found
    assert batch_offsets(str(query.checkpoint), 2) is None and batch_offsets(None, 0) is None
    (query.checkpoint / "offsets" / "1").write_text("v2\n{}\n")
    assert batch_offsets(str(query.checkpoint), 1) is None, "a version that is not known"


def test_a_start_that_is_not_known_does_not_count() -> None:
    known = BatchOffsets(({"orders": {"0": 1}},), ({"orders": {"0": 2}},))
    assert known.is_same(BatchOffsets((None,), ({"orders": {"0": 2}},)))
    assert not known.is_same(BatchOffsets(({"orders": {"0": 0}},), ({"orders": {"0": 2}},)))


def test_a_new_checkpoint_for_a_table_with_rows_is_refused(tmp_path: Path) -> None:
    query = two_batches(tmp_path)
    refuse_new_query(query.table, query.checkpoint)
    shutil.rmtree(query.checkpoint)
    with pytest.raises(CheckpointError, match=r"is missing or new.* pass --append-to-existing"):
        refuse_new_query(query.table, query.checkpoint)
    again = Query(tmp_path, "another")
    again.log(0, end(3))
    with pytest.raises(CheckpointError, match="rows of another streaming query, query, and none of this one, another"):
        again.run(0, [0, 1, 2])
    again.run(0, [])  # nothing to write is nothing to refuse
    assert query.ids() == [0, 1, 2]
    allowed = Query(tmp_path, "another", appendToExisting="true")
    allowed.run(0, [7])
    again.log(1, end(4))
    again.run(1, [8])  # from now on the table knows the query
    assert query.ids() == [0, 1, 2, 7, 8]


def test_queries_are_known_after_the_log_was_cleaned(tmp_path: Path) -> None:
    query = two_batches(tmp_path)
    DeltaTable(str(query.table)).create_checkpoint()
    for entry in sorted((query.table / "_delta_log").glob("*.json")):
        entry.unlink()
    assert queries_of(DeltaTable(str(query.table))) == {"query"}


PIPELINE = """\
name: p
checkpoint: {base}/ck
sources: {{orders: {{schema: id long}}}}
sinks: {{lake: {{from: orders, table: "{base}/t"{more}}}}}
"""


def test_a_pipeline_is_refused_before_spark_starts_and_a_reset_is_a_wish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KLAMM_STATE_DIR", str(tmp_path / "state"))
    query = two_batches(tmp_path)
    text = PIPELINE.format(base=tmp_path, more="")
    spec = read_yaml(text, "p.yaml")
    with pytest.raises(CheckpointError, match="missing or new"):
        check_checkpoint(spec)
    check_checkpoint(spec, append_to_existing=True)
    check_checkpoint(read_yaml(PIPELINE.format(base=tmp_path, more=", append_to_existing: true"), "p.yaml"))

    shutil.copytree(query.checkpoint, tmp_path / "ck" / "lake")
    check_checkpoint(spec)
    (tmp_path / "p.yaml").write_text(text)
    reset(tmp_path / "p.yaml", [], yes=True)
    assert not (tmp_path / "ck" / "lake" / "metadata").exists() and may_append(tmp_path / "ck" / "lake")
    check_checkpoint(spec)
    shutil.rmtree(tmp_path / "ck")
    with pytest.raises(CheckpointError):
        check_checkpoint(spec)


def test_a_refusal_is_not_tried_again() -> None:
    error = Exception("Traceback (most recent call last):\n  File ...\nklamm.spark.tables.existing.CheckpointError: no")
    assert failure_of(error, "p.yaml", "lake").permanent


def test_a_table_of_a_pipeline_is_not_reported_as_missing(tmp_path: Path) -> None:
    with pytest.raises(KlammError, match="There is no table at"):
        load_definition(tmp_path)
    (tmp_path / "_delta_log").mkdir()
    with pytest.raises(KlammError, match="was not made by `klamm table create`: its pipeline or program"):
        load_definition(tmp_path)
