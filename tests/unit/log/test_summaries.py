"""Logs that the last run left complete are used without being opened; those damaged afterwards are found."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from random import Random

import pytest

from klamm.errors import ErrorCode
from klamm.log import Log, LogConfig, LogManager
from klamm.log.memory_files import MemoryFiles
from klamm.log.names import CLEAN_SHUTDOWN, LOG_SUMMARY
from klamm.model import TopicPartition
from tests.unit.log.harness import DIR, NOW, TP, Bench, append, batch, read_values

SMALL = LogConfig(segment_bytes=500)
RECORDS = 20


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A directory with a log of several segments, cleanly stopped."""
    made = Bench(SMALL)
    manager = made.manager()
    log = manager.get_or_create_log(TP)
    for i in range(RECORDS):
        append(log, batch(b"%d" % i), epoch=3)
    manager.shutdown({TP: RECORDS})
    yield made


def segment_files(bench: Bench) -> list[str]:
    return [f"{DIR}/orders-0/{name}" for name in bench.names() if name.endswith(".log")]


def use_without_opening(manager: LogManager, log: Log) -> None:
    """Everything that happens to an idle partition: it leads, followers fetch at its end, it is checkpointed."""
    log.update_high_watermark(RECORDS)
    log.assign_epoch(7, RECORDS)
    assert log.latest_epoch == 7 and log.gapless_end[0] == 3
    assert log.end_offset_for_epoch(3) == (3, RECORDS) and log.end_offset_for_epoch(7) == (7, RECORDS)
    assert log.last_stable_offset == RECORDS
    assert log.read(RECORDS, 1000, max_offset=RECORDS) == (b"", ())
    assert log.size_bytes > 0
    log.truncate_to(RECORDS)
    log.flush()
    manager.checkpoints.write_recovery_points()
    manager.checkpoints.write_log_start_offsets()
    manager.checkpoints.write_high_watermarks({TP: RECORDS})
    for _ in (
        *manager.passes.retention(NOW + 1000),
        *manager.passes.compaction(NOW + 1000),
        *manager.passes.producer_expiration(NOW + 1000),
        *manager.checkpoints.summary_pass(),
    ):
        pass
    manager.passes.flush(NOW + 1000)


def test_an_idle_log_is_never_opened(bench: Bench) -> None:
    for _ in range(3):
        manager = bench.manager()
        log = manager.logs[TP]
        use_without_opening(manager, log)
        assert not log.is_open
        manager.shutdown({TP: RECORDS})
    bench.manager().abandon()
    bench.files = bench.files.after_kill()  # killed, and nothing was written to the log
    log = bench.manager().logs[TP]
    assert not log.is_open
    assert [value for _, value in read_values(log)] == [b"%d" % i for i in range(RECORDS)]
    assert log.is_open


def test_an_epoch_assigned_before_the_log_is_opened_is_kept(bench: Bench) -> None:
    log = bench.manager().logs[TP]
    log.assign_epoch(5, RECORDS)
    log.assign_epoch(7, RECORDS)
    append(log, batch(b"new"), epoch=7)
    assert [tuple(entry) for entry in log.leader_epochs.entries] == [(3, 0), (7, RECORDS)]


def test_opening_a_log_does_not_wait_for_the_disk(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last epoch is dropped if it has no records. Thousands of logs may be opened in a row, on the loop."""
    manager = bench.manager()
    log = manager.logs[TP]
    log.assign_epoch(7, RECORDS)
    log.open()
    manager.shutdown({TP: RECORDS})
    manager = bench.manager()
    log = manager.logs[TP]
    assert not log.is_open
    waits: list[str] = []
    real = MemoryFiles.write_atomic

    def write(files: MemoryFiles, path: str, data: bytes, *, sync: bool = True) -> None:
        if sync:
            waits.append(path)
        real(files, path, data, sync=sync)

    monkeypatch.setattr(MemoryFiles, "write_atomic", write)
    log.open()
    assert [tuple(entry) for entry in log.leader_epochs.entries] == [(3, 0)]
    assert not waits
    manager.shutdown({TP: RECORDS})
    bench.files = bench.files.crash(Random(1))
    assert [tuple(entry) for entry in bench.manager().logs[TP].leader_epochs.entries] == [(3, 0)]


def test_retention_opens_a_log_that_has_old_segments(bench: Bench) -> None:
    manager = bench.manager()
    log = manager.logs[TP]
    log.update_high_watermark(RECORDS)
    week = SMALL.retention_ms
    assert sum(manager.passes.retention(NOW + week - 1)) == 0 and not log.is_open
    assert sum(manager.passes.retention(NOW + week + 1000)) > 1
    assert log.log_start_offset == RECORDS


def test_a_log_that_was_written_to_is_recovered_after_a_kill(bench: Bench) -> None:
    manager = bench.manager()
    append(manager.logs[TP], batch(b"more"), epoch=3)
    list(manager.checkpoints.summary_pass())
    manager.abandon()
    bench.files = bench.files.after_kill()
    log = bench.manager().logs[TP]
    assert log.is_open and log.log_end_offset == RECORDS + 1


def test_a_record_of_an_earlier_stop_does_not_make_a_changed_log_damaged(bench: Bench) -> None:
    """As after a broker of Apache Kafka has used the directory: it writes the marker, and not the record."""
    record = bench.files.read_bytes(f"{DIR}/{LOG_SUMMARY}")
    manager = bench.manager()
    append(manager.logs[TP], batch(b"more"), epoch=3)
    manager.shutdown({TP: RECORDS + 1})
    bench.files.write_atomic(f"{DIR}/{LOG_SUMMARY}", record)
    log = bench.manager().logs[TP]
    assert log.log_end_offset == RECORDS + 1 and not log.damages and log.lost_tail is None


def test_an_unreadable_record_is_not_used(bench: Bench) -> None:
    for text in (
        b"",
        b"1\n0\n0\n",
        b"0\n0\n5\n",
        b"0\n0\n1\norders x 1\n",
        b"\xff\xfe",
        b"0\n0\n1\norders 0 1 1 1 1 1\n",
    ):
        bench.files.write_atomic(f"{DIR}/{LOG_SUMMARY}", text)
        manager = bench.manager()
        assert manager.logs[TP].log_end_offset == RECORDS
        manager.abandon()
        bench.files = bench.files.after_kill()


def cut(bench: Bench, path: str, size: int) -> None:
    bench.files.open(path).truncate(size)


def zero(bench: Bench, path: str, count: int) -> None:
    size = len(bench.files.read_bytes(path))
    bench.files.open(path).pwrite((bytes(count),), size - count)


@pytest.mark.parametrize("harm", [zero, cut])
def test_a_damaged_end_is_found_at_the_start(bench: Bench, harm: object, caplog: pytest.LogCaptureFixture) -> None:
    path = [p for p in segment_files(bench) if bench.files.read_bytes(p)][-1]
    (zero if harm is zero else cut)(bench, path, 30)
    with caplog.at_level(logging.ERROR):
        log = bench.manager().logs[TP]
    assert log.log_end_offset < RECORDS and log.log_end_offset == log.recovery_point
    assert log.lost_tail is not None and log.lost_tail[:3] == (path, log.log_end_offset, RECORDS)
    assert f"{path} was damaged" in caplog.text and f"offsets {log.log_end_offset} to {RECORDS - 1}" in caplog.text
    assert [value for _, value in read_values(log)] == [b"%d" % i for i in range(log.log_end_offset)]


def test_records_after_a_truncated_segment_are_served_and_the_gap_is_an_error(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    path = segment_files(bench)[1]
    cut(bench, path, len(bench.files.read_bytes(path)) - 30)
    for _ in range(2):  # a stop and a start do not make it forgotten
        with caplog.at_level(logging.ERROR):
            manager = bench.manager()
        log = manager.logs[TP]
        assert log.log_end_offset == RECORDS
        (gap,) = log.damages
        assert gap.path == path and f"offsets {gap.start_offset} to {gap.end_offset - 1} are missing" in caplog.text
        caplog.clear()
        log.update_high_watermark(RECORDS)
        for offset in range(gap.start_offset, gap.end_offset):
            assert log.read(offset, 1000, max_offset=RECORDS) == ErrorCode.CORRUPT_MESSAGE
        assert [o for o, _ in read_values(log, gap.end_offset)] == list(range(gap.end_offset, RECORDS))
        assert log.offset_for_timestamp(NOW) is not None
        manager.shutdown({TP: RECORDS})
    manager = bench.manager()
    log = manager.logs[TP]
    assert log.truncate_to(gap.start_offset) == ErrorCode.NONE
    assert not log.damages and log.log_end_offset == gap.start_offset
    manager.shutdown({})
    assert not bench.manager().logs[TP].damages


def test_a_missing_segment_is_damage(bench: Bench) -> None:
    second = segment_files(bench)[1]
    bench.files.unlink(second)
    (gap,) = bench.manager().logs[TP].damages
    assert gap.path == second and gap.start_offset < gap.end_offset


def test_a_missing_active_segment_is_damage(bench: Bench) -> None:
    path = segment_files(bench)[-1]
    bench.files.unlink(path)
    log = bench.manager().logs[TP]
    assert log.lost_tail is not None and log.lost_tail.end_offset == RECORDS
    assert log.log_end_offset == log.lost_tail.start_offset < RECORDS
    append(log, batch(b"goes on"), epoch=4)


def remove(bench: Bench, path: str, count: int) -> None:
    bench.files.remove_tree(path.rpartition("/")[0])


@pytest.mark.parametrize("harm", [zero, cut, remove])
def test_a_damaged_log_may_lack_records_that_were_acknowledged(
    bench: Bench, harm: Callable[[Bench, str, int], None]
) -> None:
    """So its broker reports it as it does an unclean shutdown, and leads only if no other replica has more."""
    manager = bench.manager()
    assert not manager.may_lack_records
    manager.shutdown({TP: RECORDS})
    harm(bench, [p for p in segment_files(bench) if bench.files.read_bytes(p)][-1], 30)
    manager = bench.manager()
    assert manager.had_clean_shutdown and manager.may_lack_records
    manager.shutdown()
    assert not bench.manager().may_lack_records


def test_a_log_that_was_moved_to_a_later_directory_while_the_broker_was_down_is_not_missing() -> None:
    bench = Bench()
    manager = bench.manager(("/a", "/b"))
    append(manager.get_or_create_log(TP, is_new=True), batch(b"v"))
    manager.shutdown({TP: 1})
    bench.files.rename("/a/orders-0", "/b/orders-0")
    manager = bench.manager(("/a", "/b"))
    assert manager.logs[TP].log_dir == "/b" and manager.logs[TP].log_end_offset == 1
    assert not manager.may_lack_records


def test_a_log_with_a_gap_ends_there_where_logs_are_compared(bench: Bench) -> None:
    path = segment_files(bench)[1]
    cut(bench, path, len(bench.files.read_bytes(path)) - 30)
    log = bench.manager().logs[TP]
    (gap,) = log.damages
    assert log.leader_epochs.epoch_for_offset(RECORDS - 1) == 3 and log.log_end_offset == RECORDS
    assert log.gapless_end == (3, gap.start_offset)


def test_the_marker_is_kafkas(bench: Bench) -> None:
    assert bench.files.read_bytes(f"{DIR}/{CLEAN_SHUTDOWN}") == b'{"version":0,"brokerEpoch":-1}'


def test_many_logs_start_without_being_opened() -> None:
    bench = Bench()
    manager = bench.manager()
    for i in range(50):
        append(manager.get_or_create_log(TopicPartition("t", i), is_new=True), batch(b"v"))
    manager.shutdown({})
    operations: list[str] = []
    bench.files.fault = lambda operation, path: operations.append(operation)
    assert len(bench.manager().logs) == 50
    assert len(operations) <= 7 * 50
