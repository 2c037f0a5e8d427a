"""The schema and the decoder of option `valueFormat`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.spark.source.read_options import RAW, ReadOptions

if TYPE_CHECKING:
    from klamm.spark.decode.record_columns import ValueDecoder
    from klamm.spark.decode.value_schema import ValueSchema


def load_value_schema(options: ReadOptions) -> ValueSchema | None:
    """Return the schema; None for raw values. Call it on the driver: only the driver needs the schema file."""
    if options.value_format == RAW:
        return None
    from klamm.spark.decode.value_schema import load

    return load(
        options.value_format,
        schema=options.value_schema,
        file=options.value_schema_file,
        message=options.value_message,
    )


def value_decoder(value_schema: ValueSchema | None, options: ReadOptions) -> ValueDecoder | None:
    """None for raw values."""
    if value_schema is None:
        return None
    from klamm.spark.decode.formats import decoder

    return decoder(options.value_format, value_schema)
