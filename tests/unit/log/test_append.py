"""Records that a leader accepts, changes and refuses."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace

import pytest

from klamm.errors import ErrorCode
from klamm.log import AppendOrigin, LogConfig, append_as_follower, append_as_leader
from klamm.protocol.compression import CompressionType
from klamm.protocol.record_batch import Record, RecordBatch, TimestampType, build_batch, records
from klamm.protocol.record_scan import body_outlines
from tests.unit.log.harness import NOW, Bench, append, batch, marker, read_batches, read_values


def test_offsets_and_leader_epoch_are_assigned_and_the_rest_is_kept() -> None:
    log = Bench().open()
    first = append(log, batch(b"a", b"b"), epoch=3)
    second = append(log, batch(b"c", compression=CompressionType.ZSTD), epoch=4)
    assert (first.base_offset, first.last_offset, first.records_count) == (0, 1, 2)
    assert (second.base_offset, second.last_offset, second.log_append_time_ms) == (2, 2, -1)
    stored = read_batches(log)
    assert [(b.base_offset, b.partition_leader_epoch, b.is_valid()) for b in stored] == [(0, 3, True), (2, 4, True)]
    sent = batch(b"c", compression=CompressionType.ZSTD)
    assert bytes(stored[1].view[16:]) == sent[16:], "nothing but offset and epoch changes"
    assert read_values(log) == [(0, b"a"), (1, b"b"), (2, b"c")]


def test_the_sent_bytes_are_not_touched() -> None:
    data = bytearray(batch(b"a"))
    before = bytes(data)
    log = Bench().open()
    append(log, batch(b"x"))
    append_as_leader(log, memoryview(data), 7)
    assert bytes(data) == before


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda b: b[:-1] + bytes([b[-1] ^ 1]), ErrorCode.CORRUPT_MESSAGE),
        (lambda b: b"", ErrorCode.INVALID_RECORD),
        (lambda b: b[:-1], ErrorCode.INVALID_RECORD),
        (lambda b: b + b, ErrorCode.INVALID_RECORD),
        (lambda b: b[:16] + b"\x01" + b[17:], ErrorCode.INVALID_RECORD),
        (lambda b: b[:16] + b"\x00" + b[17:], ErrorCode.INVALID_RECORD),
        (lambda b: b[:16] + b"\x09" + b[17:], ErrorCode.CORRUPT_MESSAGE),
        (lambda b: b[:8] + struct.pack(">i", 3) + b[12:], ErrorCode.CORRUPT_MESSAGE),
        (lambda b: struct.pack(">q", 5) + b[8:], ErrorCode.INVALID_RECORD),
    ],
)
def test_bytes_other_than_one_valid_batch_are_refused(damage: object, error: ErrorCode) -> None:
    log = Bench().open()
    result = append_as_leader(log, damage(batch(b"a", b"b")), 0)  # type: ignore[operator]
    assert result.error == error
    assert result.error_message
    assert (log.log_end_offset, log.size_bytes) == (0, 0)


@pytest.mark.parametrize("delta", [0, 5, -1])
def test_the_count_has_to_fit_the_offsets(delta: int) -> None:
    rows = [Record(timestamp=NOW, value=b"a"), Record(timestamp=NOW, value=b"b")]
    data = build_batch(rows, last_offset_delta=delta)
    assert append_as_leader(Bench().open(), data, 0).error == ErrorCode.INVALID_RECORD


def test_an_unknown_codec_is_refused() -> None:
    data = bytearray(batch(b"a"))
    data[22] = 5
    import crc32c

    struct.pack_into(">I", data, 17, crc32c.crc32c(bytes(data[21:])))
    assert append_as_leader(Bench().open(), data, 0).error == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_a_client_cannot_write_markers() -> None:
    assert append_as_leader(Bench().open(), marker(1, 0, abort=True), 0).error == ErrorCode.INVALID_RECORD


def test_a_producer_needs_a_sequence() -> None:
    data = batch(b"a", producer=(1, 0, -1))
    assert append_as_leader(Bench().open(), data, 0).error == ErrorCode.INVALID_RECORD


def test_too_large_a_batch() -> None:
    log = Bench(LogConfig(max_message_bytes=200)).open()
    assert append_as_leader(log, batch(b"x" * 200), 0).error == ErrorCode.MESSAGE_TOO_LARGE
    log = Bench(LogConfig(segment_bytes=200)).open()
    assert append_as_leader(log, batch(b"x" * 200), 0).error == ErrorCode.RECORD_LIST_TOO_LARGE
    assert append(log, batch(b"x" * 50)).base_offset == 0


def test_keyless_records_on_a_compacted_topic() -> None:
    log = Bench(LogConfig(cleanup_policy=frozenset({"compact"}))).open()
    rows = [Record(timestamp=NOW, key=k, value=b"v") for k in (b"a", None, b"c", None)]
    result = append_as_leader(log, build_batch(rows, compression=CompressionType.LZ4), 0)
    assert result.error == ErrorCode.INVALID_RECORD
    assert [e.batch_index for e in result.record_errors] == [1, 3]
    assert append(log, batch(b"v")).base_offset == 0


def test_timestamps_out_of_bounds() -> None:
    config = LogConfig(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=500)
    log = Bench(config).open()
    times = (NOW, NOW - 1001, NOW + 500, NOW + 501, -1)
    result = append_as_leader(log, build_batch([Record(timestamp=t, value=b"v") for t in times]), 0)
    assert result.error == ErrorCode.INVALID_TIMESTAMP
    assert [e.batch_index for e in result.record_errors] == [1, 3]
    after_only = replace(config, message_timestamp_before_max_ms=LogConfig().message_timestamp_before_max_ms)
    log.update_config(after_only)
    assert append_as_leader(log, batch(b"v", timestamp=NOW + 501), 0).error == ErrorCode.INVALID_TIMESTAMP
    assert append_as_leader(log, batch(b"v", timestamp=5), 0).error == ErrorCode.NONE


@pytest.mark.parametrize("codec", list(CompressionType))
def test_log_append_time(codec: CompressionType) -> None:
    bench = Bench(LogConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME))
    log = bench.open()
    bench.clock.ms = NOW + 77
    result = append(log, batch(b"a", b"b", timestamp=5, compression=codec))
    assert result.log_append_time_ms == NOW + 77
    (stored,) = read_batches(log)
    assert stored.is_valid()
    assert stored.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert {r.timestamp for r in records(stored)} == {NOW + 77}


def test_a_producer_cannot_claim_log_append_time() -> None:
    rows = [Record(timestamp=NOW, value=b"v")]
    claimed = build_batch(rows, timestamp_type=TimestampType.LOG_APPEND_TIME)
    log = Bench(LogConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME)).open()
    result = append_as_leader(log, claimed, 0)
    assert (result.error, len(result.record_errors)) == (ErrorCode.INVALID_TIMESTAMP, 1)
    log = Bench().open()
    append(log, claimed)
    (stored,) = read_batches(log)
    assert stored.is_valid()
    assert stored.timestamp_type is TimestampType.CREATE_TIME


@pytest.mark.parametrize("source", list(CompressionType))
@pytest.mark.parametrize("target", list(CompressionType))
def test_a_broker_side_codec(source: CompressionType, target: CompressionType) -> None:
    name = "uncompressed" if target is CompressionType.NONE else target.label
    log = Bench(LogConfig(compression_type=name)).open()
    append(log, batch(b"a" * 500, b"b", producer=(9, 1, 0), compression=source), epoch=2)
    (stored,) = read_batches(log)
    assert stored.is_valid()
    assert (stored.compression, stored.producer_id, stored.base_sequence) == (target, 9, 0)
    assert [(r.key, r.value, r.timestamp) for r in records(stored)] == [(b"k", b"a" * 500, NOW), (b"k", b"b", NOW + 1)]


def test_records_that_cannot_be_decoded_are_refused_where_they_are_looked_at() -> None:
    import crc32c

    data = bytearray(batch(b"abc"))
    data[61] = 0x7F
    struct.pack_into(">I", data, 17, crc32c.crc32c(bytes(data[21:])))
    log = Bench(LogConfig(cleanup_policy=frozenset({"compact"}))).open()
    assert append_as_leader(log, data, 0).error == ErrorCode.INVALID_RECORD


def test_markers_of_the_coordinator_are_taken() -> None:
    log = Bench(LogConfig(cleanup_policy=frozenset({"compact"}), compression_type="gzip")).open()
    append(log, batch(b"a", producer=(1, 0, 0), transactional=True))
    append(log, marker(1, 0, abort=False), origin=AppendOrigin.COORDINATOR)
    assert [b.is_control for b in read_batches(log)] == [False, True]


def test_a_follower_takes_offsets_and_epochs_as_sent() -> None:
    leader, follower = Bench().open(), Bench().open()
    for i in range(5):
        append(leader, batch(b"%d" % i, b"x"), epoch=i // 2)
    data = b"".join(bytes(b.view) for b in read_batches(leader))
    result = append_as_follower(follower, data + data[:30])
    assert (result.error, result.base_offset, result.last_offset) == (ErrorCode.NONE, 0, 9)
    assert read_values(follower) == read_values(leader)
    assert follower.leader_epochs.entries == leader.leader_epochs.entries
    assert append_as_follower(follower, data).error == ErrorCode.OFFSET_OUT_OF_RANGE
    damaged = bytearray(build_batch([Record(value=b"x")], base_offset=20))
    damaged[-1] ^= 1
    assert append_as_follower(follower, damaged).error == ErrorCode.CORRUPT_MESSAGE
    assert append_as_follower(follower, b"").error == ErrorCode.NONE
    assert follower.log_end_offset == 10


def test_a_follower_keeps_the_gaps_of_a_compacted_log() -> None:
    log = Bench().open()
    gap = build_batch([Record(value=b"x")], base_offset=1000, partition_leader_epoch=1)
    assert append_as_follower(log, gap).error == ErrorCode.NONE
    assert log.log_end_offset == 1001
    assert read_values(log, 0) == [(1000, b"x")]


def test_config_from_properties() -> None:
    config = LogConfig.from_properties(
        {
            "segment.bytes": "1000",
            "cleanup.policy": "compact, delete",
            "message.timestamp.type": "LogAppendTime",
            "preallocate": "true",
            "min.cleanable.dirty.ratio": "0.1",
            "unrelated.key": "x",
        }
    )
    assert (config.segment_bytes, config.is_compacted, config.is_deleted) == (1000, True, True)
    assert config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
    from klamm.errors import ConfigError

    with pytest.raises(ConfigError, match=r"segment\.bytes cannot be 'x'"):
        LogConfig.from_properties({"segment.bytes": "x"})


def test_records_of_a_coordinator_are_not_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group coordinator appends batches of very many offsets to a compacted topic, on the loop."""
    looks: list[int] = []

    def count(looked: RecordBatch, body: memoryview) -> Iterator[tuple[int, bool]]:
        looks.append(looked.record_count)
        return body_outlines(looked, body)

    monkeypatch.setattr("klamm.log.validator.body_outlines", count)
    log = Bench(LogConfig(cleanup_policy=frozenset({"compact"}))).open()
    append(log, batch(b"a", b"b"), origin=AppendOrigin.COORDINATOR)
    assert looks == []
    append(log, batch(b"c"))
    refused = append_as_leader(log, batch(b"d", key=None), 0)
    assert (refused.error, looks) == (ErrorCode.INVALID_RECORD, [1, 1])
    assert read_values(log) == [(0, b"a"), (1, b"b"), (2, b"c")]
