"""The smallest sink in Python: notes how old the records were when their rows reached `write`, and drops the rows."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


@dataclass
class Written(WriterCommitMessage):
    rows: int


class AgeSink(DataSource):
    """Option `path`: the directory for the ages."""

    @classmethod
    def name(cls) -> str:
        return "bench_ages"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return AgeWriter(self.options["path"])


class AgeWriter(DataSourceStreamArrowWriter):
    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write ages in milliseconds, one file per task; an empty task writes none."""
        found = []
        for batch in iterator:
            written_us = batch.column("timestamp").cast("int64").to_numpy()
            found.append(time.time() * 1e3 - written_us / 1e3)
        ages = np.concatenate(found) if found else np.empty(0)
        if len(ages):
            np.save(Path(self._path, f"{uuid.uuid4()}.npy"), ages)
        return Written(len(ages))
