"""Batch reads, and the work of a task with its ranges in batch and streaming queries.

Tasks import the decoders when they run: numba takes 1.6 s of CPU to load, and Spark starts several processes per query
that only plan.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final
from uuid import UUID

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from klamm.client.cluster_client import ClusterClient
from klamm.model import TopicPartition
from klamm.spark.source import worker
from klamm.spark.source.client_options import driver_client
from klamm.spark.source.planner import Planner
from klamm.spark.source.read_options import ReadOptions
from klamm.spark.source.source_offsets import OffsetRange, split_ranges, together
from klamm.spark.source.value_format import value_decoder

if TYPE_CHECKING:
    from klamm.spark.decode.value_schema import ValueSchema

_log = logging.getLogger(__name__)

SMALL_TASK: Final = 1000
"""Ranges share a task up to this many offsets: decoding them takes less time than starting a task."""


class RangePartition(InputPartition):
    """The range of one task. `topic_id` is the topic's identity when the range was planned."""

    def __init__(self, topic: str, partition: int, start: int, end: int, topic_id: UUID | None) -> None:
        super().__init__((topic, partition, start, end))
        self.topic = topic
        self.partition = partition
        self.start = start
        self.end = end
        self.topic_id = topic_id

    @property
    def range(self) -> OffsetRange:
        return OffsetRange(TopicPartition(self.topic, self.partition), self.start, self.end)


class SmallRanges(InputPartition):
    """Several ranges with few records for one task."""

    def __init__(self, parts: tuple[RangePartition, ...]) -> None:
        super().__init__(tuple(part.value for part in parts))
        self.parts = parts


def input_partitions(ranges: list[OffsetRange], options: ReadOptions, ids: Mapping[str, UUID]) -> list[InputPartition]:
    """Plan one task per range; ranges with few records share one, unless the query sets the number of tasks.

    A task costs milliseconds and, in a table, one file: 500 partitions with five records each become three tasks.
    """
    split = split_ranges(ranges, min_partitions=options.min_partitions, max_records=options.max_records_per_partition)
    limit = SMALL_TASK if options.min_partitions is None and options.max_records_per_partition is None else 0
    tasks: list[InputPartition] = []
    for group in together(split, limit):
        parts = [RangePartition(r.tp.topic, r.tp.partition, r.start, r.end, ids.get(r.tp.topic)) for r in group]
        tasks.append(parts[0] if len(parts) == 1 else SmallRanges(tuple(parts)))
    return tasks


def read_range(
    options: ReadOptions, schema: StructType, value_schema: ValueSchema | None, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a task as Arrow batches of exactly this schema."""
    parts = partition.parts if isinstance(partition, SmallRanges) else (partition,)
    for part in parts:
        if isinstance(part, RangePartition):  # Spark creates a partition without a value if there are no ranges
            yield from _read_range(options, schema, value_schema, part)
    if isinstance(parts[0], RangePartition):
        worker.prepare()


def _read_range(
    options: ReadOptions, schema: StructType, value_schema: ValueSchema | None, partition: RangePartition
) -> Iterator[pa.RecordBatch]:
    from klamm.spark.decode.record_columns import RecordDecoder
    from klamm.spark.source.direct_files import DirectReadError
    from klamm.spark.source.direct_read import DirectReader
    from klamm.spark.source.range_fetch import fetch_batches

    arrow_schema = to_arrow_schema(schema, timezone="UTC")
    decoder = RecordDecoder(
        partition.range.tp,
        arrow_schema,
        batch_bytes=options.batch_bytes,
        max_unpacked_bytes=options.max_unpacked_bytes,
        value_decoder=value_decoder(value_schema, options),
    )
    with worker.borrowed_client(options) as client:
        wanted = partition.range
        if options.read_mode != "fetch":
            direct = DirectReader(client, wanted, decoder, options, topic_id=partition.topic_id)
            try:
                yield from direct.batches()
                return
            except DirectReadError as e:
                if options.read_mode == "direct":
                    raise
                _log.info("reading the rest of the range by Fetch: %s", e)
                wanted = OffsetRange(wanted.tp, direct.offset, wanted.end)
        yield from fetch_batches(client, wanted, decoder, options, topic_id=partition.topic_id)


class KlammReader(DataSourceReader):
    """A batch query."""

    def __init__(self, options: ReadOptions, schema: StructType, value_schema: ValueSchema | None = None) -> None:
        self._options = options
        self._schema = schema
        self._value_schema = value_schema

    def partitions(self) -> list[InputPartition]:
        servers, client_options = self._options.bootstrap_servers, self._options.client
        with driver_client(servers, client_options) as client:
            ranges = self._ranges(Planner(self._options, client).batch_ranges(), client)
            return input_partitions(ranges, self._options, client.topic_ids)

    def _ranges(self, ranges: list[OffsetRange], client: ClusterClient) -> list[OffsetRange]:
        """Return the parts of the ranges that must be read."""
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, self._schema, self._value_schema, partition)
