"""kio's messages beside ours: random kio entities, and the same values as one of our messages.

kio has a class for every version, names durations and timestamps without their unit and holds them as timedelta and
datetime; a zero UUID and the timestamp -1 are null.
"""

from __future__ import annotations

import dataclasses
import datetime
import types
import typing
from functools import cache
from random import Random
from typing import Any
from uuid import UUID

import pytest
from kio.index import UnknownEntity, load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode

from klamm.model import ZERO_UUID
from klamm.protocol.messages import BY_KEY
from klamm.protocol.wire import Message, Struct

TEXTS = ("", "a", "topic-1", "grüße", "日本", "🦆", "x" * 127, "y" * 128, "z" * 300)
BOUNDS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
MILLISECOND = datetime.timedelta(milliseconds=1)
ERRORS = tuple(ErrorCode)

Case = tuple[int, str, int]
NEWER_THAN_KIO = frozenset({(0, 12), (26, 5), (27, 2), (28, 5)})
"""(key, version) of Kafka 4 that kio does not have. Golden frames or another library cover them."""


def cases() -> list[Case]:
    """Every (key, direction, version)."""
    return [
        (key, direction, version)
        for key, pair in BY_KEY.items()
        for direction, cls in zip(("request", "response"), pair, strict=True)
        for version in cls.VERSIONS
    ]


def kio_cases() -> list[Case]:
    """Every case that kio has; it is an error to list one as newer that kio has learned meanwhile."""
    for key, version in NEWER_THAN_KIO:
        with pytest.raises(UnknownEntity):
            load_request_schema(key, version)
    return [case for case in cases() if (case[0], case[2]) not in NEWER_THAN_KIO]


def case_id(case: Case) -> str:
    key, direction, version = case
    return f"{BY_KEY[key][direction == 'response'].__name__}-v{version}"


def our_class(case: Case) -> type[Message]:
    return BY_KEY[case[0]][case[1] == "response"]


@cache
def kio_class(case: Case) -> Any:
    key, direction, version = case
    return load_request_schema(key, version) if direction == "request" else load_response_schema(key, version)


def random_entity(cls: Any, rng: Random) -> Any:
    """A kio entity with values at and between the bounds of their types."""
    hints = _type_hints(cls)
    return cls(**{f.name: _random_field(f, hints[f.name], rng) for f in dataclasses.fields(cls)})


@cache
def _type_hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _random_field(f: Any, hint: Any, rng: Random) -> Any:
    if f.default is not dataclasses.MISSING and rng.random() < 0.3:
        return f.default
    inner, nullable = _without_none(hint)
    if nullable and rng.random() < 0.3:
        return None
    kafka_type = f.metadata.get("kafka_type", "")
    if typing.get_origin(inner) is tuple:
        element = typing.get_args(inner)[0]
        return tuple(_random_value(element, kafka_type, rng) for _ in range(_random_count(rng, element)))
    return _random_value(inner, kafka_type, rng)


def _random_count(rng: Random, element: Any) -> int:
    if dataclasses.is_dataclass(element):
        return rng.choice((0, 1, 1, 2, 3))
    return rng.choice((0, 1, 2, 3, 5, 31, 32, 33, 127, 200))


def _random_value(inner: Any, kafka_type: str, rng: Random) -> Any:
    if dataclasses.is_dataclass(inner):
        return random_entity(inner, rng)
    if kafka_type in BOUNDS:
        return random_int(rng, BOUNDS[kafka_type])
    match kafka_type:
        case "uint16":
            return rng.randrange(1 << 16)
        case "bool":
            return rng.random() < 0.5
        case "float64":
            return rng.choice((0.0, -1.5, rng.uniform(-1e9, 1e9)))
        case "string":
            return rng.choice(TEXTS)
        case "bytes" | "records":
            return rng.randbytes(rng.choice((0, 1, 61, 127, 128, 5000)))
        case "uuid":
            return UUID(int=rng.getrandbits(128))
        case "error_code":
            return rng.choice(ERRORS)
        case "timedelta_i32":
            return random_int(rng, 31) * MILLISECOND
        case "timedelta_i64":
            return random_int(rng, 40) * MILLISECOND
        case "datetime_i64":
            return datetime.datetime.fromtimestamp(rng.randrange(1 << 32), datetime.UTC)
    raise AssertionError(kafka_type)


def random_int(rng: Random, bits: int) -> int:
    low, high = -(1 << bits), (1 << bits) - 1
    return rng.choice((low, high, 0, 1, -1, rng.randint(low, high)))


def _without_none(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint, False
    return next(arg for arg in typing.get_args(hint) if arg is not type(None)), True


def from_kio(entity: Any, cls: type[Struct], modules: Any) -> Any:
    """The same values as one of our messages. `modules` is where the nested classes of the message live."""
    names = {f.name: f for f in dataclasses.fields(typing.cast(Any, cls))}
    values = {}
    for f in dataclasses.fields(entity):
        name = f.name if f.name in names else f.name + "_ms"
        value = getattr(entity, f.name)
        if f.metadata.get("tag") is None or value != f.default:
            values[name] = _ours(value, f, names[name], modules)
    return cls(**values)


def _ours(value: Any, f: Any, our_field: Any, modules: Any) -> Any:
    if isinstance(value, tuple):
        return [_ours(item, f, our_field, modules) for item in value]
    if dataclasses.is_dataclass(value):
        return from_kio(value, nested_class(our_field, modules), modules)
    match f.metadata.get("kafka_type", ""), value:
        case "uuid", None:
            return ZERO_UUID
        case "datetime_i64", None:
            return -1
        case "datetime_i64", moment:
            return round(moment.timestamp() * 1000)
        case (("timedelta_i32" | "timedelta_i64"), duration):
            return duration // MILLISECOND
        case "error_code", code:
            return int(code)
    return value


def nested_class(our_field: Any, modules: Any) -> Any:
    """The struct that an annotation such as `Array[FetchTopic]` or `EpochEndOffset | None` names."""
    name = our_field.type.replace("NullableArray[", "").replace("Array[", "").rstrip("]").removesuffix(" | None")
    return getattr(modules, name)
