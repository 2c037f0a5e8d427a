"""The second oracle: kafka-python, whose codec comes from Kafka's schema files, reads our bytes and writes them again.

Its field names are the snake case of Kafka's names, so this also shows that ours are Kafka's.
"""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections.abc import Iterator
from dataclasses import MISSING, fields
from random import Random
from typing import Any

import pytest

from klamm.model import ZERO_UUID
from klamm.protocol.messages import BY_KEY
from klamm.protocol.messages.api_versions import ApiVersionsResponse
from klamm.protocol.wire import Struct, decode, encode_bytes
from tests.wire.kio_bridge import Case, case_id, cases, our_class
from tests.wire.samples import layout, random_message

CONTROL_PLANE = {4, 5, 6, 7, 56, 67}


def kafka_python_classes() -> dict[str, Any]:
    """Every request and response class of kafka-python, whose import uses something deprecated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return _load_classes()


def _load_classes() -> dict[str, Any]:
    base = importlib.import_module("kafka.protocol.api_message").ApiMessage
    found: dict[str, Any] = {}
    for package in ("admin", "consumer", "metadata", "producer"):
        parent = importlib.import_module(f"kafka.protocol.{package}")
        modules = [
            importlib.import_module(m.name) for m in pkgutil.iter_modules(parent.__path__, parent.__name__ + ".")
        ]
        found |= {name: cls for module in modules for name, cls in vars(module).items()}
    found |= vars(importlib.import_module("kafka.protocol.sasl"))
    return {name: cls for name, cls in found.items() if isinstance(cls, type) and issubclass(cls, base)}


CLASSES = kafka_python_classes()


def known(case: Case) -> bool:
    theirs = CLASSES.get(our_class(case).__name__)
    return theirs is not None and theirs.valid_versions[0] <= case[2] <= theirs.valid_versions[1]


KNOWN = [case for case in cases() if known(case)]


def test_kafka_python_knows_all_but_the_control_plane() -> None:
    assert {case[0] for case in cases()} - {case[0] for case in KNOWN} == CONTROL_PLANE


@pytest.mark.parametrize("case", KNOWN, ids=case_id)
def test_same_bytes_and_names_as_kafka_python(case: Case) -> None:
    for seed in range(5):
        assert_same_bytes_and_names(case, seed)


def assert_same_bytes_and_names(case: Case, seed: int) -> None:
    cls, version = our_class(case), case[2]
    message = random_message(cls, version, Random(seed), spread=2)
    if cls is ApiVersionsResponse:
        message.error_code = 0  # with an error kafka-python reads v0 whatever the version
    raw = encode_bytes(message, version)
    theirs = CLASSES[cls.__name__].decode(raw, version=version)
    theirs._header = None
    assert bytes(theirs.encode()) == raw
    assert_same_values(decode(cls, version, raw)[0], theirs, version)


def assert_same_values(ours: Struct, theirs: Any, version: int) -> None:
    for slot in layout(type(ours), version).fields:
        if not slot.present or slot.name.endswith("authorized_operations"):
            continue  # kafka-python makes a set of the latter
        value = getattr(ours, slot.name)
        other = getattr(theirs, slot.name)
        if isinstance(value, Struct):
            assert_same_values(value, other, version)
        elif value and isinstance(value, list) and isinstance(value[0], Struct):
            for mine, its in zip(value, other, strict=True):
                assert_same_values(mine, its, version)
        elif slot.type.struct is None:
            assert value == other or (value, other) in (((), []), (ZERO_UUID, None)), slot.name


NULL_INSTEAD_OF_EMPTY = {"error_message", "documentation"}
"""Nullable strings without a default in the schema: ours say nothing as null, as brokers do."""


def defaults_that_differ(cls: Any, theirs: Any, path: str) -> Iterator[str]:
    for f in fields(cls):
        if f.name.endswith("authorized_operations") or f.name in NULL_INSTEAD_OF_EMPTY:
            continue
        other = theirs.fields[f.name]
        same = f.default == other.default or (f.default, other.default) in (((), []), (ZERO_UUID, None))
        if f.default is not MISSING and not same:
            yield f"{path}.{f.name}: {f.default!r} here, {other.default!r} there"
        inner = next(s.type for s in layout(cls, 0).fields if s.name == f.name)
        struct = (inner.element or inner).struct
        if struct is not None:
            yield from defaults_that_differ(struct, other, f"{path}.{f.name}")


def test_defaults_are_those_of_kafkas_schemas() -> None:
    ours = [cls for pair in BY_KEY.values() for cls in pair if cls.__name__ in CLASSES]
    assert len(ours) >= 90
    wrong = [line for cls in ours for line in defaults_that_differ(cls, CLASSES[cls.__name__]._struct, cls.__name__)]
    assert not wrong
