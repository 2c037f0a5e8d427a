"""Reading by offset, by time and by epoch."""

from __future__ import annotations

import pytest

from klamm.errors import ErrorCode
from klamm.log import Log, LogConfig, ReadResult
from klamm.log.leader_epoch_cache import EpochEntry
from klamm.protocol.record_batch import batches
from tests.unit.log.harness import NOW, Bench, append, batch, read_batches, read_values

SMALL = LogConfig(segment_bytes=2000, index_interval_bytes=200)


def filled(count: int = 100, config: LogConfig = SMALL) -> Log:
    log = Bench(config).open()
    for i in range(count):
        append(log, batch(b"%03d" % i, b"x" * 20, timestamp=NOW + 10 * i), epoch=i // 30)
    log.update_high_watermark(log.log_end_offset)
    return log


def read(log: Log, offset: int, max_bytes: int, **options: int | bool) -> list[tuple[int, int]]:
    max_offset = int(options.pop("max_offset", log.log_end_offset))
    result = log.read(offset, max_bytes, max_offset=max_offset, **options)  # type: ignore[arg-type]
    assert isinstance(result, ReadResult)
    data = bytes(result.records)
    found = list(batches(data))
    assert sum(b.size_bytes for b in found) == len(data), "only whole batches"
    return [(b.base_offset, b.last_offset) for b in found]


def test_every_offset_gives_the_batch_that_holds_it() -> None:
    log = filled()
    assert len(log.segments) >= 5
    for offset in range(log.log_end_offset):
        assert read(log, offset, 1)[0] == (offset // 2 * 2, offset // 2 * 2 + 1)


def test_max_bytes_is_kept_but_for_the_first_batch() -> None:
    log = filled(config=LogConfig(index_interval_bytes=200))
    size = len(batch(b"000", b"x" * 20))
    assert len(read(log, 0, 10 * size)) == 10
    assert len(read(log, 0, 10 * size - 1)) == 9
    assert len(read(log, 0, 0)) == 1
    assert read(log, 0, size - 1, min_one_message=False) == []
    assert read(log, 0, size, min_one_message=False) == [(0, 1)]


@pytest.mark.parametrize("max_bytes", [1, 300, 1000, 5000, 1 << 20])
def test_steps_of_any_size_give_everything_once(max_bytes: int) -> None:
    log = filled()
    assert [b.base_offset for b in read_batches(log, 0, max_bytes)] == list(range(0, 200, 2))


def test_nothing_is_read_beyond_max_offset() -> None:
    log = filled()
    for max_offset in range(0, log.log_end_offset + 1):
        found = []
        for segment in log.segments:
            found += [b for b in read(log, segment.base_offset, 1 << 20, max_offset=max_offset)]
        assert found == [(i, i + 1) for i in range(0, max_offset - 1, 2)]


def test_offsets_out_of_range() -> None:
    log = filled()
    assert log.read(201, 100, max_offset=300) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.read(-1, 100, max_offset=300) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert read(log, 200, 100) == []
    assert log.increment_log_start_offset(50) == ErrorCode.NONE
    assert log.read(49, 100, max_offset=300) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert read(log, 51, 1)[0] == (50, 51)
    assert read(log, 120, 100, max_offset=100) == []


def test_by_timestamp() -> None:
    log = filled()
    for timestamp in range(NOW - 5, NOW + 1000, 7):
        expected = next(
            (
                (2 * i + j, NOW + 10 * i + j, i // 30)
                for i in range(100)
                for j in range(2)
                if NOW + 10 * i + j >= timestamp
            ),
            None,
        )
        found = log.offset_for_timestamp(timestamp)
        assert not isinstance(found, ErrorCode)
        assert expected == (found and (found.offset, found.timestamp, found.leader_epoch))


def test_the_newest_record_is_not_always_the_last() -> None:
    log = Bench(SMALL).open()
    assert log.max_timestamp_offset() is None
    for i, timestamp in enumerate((NOW, NOW + 500, NOW + 100)):
        append(log, batch(b"a", b"b", b"c", timestamp=timestamp), epoch=i)
    found = log.max_timestamp_offset()
    assert found is not None
    assert not isinstance(found, ErrorCode)
    assert (found.offset, found.timestamp, found.leader_epoch) == (5, NOW + 502, 1)


def test_by_epoch() -> None:
    log = filled()
    assert log.leader_epochs.entries == [EpochEntry(0, 0), EpochEntry(1, 60), EpochEntry(2, 120), EpochEntry(3, 180)]
    assert log.end_offset_for_epoch(1) == (1, 120)
    assert log.end_offset_for_epoch(3) == (3, 200)
    assert log.end_offset_for_epoch(4) == (-1, -1)
    assert log.end_offset_for_epoch(-1) == (-1, -1)
    log.increment_log_start_offset(130)
    assert log.leader_epochs.entries == [EpochEntry(2, 130), EpochEntry(3, 180)]
    assert log.end_offset_for_epoch(0) == (0, 130)


def test_epochs_skipped_and_conflicting() -> None:
    cache = Bench().open().leader_epochs
    cache.assign(2, 10)
    cache.assign(5, 20)
    cache.assign(5, 30)
    assert cache.entries == [EpochEntry(2, 10), EpochEntry(5, 20)]
    assert cache.end_offset_for(3, 40) == (2, 20)
    assert cache.end_offset_for(1, 40) == (1, 10)
    assert [cache.epoch_for_offset(o) for o in (9, 10, 19, 20, 99)] == [None, 2, 2, 5, 5]
    cache.assign(6, 15)
    assert cache.entries == [EpochEntry(2, 10), EpochEntry(6, 15)]
    cache.truncate_from_end(15)
    assert cache.entries == [EpochEntry(2, 10)]


@pytest.mark.parametrize("offset", [0, 1, 2, 60, 61, 63, 119, 199, 200])
def test_truncation(offset: int) -> None:
    bench = Bench(SMALL)
    log = bench.open()
    for i in range(100):
        append(log, batch(b"%03d" % i, b"x" * 20, timestamp=NOW + 10 * i), epoch=i // 30)
    log.update_high_watermark(150)
    expected = [v for v in read_values(log) if v[0] < offset // 2 * 2]
    assert log.truncate_to(offset) == ErrorCode.NONE
    assert log.log_end_offset == offset
    assert log.high_watermark == min(150, offset)
    assert read_values(log) == expected
    assert all(e.start_offset < offset for e in log.leader_epochs.entries)
    append(log, batch(b"new"), epoch=9)
    assert read_values(log) == [*expected, (offset, b"new")]
    assert log.leader_epochs.entries[-1] == EpochEntry(9, offset)
    again = bench.open()
    assert read_values(again) == [*expected, (offset, b"new")]
    found = again.max_timestamp_offset()
    assert found is not None


def test_truncate_fully() -> None:
    bench = Bench(SMALL)
    log = bench.open()
    for i in range(50):
        append(log, batch(b"%03d" % i, producer=(7, 0, i)))
    assert log.truncate_fully_and_start_at(1000) == ErrorCode.NONE
    assert (log.log_start_offset, log.log_end_offset, log.producers.entries) == (1000, 1000, {})
    append(log, batch(b"x"))
    assert read_values(log) == [(1000, b"x")]
    assert bench.names() == [
        "00000000000000001000.index",
        "00000000000000001000.log",
        "00000000000000001000.timeindex",
        "leader-epoch-checkpoint",
    ]
    assert read_values(bench.open()) == [(1000, b"x")]
