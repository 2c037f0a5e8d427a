"""JSON values as typed columns: whole batches through Arrow's parser, single rows through Python where Arrow refuses.

Arrow parses all rows of a batch as one text of lines. Two checks keep lines and rows equal: every row begins with `{`
and ends with `}`, and Arrow found as many objects as there are rows. Since `}` and `{` can only meet between two
objects, each row then is exactly one object. A batch that Arrow refuses is halved until what is left is a few rows, and
those are decoded one by one, so an error belongs to exactly its row. Both ways give the same result: a batch with
values that Arrow accepts and the row decoder rejects is refused too.

Values fit the schema as in Spark's from_json: names are matched exactly, fields that the schema does not name are left
out, missing ones are null (an error of the row where the schema says NOT NULL), any value where a string is expected
becomes its JSON text, and a whole number where a timestamp is expected is seconds since 1970. A value that does not
fit, or a number too large for its column, makes the whole row an error.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from klamm.spark.decode.row_decoder import assemble, concat, no_errors, not_utf8
from klamm.spark.decode.value_schema import ValueSchema, struct_type

FEW_ROWS: Final = 256
"""Below this many rows, decoding row by row is cheaper than halving further."""
MAX_REFUSED: Final = 64
"""After this many refused parts of a batch, wrong rows are common, and halving no longer pays."""
_SHOWN: Final = 60
_DECIMAL: Final = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]{1,3})?")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_YEARS_IN_DAYS: Final = (date.min - _EPOCH.date()).days, (date.max - _EPOCH.date()).days + 1
_YEARS_IN_MICROS: Final = _YEARS_IN_DAYS[0] * 86_400_000_000, _YEARS_IN_DAYS[1] * 86_400_000_000
"""The years 1 to 9999 in UTC, since 1970: from, and up to."""

_MOST_FLOAT: Final = math.nextafter(float.fromhex("0x1.ffffffp127"), 0.0)
"""The largest number that is still finite when it is rounded to 32 bits."""

Decoded = tuple[list[pa.Array], pa.StringArray]


class JsonDecoder:
    """The columns of the schema, each the field of that name in the object."""

    def __init__(self, schema: ValueSchema) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        columns = struct_type(schema)
        self._strict: list[pa.Field] = list(to_arrow_schema(columns, timezone="UTC"))
        self.arrow_fields: list[pa.Field] = [pa.field(field.name, _nullable(field.type)) for field in self._strict]
        self._converters = [(field.name, _converter(field.type), field.nullable) for field in self._strict]
        self._by_arrow = all(_is_parsed_by_arrow(field.type, is_top=True) for field in self.arrow_fields)
        self._parse_options = pj.ParseOptions(
            explicit_schema=pa.schema([pa.field(f.name, _parsed_type(f.type)) for f in self.arrow_fields]),
            unexpected_field_behavior="ignore",
        )

    def decode(self, values: pa.BinaryArray) -> Decoded:
        if not values.null_count:
            return concat(self._parts(values))
        there = values.is_valid()
        columns, errors = concat(self._parts(values.filter(there)))
        places = pc.if_else(there, pc.subtract(pc.cumulative_sum(there.cast(pa.int64())), 1), None)
        return [column.take(places) for column in columns], errors.take(places)

    def _parts(self, values: pa.BinaryArray) -> list[Decoded]:
        parts: list[Decoded] = []
        waiting = [values]
        refused = 0
        while waiting:
            part = waiting.pop()
            by_arrow = self._by_arrow and len(part) > 1 and refused < MAX_REFUSED
            if by_arrow and (parsed := self._parse(part)) is not None:
                parts.append(parsed)
            elif by_arrow and len(part) > FEW_ROWS:
                refused += 1
                half = len(part) // 2
                waiting += [part.slice(half), part.slice(0, half)]
            else:
                parts.append(self._one_by_one(part))
        return parts

    def _parse(self, values: pa.BinaryArray) -> Decoded | None:
        """Return the rows as parsed by Arrow; None if one of them may be wrong."""
        lines = _lines(values)
        if lines is None:
            return None
        read_options = pj.ReadOptions(use_threads=False, block_size=lines.size + 1)
        try:
            table = pj.read_json(pa.BufferReader(lines), read_options, self._parse_options)
            if table.num_rows != len(values):
                return None
            columns = [_column(table, field) for field in self.arrow_fields]
            is_right = all(map(_fits, columns)) and not any(map(_misses, columns, self._strict))
            return (columns, no_errors(len(values))) if is_right else None
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None

    def _one_by_one(self, values: pa.BinaryArray) -> Decoded:
        rows, errors = [], []
        for value in values.to_pylist():
            row, error = self._row(value)
            rows.append(row)
            errors.append(error)
        return assemble(self.arrow_fields, rows, errors)

    def _row(self, value: bytes) -> tuple[list[object] | None, str | None]:
        try:
            found = json.loads(value.decode(), parse_float=_Number, parse_int=_int if b"-0" in value else None)
            if not isinstance(found, dict):
                return None, f"not a JSON object: {_shown(found)}"
            return [_field(found, *converter) for converter in self._converters], None
        except UnicodeDecodeError as error:
            return None, not_utf8(error)
        except json.JSONDecodeError as error:
            return None, f"not JSON: {error.msg} at position {error.pos}"
        except RecursionError:
            return None, "not JSON that can be read: nested too deeply"
        except _WrongValue as error:
            return None, str(error)
        except ValueError as error:
            return None, f"not JSON that can be read: {error}"


def _in_braces(values: pa.StringArray) -> pa.BooleanArray:
    return pc.and_(pc.starts_with(values, "{"), pc.ends_with(values, "}"))


def _lines(values: pa.BinaryArray) -> pa.Buffer | None:
    """Return the rows as lines of text; None if a row is not UTF-8 or not in braces."""
    try:
        texts = values.cast(pa.string())
    except pa.ArrowInvalid:
        return None
    if not pc.all(_in_braces(texts)).as_py():
        texts = pc.ascii_trim(texts, " \t\r\n")
        if not pc.all(_in_braces(texts)).as_py():
            return None
    joined = pc.binary_join(pa.ListArray.from_arrays([0, len(texts)], texts), "\n")
    return joined[0].as_buffer()


def _column(table: pa.Table, field: pa.Field) -> pa.Array:
    column = table.column(field.name).combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], field.type)
    return column if column.type == field.type else column.cast(field.type)


def _fits(column: pa.Array) -> bool:
    """Whether each row alone would be accepted too: Arrow has years that Python lacks, and does not count digits."""
    kind = column.type
    if pa.types.is_struct(kind):
        return all(_fits(child) for child in column.flatten())
    if pa.types.is_list(kind):
        return _fits(column.flatten())
    if pa.types.is_decimal(kind):
        column.validate(full=True)
    if pa.types.is_floating(kind):
        return not pc.any(pc.is_inf(column)).as_py()
    if pa.types.is_timestamp(kind):
        return _is_between(column.view(pa.int64()), *_YEARS_IN_MICROS)
    return not pa.types.is_date(kind) or _is_between(column.view(pa.int32()), *_YEARS_IN_DAYS)


def _misses(column: pa.Array, field: pa.Field) -> bool:
    """Whether a non-nullable value is null, in the column or nested in it."""
    if not field.nullable and column.null_count:
        return True
    if pa.types.is_struct(field.type):
        inner = column.filter(column.is_valid()) if column.null_count else column
        return any(map(_misses, inner.flatten(), field.type))
    return bool(pa.types.is_list(field.type)) and _misses(column.flatten(), field.type.value_field)


def _nullable(kind: pa.DataType) -> pa.DataType:
    """Return the type without NOT NULL: a row that cannot be decoded has nulls everywhere."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(inner.name, _nullable(inner.type)) for inner in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _nullable(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, pa.field(kind.item_field.name, _nullable(kind.item_type)))
    return kind


def _is_between(column: pa.Array, first: int, end: int) -> bool:
    found = pc.min_max(column)
    least, most = found["min"].as_py(), found["max"].as_py()
    return least is None or (first <= least and most < end)


def _parsed_type(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_date(kind) else kind


def _is_parsed_by_arrow(kind: pa.DataType, *, is_top: bool = False) -> bool:
    """Arrow's parser has no maps, takes bytes unchanged, and reads dates as numbers; a column of dates can be cast."""
    if pa.types.is_struct(kind):
        return all(_is_parsed_by_arrow(kind.field(index).type) for index in range(kind.num_fields))
    if pa.types.is_list(kind):
        return _is_parsed_by_arrow(kind.value_type)
    if pa.types.is_date(kind):
        return is_top
    return not (pa.types.is_map(kind) or pa.types.is_binary(kind))


class _WrongValue(Exception):
    """A value that does not fit its column."""


class _Number(float):
    """A number with its text, so that a decimal or a string is exact."""

    def __init__(self, text: str) -> None:
        self.text = text


class _MinusZero(int):
    """`-0`: a whole number that keeps its sign as a float."""


Convert = Callable[[Any], object]


def _int(text: str) -> int:
    return _MinusZero() if text == "-0" else int(text)


def _field(found: dict[str, Any], name: str, convert: Convert, is_nullable: bool) -> object:
    value = found.get(name)
    if value is None:
        if not is_nullable:
            raise _WrongValue(f"field {name!r}: it is {'null' if name in found else 'missing'}, and must not be null")
        return None
    try:
        return convert(value)
    except _WrongValue as error:
        separator = "" if str(error).startswith((".", "[")) else ": "
        raise _WrongValue(f"field {name!r}{separator}{error}") from None


def _converter(kind: pa.DataType) -> Convert:
    if pa.types.is_struct(kind):
        inner = [(field.name, _converter(field.type), field.nullable) for field in kind]
        return lambda value: {each[0]: _field(_expect(value, dict, kind), *each) for each in inner}
    if pa.types.is_list(kind):
        element = _maybe(_converter(kind.value_type), kind.value_field.nullable)
        return lambda value: [element(v) for v in _expect(value, list, kind)]
    if pa.types.is_map(kind):
        key, item = _converter(kind.key_type), _maybe(_converter(kind.item_type), kind.item_field.nullable)
        return lambda value: [(key(k), item(v)) for k, v in _expect(value, dict, kind).items()]
    if pa.types.is_integer(kind):
        bits = kind.bit_width - 1
        return lambda value: _whole(value, kind, -(1 << bits), (1 << bits) - 1)
    if pa.types.is_timestamp(kind):
        return lambda value: _timestamp(value, kind)
    if pa.types.is_decimal(kind):
        return lambda value: _decimal(value, kind)
    simple: dict[str, Convert] = {
        "string": _string,
        "bool": lambda value: _expect(value, bool, kind),
        "float": lambda value: _real(value, kind),
        "double": lambda value: _real(value, kind),
        "binary": _bytes,
        "date32[day]": _date,
    }
    return simple[str(kind)]


def _maybe(convert: Convert, is_nullable: bool) -> Convert:
    def converted(value: Any) -> object:
        if value is None and not is_nullable:
            raise _WrongValue("an element is null, and must not be")
        return None if value is None else convert(value)

    return converted


def _ddl(kind: pa.DataType) -> str:
    """A type as the schema names it."""
    from pyspark.sql.pandas.types import from_arrow_type

    from klamm.spark.decode.ddl import type_text

    return type_text(from_arrow_type(kind))


def _expect(value: Any, wanted: type, kind: pa.DataType) -> Any:
    if type(value) is not wanted:
        raise _WrongValue(f"expected {_ddl(kind)}, not {_shown(value)}")
    return value


def _string(value: Any) -> str:
    if isinstance(value, _Number):
        return value.text
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _WrongValue("half of a surrogate pair") from None
    return text


def _whole(value: Any, kind: pa.DataType, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise _WrongValue(f"expected {_ddl(kind)}, not {_shown(value)}")
    return int(value)


def _real(value: Any, kind: pa.DataType) -> float:
    if isinstance(value, str) and value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    if isinstance(value, _MinusZero):
        return -0.0
    most = _MOST_FLOAT if pa.types.is_float32(kind) else sys.float_info.max
    if type(value) is int and abs(value) <= most:
        return float(value)
    if isinstance(value, float) and (abs(value) <= most or not isinstance(value, _Number)):
        return float(value)
    raise _WrongValue(f"expected {_ddl(kind)}, not {_shown(value)}")


def _decimal(value: Any, kind: pa.Decimal128Type) -> Decimal:
    text = value.text if isinstance(value, _Number) else value
    if isinstance(text, bool) or not isinstance(text, (str, int)) or not _DECIMAL.fullmatch(str(text)):
        raise _WrongValue(f"expected {_ddl(kind)}, not {_shown(value)}")
    number = Decimal(text)
    exponent = number.as_tuple().exponent
    digits = max(number.adjusted() + 1, 0) + kind.scale
    if not isinstance(exponent, int) or -exponent > kind.scale or digits > kind.precision:
        raise _WrongValue(f"{_shown(value)} does not fit {_ddl(kind)}")
    return number


def _timestamp(value: Any, kind: pa.TimestampType) -> datetime:
    try:
        if isinstance(value, int) and not isinstance(value, bool):
            moment = _EPOCH + timedelta(seconds=value)
        else:
            moment = datetime.fromisoformat(_expect(value, str, kind))
            moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise _WrongValue(f"expected {_ddl(kind)}, not {_shown(value)}") from None
    return moment if kind.tz is not None else moment.replace(tzinfo=None)


def _date(value: Any) -> date:
    try:
        return date.fromisoformat(_expect(value, str, pa.date32()))
    except ValueError:
        raise _WrongValue(f"expected a date such as 2025-12-31, not {_shown(value)}") from None


def _bytes(value: Any) -> bytes:
    try:
        return base64.b64decode(_expect(value, str, pa.binary()), validate=True)
    except (binascii.Error, ValueError):
        raise _WrongValue(f"expected bytes in base64, not {_shown(value)}") from None


def _shown(value: Any) -> str:
    text = value.text if isinstance(value, _Number) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
