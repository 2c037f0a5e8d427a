"""Avro values as typed columns: each value is one record in Avro's binary encoding, without a file's header."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from fastavro import _read_py, parse_schema, schemaless_reader
from fastavro.schema import SchemaParseException

from klamm.errors import KlammError
from klamm.spark.decode.row_decoder import RowDecoder
from klamm.spark.decode.value_schema import ValueSchema

_PRIMITIVE: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL: Final[Mapping[str, pa.DataType]] = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "uuid": pa.string(),
}
_LONG_NUMBER: Final = re.compile(rb"[\x80-\xff]{9}[\x02-\xff]")
"""Present in every record with a number of more than 64 bits, and in some others, such as non-Latin text."""


class AvroDecoder(RowDecoder):
    """One column per field of the record that the schema describes."""

    def __init__(self, schema: ValueSchema) -> None:
        try:
            named: dict[str, Any] = {}
            self._schema: Any = parse_schema(json.loads(schema.text), named_schemas=named)
        except (ValueError, SchemaParseException, TypeError, KeyError) as error:
            raise KlammError(f"The Avro schema is wrong: {error}.") from None
        if not isinstance(self._schema, dict) or self._schema.get("type") != "record":
            raise KlammError("The Avro schema of a value must be a record.")
        types = _Types(named)
        self.arrow_fields = [pa.field(f["name"], types.arrow(f["type"], f["name"])) for f in self._schema["fields"]]
        self._names = [field.name for field in self.arrow_fields]

    def row(self, value: bytes) -> tuple[list[object] | None, str | None]:
        data = io.BytesIO(value)
        # fastavro's compiled reader drops the bits of a number beyond the 64th, its plain one does not
        read = _read_py.schemaless_reader if _LONG_NUMBER.search(value) else schemaless_reader
        try:
            record: Any = read(data, self._schema, None)
        except EOFError:
            return None, f"not this Avro record: its {len(value)} bytes end too early"
        except Exception as error:  # fastavro raises many kinds of errors for foreign bytes
            return None, f"not this Avro record: {error or type(error).__name__}"
        if (left := len(value) - data.tell()) > 0:
            return None, f"not this Avro record: {left} bytes are left after it"
        return [_plain(record[name]) for name in self._names], None


def _plain(value: Any) -> Any:
    """Convert to what Arrow accepts: UUIDs as text."""
    if value is None or isinstance(value, (int, float, str, bytes, Decimal)):
        return value
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return str(value) if type(value).__name__ == "UUID" else value


class _Types:
    """Map Avro's types to Arrow's. A recursive record cannot become columns."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._open: list[str] = []

    def arrow(self, kind: Any, place: str) -> pa.DataType:
        if isinstance(kind, list):
            return self._union(kind, place)
        if isinstance(kind, str):
            return _PRIMITIVE[kind] if kind in _PRIMITIVE else self.arrow(self._named[kind], place)
        if (logical := _logical(kind)) is not None:
            return logical
        name = kind["type"]
        if name in ("record", "error"):
            return self._record(kind, place)
        if name == "array":
            return pa.list_(self.arrow(kind["items"], place))
        if name == "map":
            return pa.map_(pa.string(), self.arrow(kind["values"], place))
        if name == "enum":
            return pa.string()
        return pa.binary() if name == "fixed" else self.arrow(name, place)

    def _union(self, kinds: list[Any], place: str) -> pa.DataType:
        others = [kind for kind in kinds if kind != "null"]
        if len(others) != 1:
            raise KlammError(f"The Avro field {place!r} is a union of several types: a column has one.")
        return self.arrow(others[0], place)

    def _record(self, kind: Mapping[str, Any], place: str) -> pa.DataType:
        if kind["name"] in self._open:
            raise KlammError(f"The Avro record {kind['name']} holds itself in {place!r}: it cannot be columns.")
        self._open.append(kind["name"])
        fields = [pa.field(f["name"], self.arrow(f["type"], f"{place}.{f['name']}")) for f in kind["fields"]]
        self._open.pop()
        return pa.struct(fields)


def _logical(kind: Mapping[str, Any]) -> pa.DataType | None:
    name = kind.get("logicalType")
    if name == "decimal":
        return pa.decimal128(int(kind["precision"]), int(kind.get("scale", 0)))
    if name in ("time-millis", "time-micros"):
        raise KlammError(f"Avro's {name} has no type in Spark.")
    return _LOGICAL.get(name) if isinstance(name, str) else None
