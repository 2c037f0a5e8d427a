"""A search by timestamp finds the first record that is new enough, in whatever order records have their timestamps."""

from __future__ import annotations

import errno
import os
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.errors import ErrorCode
from klamm.log import Log, LogConfig
from klamm.log.memory_files import MemoryFiles
from klamm.protocol.record_batch import records
from tests.unit.log.harness import DIR, NOW, Bench, append, batch, close, read_batches

CONFIG = LogConfig(segment_bytes=3_000, index_interval_bytes=200, file_delete_delay_ms=0)
ONE_SEGMENT = LogConfig(index_interval_bytes=200)


def full(path: str) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def first_at_least(log: Log, timestamp: int) -> int | None:
    found = (r.offset for b in read_batches(log) for r in records(b) if r.timestamp >= timestamp)
    return next((offset for offset in found if offset >= log.log_start_offset), None)


@given(st.integers(min_value=0, max_value=2**32))
@settings(max_examples=100, deadline=None)
def test_the_first_record_is_found(seed: int) -> None:
    rng = Random(seed)
    bench = Bench(CONFIG)
    log = bench.open()
    for _ in range(rng.randint(1, 4)):
        spread = rng.choice((0, 1, 5, 50))
        for _ in range(rng.randint(1, 60)):
            append(log, batch(*[b"v"] * rng.randint(1, 4), timestamp=NOW + rng.randint(0, spread)))
        log.update_high_watermark(log.log_end_offset)
        match rng.randrange(4):
            case 0:
                log.truncate_to(rng.randint(log.log_start_offset, log.log_end_offset))
            case 1:
                log.increment_log_start_offset(rng.randint(log.log_start_offset, log.log_end_offset))
            case 2:
                close(log)
                ends = log.log_start_offset, log.log_end_offset
                log = bench.open(clean=True, recovery_point=ends[1], log_start_offset=ends[0])
                log.update_high_watermark(ends[1])
        for timestamp in range(NOW - 1, NOW + 56, rng.randint(1, 9)):
            found = log.offset_for_timestamp(timestamp)
            assert not isinstance(found, ErrorCode)
            assert (found and found.offset) == first_at_least(log, timestamp)


def test_equal_timestamps_are_not_searched_one_by_one() -> None:
    reads: list[str] = []
    bench = Bench(
        LogConfig(), MemoryFiles(lambda operation, path: reads.append(path) if operation == "pread" else None)
    )
    log = bench.open()
    for number in range(2_000):
        append(log, batch(b"v" * 5_000, timestamp=NOW + 2 * (number == 1_990)))
    reads.clear()
    found = log.offset_for_timestamp(NOW + 1)
    assert not isinstance(found, ErrorCode)
    assert found is not None
    assert found.offset == 1_990
    assert len(reads) <= 3


def all_found(log: Log) -> bool:
    log.update_high_watermark(log.log_end_offset)
    for timestamp in range(NOW - 1, NOW + 101):
        found = log.offset_for_timestamp(timestamp)
        assert not isinstance(found, ErrorCode)
        if (found and found.offset) != first_at_least(log, timestamp):
            return False
    return True


@pytest.mark.parametrize("unwritten", [".index", ".timeindex"])
@pytest.mark.parametrize("operation", ["release", "flush", "roll"])
def test_indexes_of_which_one_was_not_written(unwritten: str, operation: str) -> None:
    """As on a full disk that has room again."""
    bench = Bench(ONE_SEGMENT)
    log = bench.open()
    for number in range(100):
        append(log, batch(b"v" * 100, timestamp=NOW + number))
    bench.files.fault = lambda operation, path: full(path) if path.endswith(unwritten) else None
    if operation == "release":
        with pytest.raises(OSError, match="No space left"):
            log.segments.active.release()
    else:
        assert (log.flush() if operation == "flush" else log.roll()) is ErrorCode.KAFKA_STORAGE_ERROR
    bench.files.fault = None
    log.disk.set_failed(True)
    log.close_handles()
    log.disk.set_failed(False)
    assert all_found(log)


@pytest.mark.parametrize("first_timestamp", [NOW, 0])
def test_an_empty_time_index_is_built_again(first_timestamp: int) -> None:
    bench = Bench(ONE_SEGMENT)
    log = bench.open()
    for number in range(100):
        append(log, batch(b"v" * 100, timestamp=first_timestamp and NOW + number))
    close(log)
    (path,) = (f"{DIR}/orders-0/{name}" for name in bench.names() if name.endswith(".timeindex"))
    if first_timestamp:
        bench.files.open(path).truncate(0)
    log = bench.open(clean=True, recovery_point=100)
    assert all_found(log)
    found = log.offset_for_timestamp(0)
    assert not isinstance(found, ErrorCode) and found is not None and found.offset == 0
    reads: list[str] = []
    log.segments.active.release()
    bench.files.fault = lambda operation, path: reads.append(path) if operation == "pread" else None
    log.segments.active.open()
    assert len(reads) <= 1, "it is not built again at every use"
