"""Rows of a write, by topic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from klamm.spark.sink.writer_errors import PermanentWriteError

if TYPE_CHECKING:
    import pyarrow as pa


def by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows of each topic, in their order. `topic` wins over the column."""
    import pyarrow.compute as pc

    if not batch.num_rows:
        return
    if topic is not None:
        yield topic, batch
        return
    column = batch.column("topic")
    if column.null_count:
        raise PermanentWriteError("A row has a null topic. Use the option 'topic' to name one topic for all rows.")
    names = pc.unique(column).to_pylist()
    for name in names:
        yield name, batch if len(names) == 1 else batch.filter(pc.equal(column, name))
