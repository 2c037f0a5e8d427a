"""Values of records as typed columns: `decoder(format, schema)`, used by the reader on executors."""

from __future__ import annotations

import pyarrow as pa

from klamm.errors import KlammError
from klamm.spark.decode.row_decoder import Decoder, no_errors, not_utf8
from klamm.spark.decode.value_schema import ValueSchema, load


def decoder(value_format: str, value_schema: ValueSchema | str | None = None, message: str | None = None) -> Decoder:
    """Return the decoder of a format other than raw. Raises KlammError for an unusable schema."""
    if not isinstance(value_schema, ValueSchema):
        value_schema = load(value_format, schema=value_schema, message=message)
    if value_format == "json":
        from klamm.spark.decode.formats_json import JsonDecoder

        return JsonDecoder(value_schema)
    if value_format == "avro":
        from klamm.spark.decode.formats_avro import AvroDecoder

        return AvroDecoder(value_schema)
    if value_format == "protobuf":
        from klamm.spark.decode.formats_protobuf import ProtobufDecoder

        return ProtobufDecoder(value_schema)
    if value_format == "string":
        return StringDecoder()
    raise KlammError(f"There is nothing to decode in the format {value_format!r}.")


class StringDecoder:
    """One column, `value`: the text. Bytes that are not UTF-8 are an error of their row."""

    def __init__(self) -> None:
        self.arrow_fields = [pa.field("value", pa.string())]

    def decode(self, values: pa.BinaryArray) -> tuple[list[pa.Array], pa.StringArray]:
        try:
            return [values.cast(pa.string())], no_errors(len(values))
        except pa.ArrowInvalid:
            texts, errors = zip(*(_text(value) for value in values.to_pylist()), strict=True)
            return [pa.array(texts, pa.string())], pa.array(errors, pa.string())


def _text(value: bytes | None) -> tuple[str | None, str | None]:
    try:
        return None if value is None else value.decode(), None
    except UnicodeDecodeError as error:
        return None, not_utf8(error)
