"""Every key, version and direction against kio, an independent codec: the bytes are the same in both directions."""

from __future__ import annotations

import io
import sys
from random import Random
from typing import Any

import pytest
from kio.serial import entity_reader, entity_writer

from klamm.protocol.wire import decode, encode_bytes
from tests.wire.kio_bridge import Case, case_id, from_kio, kio_cases, kio_class, our_class, random_entity


def kio_bytes(entity: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


@pytest.mark.parametrize("case", kio_cases(), ids=case_id)
def test_same_bytes_and_values_as_kio(case: Case) -> None:
    for seed in range(12):
        assert_same_bytes_and_values(case, seed)


def assert_same_bytes_and_values(case: Case, seed: int) -> None:
    cls, version = our_class(case), case[2]
    entity = random_entity(kio_class(case), Random(seed))
    theirs = kio_bytes(entity)
    ours = from_kio(entity, cls, sys.modules[cls.__module__])

    assert encode_bytes(ours, version) == theirs
    message, end = decode(cls, version, theirs)
    assert end == len(theirs)
    assert message == ours
    assert encode_bytes(message, version) == theirs
    assert entity_reader(type(entity))(theirs, 0) == (entity, len(theirs))


def test_header_flexibility_agrees_with_kio() -> None:
    from klamm.protocol.frames import request_header_version, response_header_version

    for case in kio_cases():
        key, direction, version = case
        kio_header = kio_class(case).__header_schema__.__version__
        choose = request_header_version if direction == "request" else response_header_version
        assert choose(key, version) == kio_header, case_id(case)
