"""The check of many records at a time accepts and refuses what the check of each record does."""

from __future__ import annotations

from random import Random

import pytest

from klamm.errors import ProtocolError
from klamm.protocol import record_scan
from klamm.protocol.record_batch import RECORD_BATCH_OVERHEAD, Record, build_batch
from klamm.protocol.record_scan import check_records
from klamm.protocol.record_varint import read_varint, write_varint

COUNTS = (1, 2, 7, 8, 9, 63, 64, 65, 72, 130)


def is_accepted(body: memoryview, count: int) -> bool:
    try:
        check_records(body, count)
    except ProtocolError:
        return False
    return True


def is_well_formed(body: memoryview, count: int) -> bool:
    """A reader that knows no shortcut."""
    position = 0
    try:
        for index in range(count):
            length, position = read_varint(body, position)
            end = position + length
            _, at = read_varint(body, position + 1)
            offset, at = read_varint(body, at)
            for least in (-1, -1):
                size, at = read_varint(body, at)
                at += max(size, 0)
                if size < least:
                    return False
            headers, at = read_varint(body, at)
            if length < 0 or offset != index or not 0 <= headers <= len(body):
                return False
            for _ in range(headers):
                for least in (0, -1):
                    size, at = read_varint(body, at)
                    at += max(size, 0)
                    if size < least:
                        return False
            if at != end:
                return False
            position = end
    except (IndexError, ProtocolError):
        return False
    return position == len(body)


def records(rng: Random, count: int) -> list[Record]:
    """Records of one size, of similar sizes, or of any."""
    sizes = rng.choice([(0, 1), (50, 51), (63, 64), (57, 72), (120, 121), (0, 150), (300, 400), (8_180, 8_195)])
    keys = rng.choice([(None,), (b"key",), (b"", b"k" * 63), (None, b"k"), (b"k" * 64,), tuple(map(bytes, range(9)))])
    headers = rng.choice([(), (("h", b"value"),), (("a", b""), ("b" * 70, None), ("c", bytes(55)))])
    latest = rng.choice([1, 63, 64, 200, 9_000])
    return [
        Record(
            timestamp=1_000 + rng.randrange(latest),
            key=rng.choice(keys),
            value=rng.randbytes(rng.randrange(*sizes)),
            headers=headers,
        )
        for _ in range(count)
    ]


def body_of(rows: list[Record]) -> bytearray:
    return bytearray(build_batch(rows)[RECORD_BATCH_OVERHEAD:])


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("count", COUNTS)
def test_built_records_are_accepted(count: int, seed: int) -> None:
    body = memoryview(body_of(records(Random(f"{seed} {count}"), count)))
    assert is_accepted(body, count)
    assert not is_accepted(body[:-1], count)
    assert not is_accepted(body, count + 1)
    assert count == 1 or not is_accepted(body, count - 1)


@pytest.mark.parametrize("value", [b"\xfe\xff\xff\xff\xff\x7f", b"\xfe\xff\x7f\x00\x00"])
def test_timestamps_of_three_bytes_do_not_shift_the_other_fields(value: bytes) -> None:
    """Read as lengths of headers, the bytes of these values would reach behind the batch."""
    rows = [Record(timestamp=1_000 + (10_000 if i else 0), value=value) for i in range(130)]
    body = memoryview(body_of(rows))
    assert is_well_formed(body, 130)
    assert is_accepted(body, 130)


def small_record(offset: int, value: bytes) -> bytearray:
    body = bytearray(2)
    write_varint(body, offset)
    body += b"\x01"
    write_varint(body, len(value))
    body += value + b"\x00"
    record = bytearray()
    write_varint(record, len(body))
    return record + body


@pytest.mark.parametrize("place", [0, 20, 39])
def test_a_length_of_three_bytes_is_not_taken_for_one_of_two(place: int) -> None:
    """Its first two bytes say 8,192 if the second is not seen to continue, and the key brings that below the limit."""
    large = bytearray(2)
    write_varint(large, place)
    write_varint(large, 63)
    large += bytes(63)
    value_bytes = 8_192 - len(large) - 3
    write_varint(large, value_bytes)
    large += bytes(value_bytes + 1)
    assert len(large) == 8_192
    body = bytearray()
    for i in range(40):
        body += b"\x80\x80" + large if i == place else small_record(i, bytes(10 + i % 3))
    assert not is_well_formed(memoryview(body), 40)
    assert not is_accepted(memoryview(body), 40)


@pytest.mark.parametrize("value", [b"\xff" * 8_300, b"\x80" * 20_000])
def test_a_large_record_before_small_ones_is_accepted(value: bytes) -> None:
    rows = [Record(timestamp=1_000, value=value if not i else bytes(i % 3), headers=(("h", b"v"),)) for i in range(60)]
    assert is_accepted(memoryview(body_of(rows)), 60)


@pytest.mark.parametrize("same_size", [True, False])
def test_batches_with_offsets_of_three_bytes_are_accepted(same_size: bool) -> None:
    rng = Random(7)
    rows = [Record(timestamp=1000, value=bytes(50 if same_size else rng.randrange(150))) for _ in range(8_200)]
    assert is_accepted(memoryview(body_of(rows)), 8_200)


@pytest.mark.parametrize("seed", range(500))
def test_changed_bytes_are_judged_as_by_a_reader(seed: int) -> None:
    """The bytes before, at and behind the boundaries of records are changed most often: they have the lengths."""
    rng = Random(seed)
    count = rng.choice(COUNTS)
    body = body_of(records(rng, count))
    starts, position = [], 0
    for _ in range(count):
        starts.append(position)
        length, position = read_varint(memoryview(body), position)
        position += length
    for _ in range(30):
        changed = bytearray(body)
        for _ in range(rng.randrange(1, 3)):
            start = rng.choice(starts)
            at = rng.choice([rng.randrange(len(body)), min(start + rng.randrange(14), len(body) - 1), start - 1])
            changed[at] = rng.choice([rng.randrange(256), changed[at] ^ 1 << rng.randrange(8)])
        view = memoryview(changed)
        assert is_accepted(view, count) == is_well_formed(view, count)


@pytest.mark.parametrize("seed", range(60))
def test_ordinary_records_are_checked_many_at_a_time(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one size, or of different sizes with keys, wide timestamps and equal headers: only a rest is read alone."""
    rng = Random(seed)
    sizes = rng.choice([(100, 101), (40, 150), (300, 900)])
    headers = rng.choice([(), (("traceparent", bytes(55)), ("h", None))])
    keys = rng.choice([(None,), (b"one",), (b"short", b"a longer key")])
    rows = [
        Record(timestamp=i % rng.choice([1, 60, 500]), key=rng.choice(keys), value=bytes([1]) * rng.randrange(*sizes))
        for i in range(150)
    ]
    body = memoryview(body_of([row._replace(headers=headers) for row in rows]))
    alone = 0
    check_each = record_scan._check_each

    def count(data: memoryview, position: int, first: int, end: int) -> int:
        nonlocal alone
        alone += end - first
        return check_each(data, position, first, end)

    monkeypatch.setattr(record_scan, "_check_each", count)
    check_records(body, len(rows))
    assert alone < 8
