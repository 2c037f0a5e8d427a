"""Random messages of our own classes, for tests that need no second codec."""

from __future__ import annotations

from random import Random
from typing import Any
from uuid import UUID

from klamm.protocol.schema import Type, plan
from klamm.protocol.wire import Message

TEXTS = ("", "a", "orders", "grüße", "日本", "🦆", "x" * 127, "y" * 128, "z" * 300)
INTEGER_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


_LAYOUTS: dict[tuple[Any, int], Type] = {}


def layout(cls: Any, version: int) -> Type:
    """The plan of a class in one version, made once."""
    if (cls, version) not in _LAYOUTS:
        _LAYOUTS[cls, version] = plan(cls, version)
    return _LAYOUTS[cls, version]


def random_message(cls: type[Message], version: int, rng: Random, *, spread: int = 3) -> Any:
    """A message whose every field of this version has a random value; arrays hold up to `spread` elements."""
    return _value(layout(cls, version), rng, spread)


def _value(t: Type, rng: Random, spread: int) -> Any:
    if t.nullable and rng.random() < 0.2:
        return None
    if t.element is not None:
        longest = 40 if t.element.code and rng.random() < 0.1 else spread
        return [_value(t.element, rng, spread) for _ in range(rng.randint(0, longest))]
    if t.struct is not None:
        return t.struct(**{s.name: _value(s.type, rng, spread) for s in t.fields if s.present})
    assert t.kind is not None
    return _primitive(t.kind.name, rng)


def _primitive(name: str, rng: Random) -> Any:
    if name in INTEGER_BITS:
        half = 1 << (INTEGER_BITS[name] - 1)
        return rng.choice((0, 1, -1, half - 1, -half, rng.randrange(-half, half)))
    match name:
        case "bool":
            return rng.random() < 0.5
        case "uint16" | "uint32":
            return rng.randrange(1 << (16 if name == "uint16" else 32))
        case "float64":
            return rng.choice((0.0, -1.5, rng.uniform(-1e9, 1e9)))
        case "uuid":
            return UUID(int=rng.choice((0, rng.getrandbits(128))))
        case "string":
            return rng.choice(TEXTS)
    return rng.randbytes(rng.choice((0, 1, 61, 127, 128, 300)))
