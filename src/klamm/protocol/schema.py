"""The layout of one version of a message: the DSL's annotations resolved into a plan for the compilers.

Nothing here runs at import or per message: a plan is made when a version is compiled, or to explain which value does
not fit.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from typing import Annotated, Any, Final, Union, cast, get_args, get_origin
from uuid import UUID

from klamm.lazy_dataclass import lazy_dataclass
from klamm.protocol.declaration import ALWAYS, Kind, Message, Struct, Versions
from klamm.protocol.runtime import STRING_MAX_BYTES

OBJECT_COST: Final = 48
VALUE_COSTS: Final = {"bool": 0, "int8": 0, "uuid": 144, "string": 80, "bytes": 48, "records": 384, "array": 72}
NUMBER_COST: Final = 40
REFERENCE_COST: Final = 10
"""Bytes of a slot of an object or of a list, including the spare capacity of lists."""


@lazy_dataclass(frozen=True, slots=True)
class Type:
    """A type in one version: a primitive, an array of `element`, or (kind None) the struct `fields`."""

    kind: Kind | None
    nullable: bool
    element: Type | None = None
    struct: type[Struct] | None = None
    fields: tuple[Slot, ...] = ()

    @property
    def is_array(self) -> bool:
        return self.element is not None

    @property
    def code(self) -> str:
        """The struct format of a fixed-size primitive, else an empty string."""
        return self.kind.code if self.kind is not None else ""


@lazy_dataclass(frozen=True, slots=True)
class Slot:
    """A field of a struct in one version. `present` says whether the version has it; `tag` is None for plain fields."""

    name: str
    type: Type
    present: bool
    tag: int | None
    default: Any

    @property
    def stored(self) -> Type:
        """The type on the wire. A tagged struct is never null: None stands for its defaults."""
        t = self.type
        return Type(None, False, struct=t.struct, fields=t.fields) if t.struct is not None else t


def plan(cls: type[Message], version: int) -> Type:
    """The layout of one version of a message."""
    return Type(None, False, struct=cls, fields=_slots(cls, version))


def is_flexible(cls: type[Message], version: int) -> bool:
    return version >= cls.FLEXIBLE


def _slots(cls: type[Struct], version: int) -> tuple[Slot, ...]:
    namespace = vars(sys.modules[cls.__module__])
    return tuple(_slot(f, eval(cast(str, f.type), namespace), version) for f in fields(cast(Any, cls)))


def _slot(f: Field[Any], hint: Any, version: int) -> Slot:
    versions: Versions = f.metadata.get("versions", ALWAYS)
    default = None if f.default is MISSING else f.default
    resolved = _resolve(hint, version, versions.nullable)
    return Slot(f.name, resolved, version in versions, versions.tag, default)


def _resolve(hint: Any, version: int, nullable_since: int | None) -> Type:
    if isinstance(hint, type) and issubclass(hint, Struct):
        return Type(None, False, struct=hint, fields=_slots(hint, version))
    if get_origin(hint) is not Annotated:
        inner = next(arg for arg in get_args(hint) if arg is not type(None))
        return Type(None, True, struct=inner, fields=_slots(inner, version))
    base, kind = get_args(hint)
    nullable = kind.nullable and (nullable_since is None or version >= nullable_since)
    if kind.name != "array":
        return Type(kind, nullable)
    if get_origin(base) is Union or kind.nullable:
        base = next(arg for arg in get_args(base) if arg is not type(None))
    return Type(kind, nullable, element=_resolve(get_args(base)[0], version, None))


def min_size(t: Type, flexible: bool) -> int:
    """Return the minimum size of a value of this type in bytes; counts are checked against it."""
    if t.code:
        return cast(Kind, t.kind).size
    if t.struct is None:
        return 1 if flexible else 2 if cast(Kind, t.kind).name == "string" else 4
    if t.nullable:
        return 1
    return sum(min_size(s.type, flexible) for s in plain(t)) + (1 if flexible else 0)


def cost(t: Type) -> int:
    """Return the approximate memory of a decoded value in bytes, without the contents of its arrays and strings."""
    if t.struct is not None:
        return OBJECT_COST + sum(REFERENCE_COST + (cost(s.type) if s.present else 0) for s in t.fields)
    return VALUE_COSTS.get(cast(Kind, t.kind).name, NUMBER_COST)


def plain(t: Type) -> Iterator[Slot]:
    return (s for s in t.fields if s.present and s.tag is None)


def tagged(t: Type) -> list[Slot]:
    return sorted((s for s in t.fields if s.present and s.tag is not None), key=lambda s: cast(int, s.tag))


def explain_misfit(msg: Message, version: int) -> str | None:
    """Name the first field whose value does not fit its type; None if all values fit."""
    return next(misfits(plan(type(msg), version), msg, ""), None)


def misfits(t: Type, value: Any, path: str) -> Iterator[str]:
    """Yield a sentence for every value inside `value` that does not fit its type."""
    if value is None:
        if not t.nullable:
            yield f"{path} is None, which this version does not allow"
    elif t.element is not None:
        for index, item in enumerate(value if hasattr(value, "__iter__") else ()):
            yield from misfits(t.element, item, f"{path}[{index}]")
        if not hasattr(value, "__len__"):
            yield f"{path} is {value!r}, not a sequence"
    elif t.struct is not None:
        if not isinstance(value, t.struct):
            yield f"{path} is {value!r}, not a {t.struct.__name__}"
            return
        for s in t.fields:
            inner = getattr(value, s.name, None)
            if s.present and not (s.tag is not None and inner is s.default):
                yield from misfits(s.type, inner, f"{path}.{s.name}" if path else s.name)
    else:
        yield from _primitive_misfits(cast(Kind, t.kind), value, path)


def _primitive_misfits(kind: Kind, value: Any, path: str) -> Iterator[str]:
    wanted: dict[str, tuple[type, ...]] = {"string": (str,), "uuid": (UUID,), "bytes": (bytes, bytearray, memoryview)}
    if kind.name in wanted:
        if not isinstance(value, wanted[kind.name]):
            yield f"{path} is {value!r}, not {kind.name}"
        elif kind.name == "string" and len(str(value).encode("utf-8", "replace")) > STRING_MAX_BYTES:
            yield f"{path} is a string of more than {STRING_MAX_BYTES} bytes"
    elif kind.code:
        try:
            struct.pack(">" + kind.code, value)
        except (struct.error, OverflowError, TypeError):
            yield f"{path} is {value!r}, which does not fit {kind.name}"
