"""The compiled codec and a slow interpretive one say the same of good bytes and of bad ones."""

from __future__ import annotations

from random import Random

import pytest

from klamm.errors import ProtocolError
from klamm.protocol.wire import Message, decode, encode_bytes
from tests.wire.kio_bridge import Case, case_id, cases, our_class
from tests.wire.reference import Malformed, reference_decode, reference_encode
from tests.wire.samples import random_message

SEEDS = (*range(10), 32767)  # the last gives AlterClientQuotasRequest v1 a NaN


@pytest.mark.parametrize("case", cases(), ids=case_id)
def test_compiled_equals_reference(case: Case) -> None:
    for seed in SEEDS:
        assert_equals_reference(case, seed)


def assert_equals_reference(case: Case, seed: int) -> None:
    cls, version, rng = our_class(case), case[2], Random(seed)
    message = random_message(cls, version, rng, spread=2)
    raw = encode_bytes(message, version)
    assert raw == reference_encode(message, version)
    expected = reference_decode(cls, version, raw)
    for view in (raw, bytearray(raw), memoryview(raw), memoryview(b"?" + raw)[1:]):
        assert same(decode(cls, version, view), expected)
    for _ in range(4):
        damaged = bytearray(raw)
        for _ in range(rng.choice((1, 1, 2, 5))):
            if damaged:
                damaged[rng.randrange(len(damaged))] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        assert_same_verdict(
            cls, version, bytes(damaged[: rng.randint(0, len(damaged))] if rng.random() < 0.3 else damaged)
        )


def assert_same_verdict(cls: type[Message], version: int, raw: bytes) -> None:
    try:
        expected = reference_decode(cls, version, raw)
    except Malformed:
        with pytest.raises(ProtocolError):
            decode(cls, version, raw)
        return
    assert same(decode(cls, version, raw), expected)


def same(left: object, right: object) -> bool:
    """Compare by value, and by text where a NaN differs from itself."""
    return left == right or ("nan" in repr(left) and repr(left) == repr(right))
