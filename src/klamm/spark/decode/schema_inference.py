"""Infers a schema from a sample of JSON values. A person reviews it once and stores it for later use."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import types as t

from klamm.errors import KlammError

_LONG = (-(1 << 63), (1 << 63) - 1)


@dataclass(frozen=True, slots=True)
class Inferred:
    """`schema` fits all `rows` sampled objects; `skipped` values were not JSON objects."""

    schema: t.StructType
    rows: int
    skipped: int
    left_out: tuple[str, ...] = ()
    """Fields that differ from an earlier one in case only; tables do not distinguish them."""


def infer_json(values: Iterable[bytes | None]) -> Inferred:
    """Whole numbers are bigint, others double; where kinds differ, a string. Fields in the order they were met.

    Of fields that differ in case only the first one stays.
    """
    found: t.DataType = t.StructType([])
    rows = skipped = 0
    for value in values:
        if value is None:
            continue
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            parsed = None
        if not isinstance(parsed, dict):
            skipped += 1
            continue
        rows += 1
        found = merge(found, _type_of(parsed))
    assert isinstance(found, t.StructType)
    distinct = _distinct(found.fields)
    left_out = tuple(field.name for field in found.fields if field not in distinct)
    schema = _settled(found)
    assert isinstance(schema, t.StructType)
    if not schema.fields:
        raise KlammError(
            f"Among {rows + skipped} values there is no JSON object with a field: no schema can be inferred."
        )
    return Inferred(schema, rows, skipped, left_out)


def merge(one: t.DataType, other: t.DataType) -> t.DataType:
    """Return the type that holds both."""
    if one == other or isinstance(other, t.NullType):
        return one
    if isinstance(one, t.NullType):
        return other
    if isinstance(one, t.StructType) and isinstance(other, t.StructType):
        return _merge_structs(one, other)
    if isinstance(one, t.ArrayType) and isinstance(other, t.ArrayType):
        return t.ArrayType(merge(one.elementType, other.elementType))
    if {type(one), type(other)} == {t.LongType, t.DoubleType}:
        return t.DoubleType()
    return t.StringType()


def _merge_structs(one: t.StructType, other: t.StructType) -> t.StructType:
    types = {field.name: field.dataType for field in one.fields}
    for field in other.fields:
        types[field.name] = merge(types[field.name], field.dataType) if field.name in types else field.dataType
    return t.StructType([t.StructField(name, kind) for name, kind in types.items()])


def _type_of(value: Any) -> t.DataType:
    if isinstance(value, dict):
        return t.StructType([t.StructField(name, _type_of(item)) for name, item in value.items()])
    if isinstance(value, list):
        element: t.DataType = t.NullType()
        for item in value:
            element = merge(element, _type_of(item))
        return t.ArrayType(element)
    if isinstance(value, int) and not isinstance(value, bool):
        return t.LongType() if _LONG[0] <= value <= _LONG[1] else t.DoubleType()
    kinds: dict[type, t.DataType] = {bool: t.BooleanType(), float: t.DoubleType(), str: t.StringType()}
    return kinds.get(type(value), t.NullType())


def _settled(kind: t.DataType) -> t.DataType:
    """A field that was always null becomes a string, and so does an object that was always empty."""
    if isinstance(kind, t.NullType):
        return t.StringType()
    if isinstance(kind, t.ArrayType):
        return t.ArrayType(_inner(kind.elementType))
    if isinstance(kind, t.StructType):
        return t.StructType([t.StructField(field.name, _inner(field.dataType)) for field in _distinct(kind.fields)])
    return kind


def _distinct(fields: list[t.StructField]) -> list[t.StructField]:
    first: dict[str, t.StructField] = {}
    for field in fields:
        first.setdefault(field.name.lower(), field)
    return list(first.values())


def _inner(kind: t.DataType) -> t.DataType:
    settled = _settled(kind)
    return t.StringType() if isinstance(settled, t.StructType) and not settled.fields else settled
