"""The compiled decoder of record batches: equal to the plain one, and safe with any bytes."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import crc32c
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from klamm.errors import ProtocolError
from klamm.model import TopicPartition
from klamm.protocol.record_batch import (
    ATTRIBUTES_POSITION,
    CRC_POSITION,
    Record,
    TimestampType,
    batches,
    build_batch,
    records,
)
from klamm.spark.decode.batch_scan import CorruptBatchError, NothingAborted, scan
from klamm.spark.decode.record_columns import RecordDecoder
from klamm.spark.source.topic_schema import ARROW_TYPES

TP = TopicPartition("orders", 3)
SCHEMA = pa.schema([pa.field(name, kind) for name, kind in ARROW_TYPES.items()])
MAX_MS = 253_402_300_799_999
LAST = (1 << 63) - 1
"""Above every offset that a damaged header may have: a batch outside of what is asked for is not looked into."""

maybe_bytes = st.none() | st.binary(max_size=40)
headers = st.lists(st.tuples(st.text(max_size=8).filter(lambda s: "\ud800" not in s), maybe_bytes), max_size=3)
record = st.builds(
    lambda timestamp, key, value, headers: Record(timestamp=timestamp, key=key, value=value, headers=headers),
    st.integers(0, MAX_MS),
    maybe_bytes,
    maybe_bytes,
    headers,
)


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Batches as a log holds them: any codec, gaps between and inside, control batches, both kinds of time."""
    out = b""
    offset = draw(st.integers(0, 5))
    for rows in draw(st.lists(st.lists(record, min_size=1, max_size=8), min_size=1, max_size=5)):
        gaps = draw(st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows)))
        at, placed = offset, []
        for row, gap in zip(rows, gaps, strict=True):
            placed.append(row._replace(offset=at + gap))
            at += gap + 1
        out += build_batch(
            placed,
            base_offset=offset,
            compression=draw(st.integers(0, 4)),
            is_control=draw(st.integers(0, 5)) == 0,
            timestamp_type=draw(st.sampled_from(TimestampType)),
            last_offset_delta=at - offset - 1 + draw(st.integers(0, 2)),
        )
        offset = at + draw(st.integers(2, 5))
    return out


def expected(data: bytes, first: int, last: int) -> list[dict[str, Any]]:
    return [
        {
            "key": r.key,
            "value": r.value,
            "topic": TP.topic,
            "partition": TP.partition,
            "offset": r.offset,
            "timestamp": r.timestamp,
            "timestampType": int(batch.timestamp_type),
            "headers": [{"key": key, "value": value} for key, value in r.headers] or None,
        }
        for batch in batches(data)
        if not batch.is_control
        for r in records(batch)
        if first <= r.offset < last
    ]


def decoded(data: bytes, first: int, last: int, batch_bytes: int, schema: pa.Schema = SCHEMA) -> list[dict[str, Any]]:
    decoder = RecordDecoder(TP, schema, batch_bytes=batch_bytes)
    rows: list[dict[str, Any]] = []
    for batch in decoder.decode(scan(memoryview(data), TP), first, last, NothingAborted()):
        batch.validate(full=True)
        assert batch.schema == schema and batch.num_rows
        rows += [{**row, **_milliseconds(row)} for row in _with_plain_times(batch).to_pylist()]
    return rows


def _with_plain_times(batch: pa.RecordBatch) -> pa.Table:
    table = pa.Table.from_batches([batch])
    slot = table.schema.get_field_index("timestamp")
    return table.set_column(slot, "timestamp", table.column(slot).cast(pa.int64())) if slot >= 0 else table


def _milliseconds(row: dict[str, Any]) -> dict[str, int]:
    return {"timestamp": row["timestamp"] // 1000} if "timestamp" in row else {}


@settings(max_examples=150, deadline=None)
@given(logs(), st.integers(0, 60), st.integers(0, 60), st.sampled_from([1, 300, 1 << 20]))
def test_columns_are_what_the_plain_decoder_reads(data: bytes, first: int, last: int, batch_bytes: int) -> None:
    assert decoded(data, first, last, batch_bytes) == expected(data, first, last)


near_a_longer_number = st.sampled_from([0, 1, 62, 63, 64, 65, 8190, 8191, 8192, 8193, 20_000])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(*[near_a_longer_number] * 4, st.sampled_from([0, 1, 63, 64])), min_size=1, max_size=4))
def test_numbers_of_one_byte_two_and_more(shapes: list[tuple[int, ...]]) -> None:
    """Most records are read by a short way that knows numbers of two bytes at most; the others must be no different."""
    rows, offset = [], 0
    for key, value, later, gap, headers in shapes:
        rows.append(Record(offset, 1_000_000 + later, b"k" * key, b"v" * value, [("h", b"x")] * headers))
        offset += gap + 1
    data = build_batch(rows)
    assert decoded(data, 0, offset, 1 << 20) == expected(data, 0, offset)


@settings(max_examples=50, deadline=None)
@given(logs(), st.sets(st.sampled_from(list(ARROW_TYPES)), min_size=1))
def test_a_subset_of_the_columns_is_the_same_columns(data: bytes, names: set[str]) -> None:
    schema = pa.schema([field for field in SCHEMA if field.name in names])
    rows = [{name: row[name] for name in schema.names} for row in expected(data, 0, 1000)]
    assert decoded(data, 0, 1000, 1 << 20, schema) == rows


@settings(max_examples=100, deadline=None)
@given(logs(), st.integers(0, 400))
def test_an_unfinished_batch_at_the_end_is_left_out(data: bytes, cut: int) -> None:
    whole = data[: max(0, len(data) - cut)]
    kept = [b.position + b.size_bytes for b in batches(whole)]
    assert decoded(whole, 0, 1000, 1 << 20) == expected(whole[: max(kept, default=0)], 0, 1000)


@settings(max_examples=300, deadline=None)
@given(logs(), st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=6), st.booleans())
@example(build_batch([Record(timestamp=0)], compression=1), [(0, 64), (71, 0)], True)
def test_damaged_bytes_are_an_error_or_what_the_plain_decoder_reads(
    data: bytes, changes: list[tuple[int, int]], with_valid_checksums: bool
) -> None:
    damaged = bytearray(data)
    for position, value in changes:
        damaged[position % len(damaged)] = value
    if with_valid_checksums:
        _renew_checksums(damaged, data)
    try:
        rows = decoded(bytes(damaged), 0, LAST, 1 << 20)
    except CorruptBatchError:
        return
    try:
        wanted = expected(bytes(damaged), 0, LAST)
    except ProtocolError:
        # only what the plain decoder refuses for its text may be read here: keys of headers that are not UTF-8
        assert any(r["headers"] and any("\ufffd" in h["key"] for h in r["headers"]) for r in rows)
        return
    assert rows == wanted


def _renew_checksums(damaged: bytearray, original: bytes) -> None:
    for batch in batches(original):
        end = batch.position + batch.size_bytes
        crc = crc32c.crc32c(damaged[batch.position + ATTRIBUTES_POSITION : end])
        struct.pack_into(">I", damaged, batch.position + CRC_POSITION, crc)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 3))
def test_any_bytes_are_refused_or_hold_no_batch(data: bytes, magic: int) -> None:
    made = bytearray(data)
    if len(made) > 16:
        made[16] = magic
    with contextlib.suppress(CorruptBatchError):
        assert scan(memoryview(made), TP).is_empty


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, 12) | st.sampled_from([8191, 8192, (1 << 31) - 1]), min_size=1, max_size=6),
    st.integers(0, 12) | st.just((1 << 31) - 1),
    st.sampled_from([0, 5, (1 << 63) - 14]),
    st.sampled_from([0, 4]),
)
def test_offsets_of_a_batch_rise_and_end_at_its_last(deltas: list[int], last: int, base: int, compression: int) -> None:
    """Whatever is valid otherwise: the next batch begins after the last offset, so none may be above or there twice."""
    if base > 1 << 32:
        last = min(last, 12)
    rows = [Record(base + delta, 1000, None, b"v") for delta in deltas]
    data = build_batch(rows, base_offset=base, last_offset_delta=last, compression=compression)
    offset_column = pa.schema([SCHEMA.field("offset")])
    if deltas == sorted(set(deltas)) and deltas[-1] <= last:
        found = decoded(data, 0, (1 << 63) - 1, 1 << 20, offset_column)
        assert [row["offset"] for row in found] == [row.offset for row in rows]
    else:
        with pytest.raises(CorruptBatchError, match="holds records that are not what its header promises"):
            decoded(data, 0, (1 << 63) - 1, 1 << 20, offset_column)


@settings(max_examples=300, deadline=None)
@given(st.binary(min_size=7, max_size=120), st.integers(0, 20), st.integers(0, (1 << 62)))
def test_any_body_under_a_valid_header_is_safe(body: bytes, count: int, base_timestamp: int) -> None:
    plain = bytearray(build_batch([], base_timestamp=base_timestamp, last_offset_delta=(1 << 31) - 1)) + body
    struct.pack_into(">i", plain, 8, len(plain) - 12)
    struct.pack_into(">i", plain, 57, count)
    struct.pack_into(">I", plain, CRC_POSITION, crc32c.crc32c(bytes(plain[ATTRIBUTES_POSITION:])))
    try:
        rows = decoded(bytes(plain), 0, 1 << 62, 1 << 20)
    except CorruptBatchError:
        return
    try:
        assert rows == expected(bytes(plain), 0, 1 << 62)
    except ProtocolError:
        assert any(r["headers"] and any("\ufffd" in h["key"] for h in r["headers"]) for r in rows) or count == 0
