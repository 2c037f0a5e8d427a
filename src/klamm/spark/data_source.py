"""`format("klamm")`: topics as a Python data source of Spark, for reading and writing, batch and streaming."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from klamm.spark.source.option_names import warn_of_unknown
from klamm.spark.source.read_options import ReadOptions, parse_read_options

if TYPE_CHECKING:
    from klamm.spark.decode.value_schema import ValueSchema


class KlammDataSource(DataSource):
    """Options are parsed once their use is known: batch read, stream read, or write."""

    _was_sent = False
    """Whether this is a copy from another process. Spark plans each batch of a stream with a new instance, and sends an
    instance to the process that commits the batch."""

    @classmethod
    def name(cls) -> str:
        return "klamm"

    def schema(self) -> StructType:
        from klamm.spark.source.topic_schema import read_schema
        from klamm.spark.source.value_format import load_value_schema

        options = self._any_read_options()
        return read_schema(options, _full_schema(options, load_value_schema(options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        from klamm.spark.source.reader import KlammReader

        warn_of_unknown(self.options)
        options = parse_read_options(self.options, streaming=False)
        value_schema = _checked_value_schema(options, schema)
        if not options.pushdown:
            return KlammReader(options, schema, value_schema)
        from klamm.spark.source.pushdown import PushdownReader

        return PushdownReader(options, schema, value_schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from klamm.spark.source.stream_reader import KlammStreamReader

        warn_of_unknown(self.options)
        options = parse_read_options(self.options, streaming=True)
        return KlammStreamReader(options, schema, _checked_value_schema(options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from klamm.spark.sink.writer import batch_writer

        warn_of_unknown(self.options)
        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from klamm.spark.sink.writer import stream_writer

        warn_of_unknown(self.options)
        return stream_writer(self.options, schema, overwrite, is_planning=not self._was_sent)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._was_sent = True

    def _any_read_options(self) -> ReadOptions:
        """Spark asks for the schema before it says whether the query is a stream; the offset rules of the two
        differ."""
        given = {
            key: value for key, value in self.options.items() if not key.lower().startswith(("starting", "ending"))
        }
        return parse_read_options(given, streaming=True)


def _full_schema(options: ReadOptions, value_schema: ValueSchema | None) -> StructType:
    from klamm.spark.source.topic_schema import full_schema
    from klamm.spark.source.value_format import value_decoder

    decoder = value_decoder(value_schema, options)
    return full_schema(options, decoder.arrow_fields if decoder is not None else ())


def _checked_value_schema(options: ReadOptions, schema: StructType) -> ValueSchema | None:
    """Return the schema of the values, checked against the columns that Spark requests."""
    from klamm.spark.source.topic_schema import check_user_schema
    from klamm.spark.source.value_format import load_value_schema

    value_schema = load_value_schema(options)
    check_user_schema(schema, _full_schema(options, value_schema))
    return value_schema
