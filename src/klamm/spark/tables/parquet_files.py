"""Writes rows to Parquet files, on the executor: few files, large row groups, one directory per date.

Files become part of the table when the driver commits them. A failing task removes its files; vacuum removes those
of killed processes. Files are synced to disk when a task ends: a commit that survives a power failure must not name
lost files.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

DATE_COLUMN: Final = "_date"
TARGET_FILE_BYTES: Final = 128 << 20
ROW_GROUP_BYTES: Final = 32 << 20
MAX_OPEN_FILES: Final = 16
"""With more dates than this, a task closes the file that it opened first, and may open another for that date."""

_NO_SYNC_OF_NAMES: Final = frozenset([errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM])
"""Some shared file systems cannot sync directories, and a directory above the table may not be accessible."""
_NO_DATE: Final = "__HIVE_DEFAULT_PARTITION__"
_FIRST_US: Final = -62_135_596_800_000_000
_END_US: Final = 253_402_300_800_000_000
"""The years 1 to 9999, in microseconds."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A finished file. `path` is relative to the table; `date` is its partition, if the table has any."""

    path: str
    size: int
    rows: int
    date: str | None = None


class ParquetFiles:
    """The files of one task for one table. `date_column` names a timestamp or date to partition by."""

    def __init__(self, root: Path, date_column: str | None) -> None:
        self._root = root
        self._date_column = date_column
        self._open: dict[str | None, _OpenFile] = {}
        self._done: list[DataFile] = []

    def write(self, rows: pa.RecordBatch) -> None:
        for date, part in self._by_date(rows):
            self._file(date).write(part)
            if self._open[date].is_full:
                self._finish(date)

    def close(self) -> list[DataFile]:
        for date in list(self._open):
            self._finish(date)
        sync(*{self._root / file.path for file in self._done})
        if self._done:
            sync_names(self._root, *{(self._root / file.path).parent for file in self._done} - {self._root})
        return self._done

    def discard(self) -> None:
        """Remove everything that was written."""
        for file in self._open.values():
            file.abandon()
        remove(self._root, self._done)

    def _file(self, date: str | None) -> _OpenFile:
        if date not in self._open:
            if len(self._open) >= MAX_OPEN_FILES:
                self._finish(next(iter(self._open)))
            self._open[date] = _OpenFile(self._root, date, self._date_column is not None)
        return self._open[date]

    def _finish(self, date: str | None) -> None:
        self._done.append(self._open.pop(date).close())

    def _by_date(self, rows: pa.RecordBatch) -> Iterator[tuple[str | None, pa.RecordBatch]]:
        if self._date_column is None:
            yield None, rows
            return
        dates = _days(rows.column(self._date_column))
        names = pc.unique(dates).to_pylist()
        for name in names:
            here = pc.equal(dates, name) if name is not None else pc.is_null(dates)
            yield name, rows if len(names) == 1 else rows.filter(here)


def _days(times: pa.Array) -> pa.Array:
    """Return the day of each value as text; null outside of the years 1 to 9999, which partition readers do not
    support."""
    days = times.cast(pa.timestamp("us")) if pa.types.is_date(times.type) else times
    moments = days.cast(pa.int64())
    known = pc.and_(pc.greater_equal(moments, _FIRST_US), pc.less(moments, _END_US))
    return pc.strftime(pc.if_else(known, days, pa.scalar(None, days.type)), format="%Y-%m-%d")


class _OpenFile:
    def __init__(self, root: Path, date: str | None, is_partitioned: bool) -> None:
        self._root = root
        self._date = date
        name = f"part-{uuid.uuid4()}.zstd.parquet"
        self._path = f"{DATE_COLUMN}={date or _NO_DATE}/{name}" if is_partitioned else name
        self._place = root / self._path
        self._place.parent.mkdir(parents=True, exist_ok=True)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._rows = 0
        self._writer: pq.ParquetWriter | None = None

    def write(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        self._rows += rows.num_rows
        if self._waiting_bytes >= ROW_GROUP_BYTES:
            self._write_row_group()

    @property
    def is_full(self) -> bool:
        return self._writer is not None and self._place.stat().st_size >= TARGET_FILE_BYTES

    def close(self) -> DataFile:
        self._write_row_group()
        assert self._writer is not None
        self._writer.close()
        return DataFile(self._path, self._place.stat().st_size, self._rows, self._date)

    def abandon(self) -> None:
        if self._writer is not None:
            with contextlib.suppress(OSError, pa.ArrowException):
                self._writer.close()
        self._place.unlink(missing_ok=True)

    def _write_row_group(self) -> None:
        if not self._waiting:
            return
        table = pa.Table.from_batches(self._waiting)
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._place, table.schema, compression="zstd")
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._waiting, self._waiting_bytes = [], 0


def sync(*files: Path) -> None:
    """Wait until these files are on disk."""
    for file in files:
        fd = os.open(file, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def sync_names(*directories: Path) -> None:
    """Wait until the entries of these directories are on disk, if the file system supports it."""
    for directory in directories:
        try:
            sync(directory)
        except OSError as error:
            if error.errno not in _NO_SYNC_OF_NAMES:
                raise


def sync_log(path: Path, first: int, last: int) -> None:
    """Wait until these commits are on disk: Spark counts the batch as done when this returns."""
    log = path / "_delta_log"
    if first <= last:
        sync(*(log / f"{version:020}.json" for version in range(first, last + 1)))
        sync_names(log)


def remove(root: Path, files: list[DataFile]) -> None:
    """Remove files that will not become part of the table."""
    for file in files:
        with contextlib.suppress(OSError):
            os.unlink(root / file.path)
