"""Too many open files: segments are closed, a client may have to retry, and no directory goes offline."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random

import pytest

from klamm.clock import SystemClock
from klamm.errors import ErrorCode
from klamm.log import AppendOrigin, Log, LogConfig, LogManager, append_as_leader
from klamm.log.appending import append_as_follower
from klamm.log.log_manager import LogEvents, LogLimits
from klamm.model import TopicPartition
from klamm.network.connection_quotas import NO_LIMIT, DescriptorRoom
from klamm.server import file_limit
from klamm.server.file_limit import open_segments
from klamm.zk.model.limits import MAX_CONNECTIONS
from tests.unit.log.harness import NOW, TP, Bench, append, batch, close, end_txn, marker, read_values


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


def produced(sequence: int, value: bytes, *, epoch: int = 0) -> bytes:
    return batch(value, producer=(7, epoch, sequence))


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
    ("limit", "segments"),
    [(125, 62), (64, 16), (20, 16), (1024, 512), (1 << 20, 50_000), (resource.RLIM_INFINITY, 50_000)],
)
def test_half_of_the_files_are_left_for_connections(limit: int, segments: int) -> None:
    assert open_segments(limit) == segments


@pytest.mark.parametrize("limit", [100, 125, 200, 256, 1024, 4096, 65_536, 1 << 20])
def test_the_shares_of_a_broker_with_zookeeper_are_at_most_all_files(limit: int) -> None:
    """Connections of the embedded ZooKeeper had no share, and no limit."""
    room = file_limit.connections(limit, has_zookeeper=True)
    shares = (
        open_segments(limit, has_zookeeper=True),
        room.max_open,
        room.for_brokers,
        file_limit.metrics_connections(limit),
        file_limit.zookeeper_connections(limit),
        min(max(limit // 8, 24), 128),
    )
    assert sum(shares) == limit
    assert min(shares) >= 8 and file_limit.zookeeper_connections(limit) >= 16
    assert room.max_open <= file_limit.connections(limit).max_open


def test_zookeeper_has_its_own_limit_without_a_limit_of_files() -> None:
    assert file_limit.zookeeper_connections(resource.RLIM_INFINITY) == MAX_CONNECTIONS


def test_batches_after_one_that_found_no_file_wait_for_it() -> None:
    bench = Bench(LogConfig(segment_bytes=300))
    log = bench.manager().get_or_create_log(TP)
    append(log, produced(0, b"a" * 100))
    bench.files.fault = exhausted
    refused = append_as_leader(log, produced(1, b"b" * 200), 0)
    bench.files.fault = None
    following = append_as_leader(log, produced(2, b"c"), 0)
    assert [r.error for r in (refused, following)] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
    assert append_as_leader(log, produced(0, b"a" * 100), 0).is_duplicate
    assert append(log, batch(b"of another client")).base_offset == 1
    assert append(log, produced(1, b"b" * 200)).base_offset == 2
    assert append(log, produced(2, b"c")).base_offset == 3
    assert append_as_leader(log, produced(9, b"d"), 0).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_new_producer_whose_first_batch_found_no_file_does_not_start_with_a_later_one() -> None:
    bench = Bench()
    log = bench.manager().get_or_create_log(TP)
    bench.files.fault = exhausted
    assert append_as_leader(log, produced(0, b"a"), 0).error is ErrorCode.KAFKA_STORAGE_ERROR
    bench.files.fault = None
    assert append_as_leader(log, produced(1, b"b"), 0).error is ErrorCode.KAFKA_STORAGE_ERROR
    assert append(log, produced(0, b"a")).base_offset == 0
    assert append(log, produced(1, b"b")).base_offset == 1


@pytest.mark.parametrize("is_known", [False, True])
def test_a_producer_that_gave_up_an_unwritten_batch_gets_the_answers_of_kafka(is_known: bool) -> None:
    """Otherwise it gets a retriable error for every batch, for ever."""
    bench = Bench(LogConfig(segment_bytes=300))
    log = bench.manager().get_or_create_log(TP)
    if is_known:
        append(log, produced(0, b"a" * 100))
    bench.files.fault = exhausted
    for _ in range(2):  # It is sent again, and so it is not given up yet.
        append_as_leader(log, produced(1, b"b" * 200), 0)
        bench.clock.ms += 100_000
    bench.files.fault = None
    assert append_as_leader(log, produced(5, b"c"), 0).error is ErrorCode.KAFKA_STORAGE_ERROR
    bench.clock.ms += 100_000
    following = append_as_leader(log, produced(5, b"c"), 0)
    assert following.error is (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER if is_known else ErrorCode.NONE)
    assert not log.unwritten


def test_an_epoch_that_follows_an_unwritten_batch_starts_at_once() -> None:
    bench = Bench()
    log = bench.manager().get_or_create_log(TP)
    bench.files.fault = exhausted
    append_as_leader(log, produced(0, b"a"), 0)
    bench.files.fault = None
    assert append(log, produced(0, b"b", epoch=1)).base_offset == 0
    assert append(log, produced(1, b"c", epoch=1)).base_offset == 1


def test_batches_of_a_log_that_cannot_be_opened_wait_for_the_first() -> None:
    bench = Bench()
    first = bench.manager()
    append(first.get_or_create_log(TP), produced(0, b"a"))
    first.shutdown()
    log = bench.manager().get_or_create_log(TP)
    assert log.unopened is not None
    bench.files.fault = exhausted
    refused = append_as_leader(log, produced(1, b"b"), 0)
    bench.files.fault = None
    assert (refused.error, refused.error_message) == (
        ErrorCode.KAFKA_STORAGE_ERROR,
        "the broker has too many open files",
    )
    assert append_as_leader(log, produced(2, b"c"), 0).error is ErrorCode.KAFKA_STORAGE_ERROR
    assert append(log, produced(1, b"b")).base_offset == 1
    assert append(log, produced(2, b"c")).base_offset == 2


def test_records_of_another_leader_end_the_wait() -> None:
    bench = Bench()
    log = bench.manager().get_or_create_log(TP)
    bench.files.fault = exhausted
    append_as_leader(log, produced(0, b"a"), 0)
    bench.files.fault = None
    assert log.unwritten
    leader = Bench().manager().get_or_create_log(TP)
    append(leader, batch(b"x"))
    found = leader.read(0, 1000, max_offset=1)
    assert not isinstance(found, ErrorCode)
    assert append_as_follower(log, found.records).error is ErrorCode.NONE
    assert not log.unwritten


@pytest.mark.parametrize(
    ("limit", "connections", "for_brokers"),
    [(64, 16, 8), (200, 38, 25), (1024, 256, 64), (1 << 20, (1 << 20) - 50_000 - 128 - 64 - 64, 64)],
)
def test_connections_leave_files_for_logs_brokers_and_the_broker_itself(
    limit: int, connections: int, for_brokers: int
) -> None:
    assert file_limit.connections(limit) == DescriptorRoom(connections, for_brokers)


def test_connections_are_not_limited_without_a_limit_of_files() -> None:
    assert file_limit.connections(resource.RLIM_INFINITY).max_open == NO_LIMIT


def test_raising_the_limit_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    caplog.set_level(logging.INFO)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        allowed = file_limit.raise_to_hard_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == allowed > 256
        assert file_limit.raise_to_hard_limit() == allowed
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [r.getMessage() for r in caplog.records] == [
        f"the limit of open files was raised from 256 to {allowed}, the system's maximum"
    ]


def exhausted_from(number: int) -> Callable[[str, str], None]:
    """No file can be opened from operation `number` on."""
    operations = count()

    def fault(operation: str, path: str) -> None:
        if operation in ("open", "write", "read", "fsync") and next(operations) >= number:
            exhausted(operation, path)

    return fault


def to_be_truncated(*, is_remembered: bool, has_snapshots: bool = True) -> tuple[Bench, Log]:
    """A log of several segments and epochs, with transactions; it may remember all changes of its producers.

    After a recovery of several segments it has few snapshots.
    """
    bench = Bench(LogConfig(segment_bytes=2000, file_delete_delay_ms=0))
    log = bench.open()
    for number in range(60):
        append(log, batch(b"v" * 50, producer=(7, 0, number)), number // 9)
        if number % 10 == 0:
            append(log, batch(b"t", producer=(8, 0, number // 10), transactional=True), number // 9)
        if number % 10 == 5:
            data = marker(8, 0, abort=number != 55)
            append(log, data, number // 9, origin=AppendOrigin.COORDINATOR)
        if not is_remembered:
            log.update_high_watermark(log.log_end_offset)
    for offset in () if has_snapshots else log.segments.base_offsets:
        log.local.snapshots.remove(offset)
    for segment in log.segments:
        segment.release()
    return bench, log


def state(log: Log) -> tuple[object, ...]:
    assert log.is_usable()
    producers = {p: (e.last_sequence, e.current_txn_first_offset) for p, e in log.producers.entries.items()}
    aborted = log.local.collect_aborted(0, 1 << 40)
    ends = log.log_end_offset, log.update_high_watermark(log.log_end_offset), log.last_stable_offset
    return ends, producers, log.leader_epochs.entries, aborted, read_values(log)


def truncate(log: Log, offset: int) -> ErrorCode:
    return log.truncate_to(offset) if offset else log.truncate_fully_and_start_at(30)


@pytest.mark.parametrize(("is_remembered", "has_snapshots"), [(False, True), (False, False), (True, True)])
@pytest.mark.parametrize("offset", [27, 64, 0])
def test_a_truncation_that_finds_no_file_is_finished_before_the_log_is_used(
    offset: int, is_remembered: bool, has_snapshots: bool
) -> None:
    def begin() -> tuple[Bench, Log]:
        return to_be_truncated(is_remembered=is_remembered, has_snapshots=has_snapshots)

    _, expected = begin()
    assert truncate(expected, offset) is ErrorCode.NONE
    end, failures = expected.log_end_offset, 0
    for number in count():
        bench, log = begin()
        bench.files.fault = exhausted_from(number)
        if not truncate(log, offset):
            break
        failures += 1
        is_begun = log.log_end_offset == end
        if is_begun:
            log.update_high_watermark(end)
            assert append_as_leader(log, produced(59, b"cut"), 9).error is ErrorCode.KAFKA_STORAGE_ERROR
            with pytest.raises(OSError, match="Too many open files"):
                log.prepare_close()
            if log.log_start_offset < end:
                assert log.read(0, 1 << 20, max_offset=end) is ErrorCode.KAFKA_STORAGE_ERROR
        bench.files.fault = None
        if not is_begun:
            assert state(log) == state(begin()[1])
        if not is_begun or number % 2:
            assert truncate(log, offset) is ErrorCode.NONE
        assert state(log) == state(expected)
        close(log)
        assert state(bench.open(clean=True, recovery_point=end)) == state(expected)
        assert not bench.host.failures
    assert failures > 2


def test_a_record_that_was_cut_without_a_file_is_not_acknowledged_as_a_duplicate() -> None:
    bench, log = to_be_truncated(is_remembered=False)
    bench.files.fault = lambda operation, path: exhausted(operation, path) if path.endswith(".snapshot") else None
    assert log.truncate_to(27) is ErrorCode.KAFKA_STORAGE_ERROR
    bench.files.fault = None
    assert log.truncate_to(27) is ErrorCode.NONE
    result = append_as_leader(log, produced(59, b"v" * 50), 9)
    assert result.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not result.is_duplicate


@pytest.mark.parametrize("as_leader", [False, True])
def test_an_abort_marker_is_not_written_without_its_entry(as_leader: bool) -> None:
    """Readers of committed records would get those of the transaction."""
    bench = Bench()
    log = bench.open()
    append(log, batch(b"aborted", producer=(7, 0, 0), transactional=True))
    leader = Bench().open()
    append(leader, batch(b"aborted", producer=(7, 0, 0), transactional=True))
    end_txn(leader, 7, abort=True)

    def append_marker() -> ErrorCode:
        if as_leader:
            return append_as_leader(log, marker(7, 0, abort=True), 0, origin=AppendOrigin.COORDINATOR).error
        found = leader.read(1, 1000, max_offset=2)
        assert not isinstance(found, ErrorCode)
        return append_as_follower(log, found.records).error

    bench.files.fault = lambda operation, path: exhausted(operation, path) if path.endswith(".txnindex") else None
    assert append_marker() is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.log_end_offset == 1 and not bench.host.failures
    bench.files.fault = None
    assert append_marker() is ErrorCode.NONE
    log.update_high_watermark(2)
    assert log.last_stable_offset == 2
    result = log.read(0, 1000, max_offset=2, include_aborted=True)
    assert not isinstance(result, ErrorCode) and [t.producer_id for t in result.aborted] == [7]
    assert len(bench.files.read_bytes(log.segments.active.path(".txnindex"))) == 34


def test_a_commit_marker_needs_no_other_file() -> None:
    bench = Bench()
    log = bench.open()
    append(log, batch(b"committed", producer=(7, 0, 0), transactional=True))
    bench.files.fault = exhausted
    end_txn(log, 7, abort=False)
    assert not any(name.endswith(".txnindex") for name in bench.names())


def test_a_follower_whose_log_cannot_be_opened_is_not_offline() -> None:
    bench = Bench()
    first = bench.manager()
    append(first.get_or_create_log(TP), produced(0, b"a"))
    first.shutdown()
    log = bench.manager().get_or_create_log(TP)
    bench.files.fault = exhausted
    result = append_as_follower(log, produced(1, b"b"))
    assert result.error is ErrorCode.KAFKA_STORAGE_ERROR
    assert result.error_message == "the broker has too many open files"
    assert not log.unwritten
