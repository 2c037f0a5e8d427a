"""Requests of any version from values by field name, and the error codes of responses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from klamm.protocol.schema import Type

LEAST: Final = {"string": "", "bytes": b"", "records": b"", "array": (), "bool": False, "uuid": None}
NAMES: Final = ("name", "topic", "group_id", "resource_name", "index", "partition", "partition_index", "key")


def build(layout: Type, fields: dict[str, Any]) -> Any:
    """A struct of this version from values by field name."""
    values: dict[str, Any] = {}
    for slot in layout.fields:
        if not slot.present:
            continue
        if slot.name in fields:
            values[slot.name] = _value(slot.type, fields[slot.name])
        elif slot.default is None and not slot.type.nullable and slot.tag is None:
            kind = slot.type.kind.name if slot.type.kind is not None else ""
            if kind != "uuid":
                values[slot.name] = build(slot.type, {}) if slot.type.struct is not None else LEAST.get(kind, 0)
    assert layout.struct is not None
    return layout.struct(**values)


def _value(kind: Type, value: Any) -> Any:
    if value is None:
        return None
    if kind.element is not None:
        return [_value(kind.element, item) for item in value]
    return build(kind, value) if kind.struct is not None else value


def codes(
    layout: Type, value: Any, path: str = "", fields: tuple[str, ...] = ("error_code",)
) -> Iterator[tuple[str, int]]:
    """All error codes of a response, each with the names around it."""
    names = [str(getattr(value, s.name)) for s in layout.fields if s.present and s.name in NAMES]
    path = "/".join([path, *names])
    for slot in layout.fields:
        inner = getattr(value, slot.name, None)
        if not slot.present or inner is None:
            continue
        if slot.name in fields:
            yield path, inner
        elif slot.type.struct is not None:
            yield from codes(slot.type, inner, path, fields)
        elif slot.type.element is not None and slot.type.element.struct is not None:
            for item in inner:
                yield from codes(slot.type.element, item, path, fields)
