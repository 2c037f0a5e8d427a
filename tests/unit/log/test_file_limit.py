"""Too many open files: segments are closed, a client may have to retry, and no directory goes offline."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from klamm.clock import SystemClock
from klamm.errors import ErrorCode
from klamm.log import LogConfig, LogManager, append_as_leader
from klamm.log.log_manager import LogEvents, LogLimits
from klamm.model import TopicPartition
from klamm.server.file_limit import open_segments
from tests.unit.log.harness import NOW, TP, Bench, append, batch, read_values


@contextmanager
def free_files(count: int) -> Iterator[None]:
    """Allows about `count` more files to be opened."""
    probe = os.open(os.devnull, os.O_RDONLY)
    os.close(probe)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (probe + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def exhausted(operation: str, path: str) -> None:
    if operation in ("open", "write", "read", "fsync"):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)


def test_more_partitions_than_files(tmp_path: Path) -> None:
    failures: list[str] = []
    manager = LogManager(
        [str(tmp_path)],
        clock=SystemClock(),
        rng=Random(0),
        default_config=LogConfig(segment_bytes=300),
        limits=LogLimits(max_open_segments=1000),
        events=LogEvents(on_dir_failure=lambda log_dir, sentence: failures.append(sentence)),
    )
    with free_files(24):
        manager.load_logs()
        logs = [manager.get_or_create_log(TopicPartition("t", i), is_new=True) for i in range(60)]
        for i in range(6):
            for log in logs:
                append(log, batch(b"%d" % i * 40))
        assert all(len(read_values(log)) == 6 for log in logs)
        manager.checkpoints.write_recovery_points()
    assert not failures
    manager.shutdown()
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_an_append_that_finds_no_file_may_be_tried_again() -> None:
    bench = Bench(LogConfig(segment_bytes=300))
    manager = bench.manager()
    log = manager.get_or_create_log(TP)
    append(log, batch(b"x" * 100))
    bench.files.fault = exhausted
    result = append_as_leader(log, batch(b"y" * 200), 0)
    assert (result.error, result.error_message) == (
        ErrorCode.KAFKA_STORAGE_ERROR,
        "the broker has too many open files",
    )
    manager.checkpoints.write_recovery_points()
    log.flush()
    bench.files.fault = None
    assert not manager.dirs.failures
    assert append(log, batch(b"y" * 200)).base_offset == 1
    log.flush()
    assert log.recovery_point == 2
    assert [v for _, v in read_values(log)] == [b"x" * 100, b"y" * 200]


def test_work_in_the_background_waits_for_files() -> None:
    bench = Bench()
    asked = 0

    def fault(operation: str, path: str) -> None:
        nonlocal asked
        if operation == "fsync":
            asked += 1
            if asked < 3:
                exhausted(operation, path)

    async def run() -> None:
        manager = bench.manager()
        manager.start_background(asyncio.get_running_loop())
        log = manager.get_or_create_log(TP)
        append(log, batch(b"x"))
        bench.files.fault = fault
        log.flush()
        async with asyncio.timeout(60):
            while log.recovery_point == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        bench.files.fault = None
        assert not manager.dirs.failures
        manager.shutdown()

    asyncio.run(run())
    assert asked >= 3


def test_cleaning_without_files_is_given_up_and_takes_nothing_offline() -> None:
    bench = Bench(LogConfig(segment_bytes=300, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0))
    manager = bench.manager()
    log = manager.get_or_create_log(TP)
    for i in range(30):
        append(log, batch(b"%d" % i))
    log.roll()
    log.update_high_watermark(30)
    bench.files.fault = exhausted
    any(manager.passes.compaction(NOW))
    bench.files.fault = None
    assert not manager.dirs.failures
    assert len(read_values(log)) == 30


@pytest.mark.parametrize(
    ("limit", "segments"), [(64, 32), (20, 16), (1024, 512), (1 << 20, 50_000), (resource.RLIM_INFINITY, 50_000)]
)
def test_half_of_the_files_are_left_for_connections(limit: int, segments: int) -> None:
    assert open_segments(limit) == segments
