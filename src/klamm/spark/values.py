"""The decoder of option `valueFormat`, where one is asked for."""

from __future__ import annotations

from klamm.spark.options import RAW, ReadOptions
from klamm.spark.record_columns import ValueDecoder


def value_decoder(options: ReadOptions) -> ValueDecoder | None:
    """None for raw values."""
    if options.value_format == RAW:
        return None
    from klamm.spark import formats

    return formats.decoder(options.value_format, _schema_text(options))


def _schema_text(options: ReadOptions) -> str | None:
    return options.value_schema
