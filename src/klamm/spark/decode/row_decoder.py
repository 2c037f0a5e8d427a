"""The parts of all decoders: their interface, decoding row by row, and columns from rows.

A record that cannot be decoded does not fail the query: its columns are null, and an error text gives the reason. A
record without a value (a tombstone) has null columns and no error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import pyarrow as pa

_UNFIT: Final = (pa.ArrowException, ValueError, OverflowError, TypeError)
"""Exceptions of Arrow for a Python value that does not fit its column."""


class Decoder(Protocol):
    """Decodes the values of many records at once. `arrow_fields` are its columns, all nullable, as Spark wants them."""

    arrow_fields: list[pa.Field]

    def decode(self, values: pa.BinaryArray) -> tuple[list[pa.Array], pa.StringArray]:
        """Return one column per field, and for each row null or the error."""


class RowDecoder:
    """A decoder that handles one value at a time: `row` returns a row or an error."""

    arrow_fields: list[pa.Field]

    def row(self, value: bytes) -> tuple[list[object] | None, str | None]:
        """Return the values of the columns, or None and the error."""
        raise NotImplementedError

    def decode(self, values: pa.BinaryArray) -> tuple[list[pa.Array], pa.StringArray]:
        decoded = [(None, None) if value is None else self.row(value) for value in values.to_pylist()]
        return assemble(self.arrow_fields, [row for row, _ in decoded], [error for _, error in decoded])


def not_utf8(error: UnicodeDecodeError) -> str:
    return f"not UTF-8: byte {error.object[error.start]:#04x} at position {error.start}"


def no_errors(count: int) -> pa.StringArray:
    return pa.nulls(count, pa.string())


def assemble(
    fields: Sequence[pa.Field], rows: Sequence[Sequence[object] | None], errors: Sequence[str | None]
) -> tuple[list[pa.Array], pa.StringArray]:
    """Build columns from rows; None is a row of nulls. A value that does not fit its column is an error of its row
    only."""
    arrays = _columns(fields, rows)
    if wrong := {place: text for array in arrays if isinstance(array, _Unfit) for place, text in array.items()}:
        rows = [None if place in wrong else row for place, row in enumerate(rows)]
        errors = [wrong.get(place, error) for place, error in enumerate(errors)]
        arrays = _columns(fields, rows)
    return arrays, _texts(errors)


def _texts(errors: Sequence[str | None]) -> pa.StringArray:
    """An error text may contain half of a surrogate pair, which is not valid text."""
    return pa.array([e if e is None else e.encode(errors="backslashreplace").decode() for e in errors], pa.string())


class _Unfit(dict[int, str]):
    """Return the rows whose value does not fit the column, with the reason."""


def _columns(fields: Sequence[pa.Field], rows: Sequence[Sequence[object] | None]) -> list[Any]:
    empty = [None] * len(fields)
    columns = zip(*(row if row is not None else empty for row in rows), strict=True) if rows else ([],) * len(fields)
    return [_column(field, column) for field, column in zip(fields, columns, strict=True)]


def _column(field: pa.Field, values: Sequence[object]) -> pa.Array | _Unfit:
    try:
        return pa.array(values, field.type)
    except _UNFIT:
        tried = ((place, _why_unfit(field, value)) for place, value in enumerate(values))
        return _Unfit({place: why for place, why in tried if why is not None})


def _why_unfit(field: pa.Field, value: object) -> str | None:
    try:
        pa.array([value], field.type)
    except _UNFIT as error:
        return f"field {field.name!r} does not fit {field.type}: {error}"
    return None


def concat(parts: Sequence[tuple[list[pa.Array], pa.StringArray]]) -> tuple[list[pa.Array], pa.StringArray]:
    if len(parts) == 1:
        return parts[0]
    columns = [pa.concat_arrays(list(column)) for column in zip(*(part[0] for part in parts), strict=True)]
    return columns, pa.concat_arrays([part[1] for part in parts])
