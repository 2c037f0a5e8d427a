"""The quick walk over the lengths of records accepts and refuses what the plain walk does."""

from __future__ import annotations

from random import Random

import pytest

from klamm.errors import ProtocolError
from klamm.protocol.record_batch import RECORD_BATCH_OVERHEAD, Record, build_batch
from klamm.protocol.record_scan import check_framing
from klamm.protocol.record_varint import read_varint


def lengths_add_up(data: memoryview, count: int) -> bool:
    position = RECORD_BATCH_OVERHEAD
    try:
        for _ in range(count):
            length, position = read_varint(data, position)
            if length < 0:
                return False
            position += length
    except (IndexError, ProtocolError):
        return False
    return position == len(data)


def is_accepted(data: memoryview, count: int) -> bool:
    try:
        check_framing(data, RECORD_BATCH_OVERHEAD, count)
    except ProtocolError:
        return False
    return True


def batch(rng: Random, count: int, *, same_size: bool) -> bytearray:
    size = rng.choice([0, 1, 50, 56, 57, 58, 120, 300])
    values = [b"v" * (size if same_size else rng.randrange(150)) for _ in range(count)]
    return bytearray(build_batch([Record(timestamp=1000, value=value) for value in values]))


@pytest.mark.parametrize("same_size", [True, False])
@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 63, 64, 65, 130, 8200])
def test_a_built_batch_is_accepted(count: int, same_size: bool) -> None:
    data = memoryview(batch(Random(count), count, same_size=same_size))
    assert is_accepted(data, count)
    assert not is_accepted(data[:-1], count)
    assert not is_accepted(data, count + 1)
    assert count == 1 or not is_accepted(data, count - 1)


@pytest.mark.parametrize("seed", range(300))
def test_changed_bytes_are_judged_as_by_the_plain_walk(seed: int) -> None:
    rng = Random(seed)
    count = rng.choice([2, 8, 9, 64, 66, 130])
    built = batch(rng, count, same_size=rng.random() < 0.7)
    built[rng.randrange(RECORD_BATCH_OVERHEAD, len(built))] = rng.randrange(256)
    data = memoryview(built)
    if lengths_add_up(data, count):
        return  # the first and the last record are looked into as well: that may refuse more
    assert not is_accepted(data, count)


def test_a_negative_length_in_the_middle_is_refused() -> None:
    built = batch(Random(1), 3, same_size=True)
    length, body = read_varint(memoryview(built), RECORD_BATCH_OVERHEAD)
    second = body + length
    assert built[second] & 1 == 0
    built[second] |= 1
    assert not is_accepted(memoryview(built), 3)
