"""Compressed batches with a right checksum and a broken inside: consumers would stop at them forever."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.errors import ErrorCode, ProtocolError
from klamm.log import LogConfig, append_as_leader
from klamm.protocol.compression import CompressionType, compress
from klamm.protocol.record_batch import Record, RecordBatch, TimestampType, build_batch, encode_record, records
from klamm.protocol.record_scan import check_records
from tests.unit.log.harness import NOW, Bench, append
from tests.unit.log.test_hostile_records import raw_batch

CODECS = [CompressionType.GZIP, CompressionType.SNAPPY, CompressionType.LZ4, CompressionType.ZSTD]
APPEND_TIME = LogConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME)


def record(index: int, value: bytes = b"value", **fields: object) -> bytes:
    return encode_record(Record(value=value, **fields), index, 0)  # type: ignore[arg-type]


def changed(position: int, byte: int) -> bytes:
    """Record 0 with another byte: 0 is its length, 4 the key's length, 5 the value's length, 11 the header count."""
    data = bytearray(record(0))
    data[position] = byte
    return bytes(data)


BROKEN = {
    "one record too few": record(0),
    "one record too many": record(0) + record(1) + record(2),
    "a byte after the last record": record(0) + record(1) + b"\0",
    "a gap in the offsets": record(0) + record(5),
    "offsets in reverse": record(1) + record(0),
    "one offset twice": record(0) + record(0),
    "a negative offset": record(0) + record(-1),
    "a length that is too large": changed(0, 26) + record(1),
    "a length that is too small": changed(0, 20) + record(1),
    "a negative length": changed(0, 1) + record(1),
    "a key of -2 bytes": changed(4, 3) + record(1),
    "a value beyond its record": changed(5, 120) + record(1),
    "-1 headers": changed(11, 1) + record(1),
    "60 headers": changed(11, 120) + record(1),
    "nothing": b"",
}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("config", [LogConfig(), APPEND_TIME], ids=["plain", "append time"])
@pytest.mark.parametrize("what", BROKEN)
def test_broken_records_inside_are_refused(what: str, config: LogConfig, codec: CompressionType) -> None:
    log = Bench(config).open()
    result = append_as_leader(log, raw_batch(compress(codec, BROKEN[what]), 2, codec=codec), 0)
    assert result.error == ErrorCode.INVALID_RECORD, result
    assert log.log_end_offset == 0


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    "damage",
    [
        lambda packed: b"",
        lambda packed: bytes(range(7, 90)),
        lambda packed: packed[: len(packed) // 2],
        lambda packed: packed[:-1],
    ],
    ids=["empty", "other bytes", "half", "one byte short"],
)
def test_broken_streams_are_refused(damage: Callable[[bytes], bytes], codec: CompressionType) -> None:
    packed = compress(codec, b"".join(record(i, bytes(range(200))) for i in range(50)))
    log = Bench().open()
    assert append_as_leader(log, raw_batch(packed, 50, codec=codec), 0).error == ErrorCode.NONE
    result = append_as_leader(log, raw_batch(damage(packed), 50, codec=codec), 0)
    assert result.error == ErrorCode.INVALID_RECORD, result
    assert log.log_end_offset == 50


@pytest.mark.parametrize("codec", CODECS)
def test_whole_records_of_all_shapes_pass(codec: CompressionType) -> None:
    shapes = [
        Record(timestamp=NOW),
        Record(timestamp=NOW + 100, key=b"", value=b""),
        Record(timestamp=NOW + 100_000, key=b"k" * 200, value=b"v" * 20_000),
        Record(timestamp=NOW - 5, key=b"k", value=b"v", headers=(("h", None), ("h" * 300, b"x"))),
        Record(timestamp=NOW, key=b"k" * 63, value=b"v" * 64),
    ]
    log = Bench().open()
    append(log, build_batch((shapes[i % 5] for i in range(200)), compression=codec))
    many = (Record(timestamp=NOW, value=b"x" * (i % 3)) for i in range(20_000))
    append(log, build_batch(many, compression=codec))
    assert log.log_end_offset == 20_200


@pytest.mark.parametrize("wrong", [1, 63, 64, 65, 8191, 8192, 8193])
def test_offsets_are_checked_where_their_width_changes(wrong: int) -> None:
    body = [encode_record(Record(value=b"v"), i, 0) for i in range(8200)]
    check_records(memoryview(b"".join(body)), 8200)
    body[wrong] = encode_record(Record(value=b"v"), wrong - 1, 0)
    with pytest.raises(ProtocolError):
        check_records(memoryview(b"".join(body)), 8200)


def agrees(body: bytes, count: int) -> bool:
    """Whether `check_records` accepts exactly the bodies that decode into records with the offsets 0, 1, 2 ..."""
    batch = RecordBatch(memoryview(raw_batch(body, count)))
    try:
        is_whole = [r.offset for r in records(batch)] == list(range(count))
    except ProtocolError as error:
        if "UTF-8" in str(error):
            return True
        is_whole = False
    try:
        check_records(memoryview(body), count)
    except ProtocolError:
        return not is_whole
    return is_whole


BYTES = st.none() | st.binary(max_size=3) | st.integers(60, 70).map(bytes) | st.just(bytes(8200))
ROWS = st.lists(
    st.builds(
        Record,
        timestamp=st.sampled_from((0, 1, 63, 64, 5000, 8192, 1 << 40, -1, -70)),
        key=BYTES,
        value=BYTES,
        headers=st.just(()) | st.just((("h", b"v"), ("", None))),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=150, deadline=None)
@given(rows=ROWS, first=st.sampled_from((0, 60)), data=st.data())
def test_the_check_accepts_what_decodes(rows: list[Record], first: int, data: st.DataObject) -> None:
    fillers = b"".join(encode_record(Record(), i, 0) for i in range(first))
    body = fillers + b"".join(encode_record(r, first + i, r.timestamp) for i, r in enumerate(rows))
    count = first + len(rows)
    check_records(memoryview(body), count)
    broken = bytearray(body)
    for _ in range(data.draw(st.integers(1, 2))):
        position = data.draw(st.integers(len(fillers), len(broken) - 1))
        broken[position] = data.draw(
            st.integers(0, 255) | st.sampled_from((broken[position] ^ 1, broken[position] ^ 128))
        )
    assert agrees(bytes(broken), count)
    assert agrees(body[: data.draw(st.integers(len(fillers), len(body)))], count)
