"""Commits of a Delta table without Spark: batches that come twice, through checkpoints of the log and compaction."""

from __future__ import annotations

import errno
import os
import stat
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import StructType

from klamm.errors import KlammError
from klamm.spark.source.batch_offsets import BatchOffsets
from klamm.spark.source.checkpoint_locations import CheckpointError
from klamm.spark.tables import commits, parquet_files
from klamm.spark.tables.commits import BatchOfFiles, commit
from klamm.spark.tables.delta import PLANNED_BATCH, TableLayout, Written, parse_options
from klamm.spark.tables.maintenance import compact, vacuum
from klamm.spark.tables.parquet_files import ParquetFiles
from klamm.spark.tables.table_definition import TableDefinition, create_table, load_definition
from klamm.spark.tables.table_paths import check_apart

ROWS = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])


def write(path: Path, ids: list[int], dated: bool = False, days: int = 1) -> list[parquet_files.DataFile]:
    made = ParquetFiles(path, "at" if dated else None)
    moments = [datetime(2025, 1, 1 + number % days, tzinfo=UTC) for number in ids]
    made.write(pa.record_batch([pa.array(ids), pa.array(moments, ROWS.field("at").type)], schema=ROWS))
    return made.close()


def put(path: Path, batch_id: int, ids: list[int], app_id: str = "query") -> bool:
    """Commit a batch without offsets, which the checkpoint had planned before the query started."""
    return commit(path, BatchOfFiles(ROWS, write(path, ids), False, app_id, batch_id, planned_batch=batch_id))


def put_new(path: Path, batch_id: int, ids: list[int], offsets: BatchOffsets | None) -> bool:
    """Commit a batch that Spark planned after the query had started."""
    planned = BatchOfFiles(
        ROWS, write(path, ids), False, "query", batch_id, offsets=offsets, planned_batch=batch_id - 1
    )
    return commit(path, planned)


def ids(path: Path) -> list[int]:
    return sorted(DeltaTable(str(path)).to_pyarrow_table().column("id").to_pylist())


def test_a_batch_that_comes_twice_is_known_after_checkpoint_compaction_and_vacuum(tmp_path: Path) -> None:
    for batch in range(105):
        assert put(tmp_path, batch, [batch])
        assert not put(tmp_path, batch, [batch])
    log = tmp_path / "_delta_log"
    assert (log / "_last_checkpoint").exists()
    compact(tmp_path)
    vacuum(tmp_path, retention_hours=0, force=True)
    found = DeltaTable(str(tmp_path))
    found.create_checkpoint()
    for entry in sorted(log.glob("*.json"))[:-1]:
        entry.unlink()
    assert not put(tmp_path, 104, [999])
    assert put(tmp_path, 0, [999], app_id="another query")
    assert ids(tmp_path) == [*range(105), 999]
    assert len([*tmp_path.glob("*.parquet")]) == 2


def test_files_by_date_with_few_open_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_files, "MAX_OPEN_FILES", 2)
    written = write(tmp_path, [*range(40)], dated=True, days=4)
    assert sorted(file.date or "" for file in written) == [f"2025-01-0{day}" for day in range(1, 5)]
    assert commit(tmp_path, BatchOfFiles(ROWS, written, True, "query", 0))
    rows = DeltaTable(str(tmp_path)).to_pyarrow_table()
    assert sorted(rows.column("id").to_pylist()) == [*range(40)]
    assert all(at.date() == day for at, day in zip(*(rows.column(n).to_pylist() for n in ("at", "_date")), strict=True))


def test_a_failed_task_leaves_nothing(tmp_path: Path) -> None:
    made = ParquetFiles(tmp_path, "at")
    made.write(
        pa.record_batch([pa.array([1, 2]), pa.array([None, datetime(2025, 1, 1)], ROWS.field("at").type)], schema=ROWS)
    )
    made.discard()
    assert not [*tmp_path.rglob("*.parquet")]


def test_committed_files_are_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    fsync = os.fsync

    def noted(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").readlink())
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    path = tmp_path / "t"
    log = path / "_delta_log"
    for batch in range(3):
        written = write(path, [batch, batch + 1], dated=True, days=2)
        places = {path / file.path for file in written}
        assert places | {place.parent for place in places} | {path} <= {*synced}, "before the commit"
        synced.clear()
        assert commit(path, BatchOfFiles(ROWS, written, True, "query", batch))
        assert {log / f"{batch:020}.json", log} <= {*synced}
        synced.clear()
    commit(path, BatchOfFiles(ROWS.append(pa.field("more", pa.string())), [], True))
    assert log / f"{3:020}.json" in synced, "an added column"
    before = {*path.rglob("*.parquet")}
    synced.clear()
    compact(path)
    assert {*path.rglob("*.parquet")} - before | {log / f"{4:020}.json", log} <= {*synced}
    assert len({*path.rglob("*.parquet")} - before) == 2


def test_directories_that_cannot_be_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    number = errno.EINVAL

    def fsync(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    assert put(tmp_path / "t", 0, [1]) and put(tmp_path / "t", 1, [2])
    number = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        put(tmp_path / "t", 2, [3])
    assert ids(tmp_path / "t") == [1, 2]


def test_rows_that_a_table_does_not_accept(tmp_path: Path) -> None:
    put(tmp_path, 0, [1])
    longer = BatchOfFiles(ROWS.append(pa.field("more", pa.string())), [], False)
    assert commit(tmp_path, longer)
    assert DeltaTable(str(tmp_path)).schema().fields[-1].name == "more"
    wrong = BatchOfFiles(pa.schema([("id", pa.string())]), [], False)
    with pytest.raises(KlammError, match="'id' is long in the table and string in the rows"):
        commit(tmp_path, wrong)
    with pytest.raises(KlammError, match="partitioned by nothing"):
        commit(tmp_path, BatchOfFiles(ROWS, [], True))
    with pytest.raises(KlammError, match="cannot be those of a Delta table"):
        commit(tmp_path, BatchOfFiles(pa.schema([("id", pa.month_day_nano_interval())]), [], False))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "'path' must be specified"),
        ({"path": "s3://bucket/t"}, "s3:// is not supported"),
        ({"path": "t", "compactEvery": "often"}, "'compactEvery' must be a number"),
        ({"path": "/lake/t", "badRecords": "/lake/t/bad"}, "bad records cannot be in /lake/t, at /lake/t/bad"),
        ({"path": "/lake/t", "badRecords": "/lake/t"}, "cannot be in /lake/t"),
        ({"path": "/lake/t", "badRecords": "/lake"}, "The table cannot be in /lake"),
    ],
)
def test_wrong_options(options: dict[str, str], reason: str) -> None:
    with pytest.raises(KlammError, match=reason):
        parse_options(options)


def test_a_checkpoint_in_a_table_stands_where_vacuum_does_not_look() -> None:
    table = Path("/lake/t")
    check_apart(table, table / "_klamm" / "checkpoint", "The checkpoint")
    check_apart(table, Path("/lake/t_bad"), "The checkpoint")
    with pytest.raises(KlammError, match="The checkpoint cannot be in /lake/t"):
        check_apart(table, table / "checkpoint", "The checkpoint")


def test_a_definition_is_kept_and_a_broken_one_is_reported(tmp_path: Path) -> None:
    definition = TableDefinition("orders", "localhost:9092", schema="id long", partition_by_date="_timestamp")
    assert create_table(tmp_path / "t", definition) == []
    assert load_definition(tmp_path / "t") == definition
    assert DeltaTable(str(tmp_path / "t")).metadata().partition_columns == ["_date"]
    (tmp_path / "t" / "_klamm" / "table.json").write_text("{")
    with pytest.raises(KlammError, match="cannot be read"):
        load_definition(tmp_path / "t")


def layout(path: Path) -> TableLayout:
    columns = StructType().add("id", "long").add("_error", "string").add("_raw", "binary")
    return TableLayout(parse_options({"path": str(path), PLANNED_BATCH: "0"}), columns, overwrite=False)


def a_task(table: TableLayout) -> Written:
    rows = [pa.array([1, 2]), pa.array([None, "broken"]), pa.array([None, b"x"])]
    return table.write(iter([pa.record_batch(rows, schema=table.arrow)]), "query")


def test_a_commit_that_fails_half_way_leaves_its_files(tmp_path: Path) -> None:
    """The table of bad records is committed first; Spark calls abort when the other commit fails."""
    table, path = layout(tmp_path / "t"), tmp_path / "t"
    commit(path, BatchOfFiles(pa.schema([("id", pa.string())]), [], False))
    message = a_task(table)
    with pytest.raises(KlammError, match="'id' is string in the table"):
        table.commit([message], 0)
    table.abort([message])
    assert DeltaTable(str(tmp_path / "t_bad")).to_pyarrow_table().column("_error").to_pylist() == ["broken"]
    assert not [*path.glob("*.parquet")], "those of a commit that was refused are not needed"


def test_bad_records_are_there_once_when_a_driver_dies_between_the_two_commits(tmp_path: Path) -> None:
    table = layout(tmp_path / "t")
    first = a_task(table)
    commit(tmp_path / "t_bad", BatchOfFiles(table.bad, first.bad_files, False, "query", 0))
    table.commit([a_task(table)], 0)
    assert DeltaTable(str(tmp_path / "t_bad")).to_pyarrow_table().column("_raw").to_pylist() == [b"x"]
    assert ids(tmp_path / "t") == [1]


def test_a_job_with_a_failed_task_removes_the_files_of_the_others(tmp_path: Path) -> None:
    table = layout(tmp_path / "t")
    table.abort([a_task(table), None])
    assert not [*tmp_path.rglob("*.parquet")]


def test_a_checkpoint_older_than_the_table_is_refused(tmp_path: Path) -> None:
    """A batch of an older number need not hold the same records: to pass over it could lose some."""
    for batch in range(3):
        put(tmp_path, batch, [batch])
    with pytest.raises(
        KlammError, match="has batch 2 of this query already, and the checkpoint continues with batch 1"
    ):
        put(tmp_path, 1, [1, 7])
    assert ids(tmp_path) == [0, 1, 2]


def test_a_column_added_meanwhile_costs_another_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, 0, [0])
    evolve = commits.evolve

    def meanwhile(table: DeltaTable, schema: pa.Schema, is_partitioned: bool) -> list[str]:
        added = evolve(table, schema, is_partitioned)
        monkeypatch.setattr(commits, "evolve", evolve)
        create_more = BatchOfFiles(ROWS.append(pa.field("more", pa.string())), [], False)
        commit(tmp_path, create_more)
        return added

    monkeypatch.setattr(commits, "evolve", meanwhile)
    assert put(tmp_path, 1, [1])
    assert ids(tmp_path) == [0, 1]


@pytest.mark.parametrize("offsets", [BatchOffsets(({"t": {"0": 1}},), ({"t": {"0": 2}},)), None])
def test_the_faster_of_two_runs_on_one_checkpoint_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offsets: BatchOffsets | None
) -> None:
    """If the offsets are unknown, the batches may differ: the slower run must not continue."""
    assert put_new(tmp_path, 0, [0], offsets)
    evolve = commits.evolve

    def meanwhile(table: DeltaTable, schema: pa.Schema, is_partitioned: bool) -> list[str]:
        monkeypatch.setattr(commits, "evolve", evolve)
        assert put_new(tmp_path, 1, [1], offsets)
        return evolve(table, schema, is_partitioned)

    monkeypatch.setattr(commits, "evolve", meanwhile)
    if offsets is not None:
        assert not put_new(tmp_path, 1, [1], offsets)
    else:
        with pytest.raises(CheckpointError, match=r"Another run of this query has committed batch 1 .* Stop one"):
            put_new(tmp_path, 1, [1], offsets)
    assert ids(tmp_path) == [0, 1]


def test_a_time_of_no_calendar_has_no_date(tmp_path: Path) -> None:
    """A producer that writes microseconds for milliseconds must not make the table unreadable."""
    moments = pa.array([1_700_000_000_000_000_000, -(1 << 60), 253_402_300_799_999_999, None], ROWS.field("at").type)
    made = ParquetFiles(tmp_path, "at")
    made.write(pa.record_batch([pa.array([1, 2, 3, 4]), moments], schema=ROWS))
    assert commit(tmp_path, BatchOfFiles(ROWS, made.close(), True, "query", 0))
    rows = DeltaTable(str(tmp_path)).to_pyarrow_table(columns=["id", "_date"]).sort_by("id")
    assert rows.column("_date").to_pylist() == [None, None, date(9999, 12, 31), None]


def test_days_of_a_date_column(tmp_path: Path) -> None:
    made = ParquetFiles(tmp_path, "day")
    made.write(pa.record_batch({"day": pa.array([date(2025, 1, 2), None], pa.date32())}))
    assert {file.date for file in made.close()} == {"2025-01-02", None}
