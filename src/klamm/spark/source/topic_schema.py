"""The columns of a topic as a DataFrame: those of Spark's Kafka connector, or typed ones through `valueFormat`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from klamm.spark.source.read_options import RAW, OptionError, ReadOptions

HEADERS_TYPE: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

RAW_COLUMNS: Final[Mapping[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
}
TYPED_COLUMNS: Final[Mapping[str, DataType]] = {
    "key": BinaryType(),
    "_topic": StringType(),
    "_partition": IntegerType(),
    "_offset": LongType(),
    "_timestamp": TimestampType(),
    "_error": StringType(),
    "_raw": BinaryType(),
}
"""The columns after the typed ones; `_raw` is the value of a record that could not be decoded."""

ARROW_TYPES: Final[Mapping[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])),
}


def full_schema(options: ReadOptions, value_fields: Iterable[pa.Field] = ()) -> StructType:
    """Return every column that a read with these options can return."""
    if options.value_format == RAW:
        fields = [StructField(name, kind) for name, kind in RAW_COLUMNS.items()]
    else:
        typed = [StructField(f.name, from_arrow_type(f.type)) for f in value_fields]
        own = [StructField(name, kind) for name, kind in TYPED_COLUMNS.items()]
        _refuse_twice([f.name for f in (*typed, *own)])
        fields = typed + own
    if options.include_headers:
        fields.append(StructField("headers", HEADERS_TYPE))
    return StructType(fields)


def read_schema(options: ReadOptions, full: StructType) -> StructType:
    """Return the columns of option `columns`, in its order, or all columns."""
    if not options.columns:
        return full
    by_name = {f.name.lower(): f for f in full}
    for name in options.columns:
        if name.lower() not in by_name:
            raise OptionError(f"Option 'columns' names {name!r}; there are {', '.join(full.names)}.")
    return StructType([by_name[name.lower()] for name in options.columns])


def check_user_schema(schema: StructType, full: StructType) -> None:
    """A schema given by the user may omit and reorder columns; names and types are fixed."""
    by_name = {f.name.lower(): f for f in full}
    for field in schema:
        known = by_name.get(field.name.lower())
        if known is None:
            raise OptionError(f"The schema names column {field.name!r}; a topic has {', '.join(full.names)}.")
        if known.dataType != field.dataType:
            kinds = f"{field.dataType.simpleString()} where {known.dataType.simpleString()} is"
            raise OptionError(f"The schema gives column {field.name!r} the type {kinds} read.")
    _refuse_twice(schema.names)


def _refuse_twice(names: list[str]) -> None:
    lower = [name.lower() for name in names]
    twice = [name for name in names if lower.count(name.lower()) > 1]
    if twice:
        raise OptionError(f"Column {twice[0]!r} would appear twice.")
