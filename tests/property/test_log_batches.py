"""Hostile record batches: nothing but ProtocolError comes out of the codec, and an append never raises."""

from __future__ import annotations

import struct

import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.errors import ErrorCode, ProtocolError
from klamm.log import LogConfig, append_as_leader
from klamm.protocol.record_batch import Record, batches, build_batch, records
from tests.unit.log.harness import Bench

CAP = 100_000
ROWS = st.lists(
    st.builds(
        Record,
        offset=st.just(-1),
        timestamp=st.integers(-1, 2**60),
        key=st.none() | st.binary(max_size=30),
        value=st.none() | st.binary(max_size=200),
        headers=st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3),
    ),
    min_size=1,
    max_size=6,
)
DAMAGE = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=6)


def decode_all(data: bytes) -> None:
    try:
        for batch in batches(data):
            for _ in records(batch, CAP):
                pass
    except ProtocolError:
        pass


@given(st.binary(max_size=300))
@settings(max_examples=500, deadline=None)
def test_any_bytes(data: bytes) -> None:
    decode_all(data)
    decode_all(data[:8] + struct.pack(">i", max(len(data) - 12, 0)) + data[12:16] + b"\x02" + data[17:])


@given(ROWS, st.integers(0, 4), DAMAGE, st.booleans())
@settings(max_examples=500, deadline=None)
def test_damaged_batches(rows: list[Record], codec: int, damage: list[tuple[int, int]], fix_crc: bool) -> None:
    data = bytearray(build_batch(rows, compression=codec))
    for position, value in damage:
        data[position % len(data)] = value
    if fix_crc:
        struct.pack_into(">I", data, 17, crc32c.crc32c(bytes(data[21:])))
    decode_all(bytes(data))
    config = LogConfig(cleanup_policy=frozenset({"compact"}), compression_type="lz4")
    log = Bench(config).open()
    result = append_as_leader(log, bytes(data), 0)
    assert isinstance(result.error, ErrorCode)
    assert (result.error == ErrorCode.NONE) == (log.log_end_offset > 0)


@given(ROWS, st.integers(0, 4))
@settings(max_examples=200, deadline=None)
def test_round_trip(rows: list[Record], codec: int) -> None:
    (batch,) = batches(build_batch(rows, base_offset=5, compression=codec))
    assert batch.is_valid()
    found = [(r.timestamp, r.key, r.value, [tuple(h) for h in r.headers]) for r in records(batch)]
    assert found == [(r.timestamp, r.key, r.value, [tuple(h) for h in r.headers]) for r in rows]
    assert [r.offset for r in records(batch)] == list(range(5, 5 + len(rows)))
