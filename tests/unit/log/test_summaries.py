"""Logs that the last run left complete are used without being opened; those damaged afterwards are found."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from klamm.clock import SystemClock
from klamm.errors import ErrorCode
from klamm.log import Log, LogConfig, LogManager
from klamm.log.memory_files import MemoryFiles
from klamm.log.names import CLEAN_SHUTDOWN, LEADER_EPOCH_CHECKPOINT, LOG_SUMMARY, file_name
from klamm.log.summaries import inspect, read_recorded, with_directory
from klamm.model import TopicPartition
from tests.unit.log.harness import DIR, ELAPSED, NOW, TP, Bench, append, batch, read_values

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
    manager.passes.flush(ELAPSED + 1000)


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


@pytest.mark.parametrize("is_stopped_between", [False, True])
@pytest.mark.parametrize("is_written_to", [False, True])
def test_a_kill_does_not_hide_how_new_the_last_records_are(is_stopped_between: bool, is_written_to: bool) -> None:
    """They are on the disk, but no entry of the time index names them. Retention would delete them."""
    week = SMALL.retention_ms
    bench = Bench(LogConfig(segment_ms=4 * week))
    manager = bench.manager()
    log = manager.get_or_create_log(TP, is_new=True)
    for number in range(40):
        append(log, batch(b"v" * 100, timestamp=NOW + number))
    append(log, batch(b"new", timestamp=NOW + week))
    log.flush()
    bench.clock.ms += 10_000
    list(manager.checkpoints.summary_pass())
    manager.abandon()
    bench.files = bench.files.after_kill()
    if is_stopped_between:
        bench.manager().shutdown({TP: 41})
    manager = bench.manager()
    log = manager.logs[TP]
    assert not log.is_open
    log.update_high_watermark(41)
    if is_written_to:
        append(log, batch(b"v" * 5_000, timestamp=NOW))
        append(log, batch(b"old", timestamp=NOW))
        log.update_high_watermark(43)
    assert sum(manager.passes.retention(NOW + week + 1000)) == 0
    newest = (NOW + week, 40, 0)
    assert log.offset_for_timestamp(NOW + 1000) == newest and log.max_timestamp_offset() == newest


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
        b"0\n0\n0\n",
        b"1\n0\n5\n",
        b"1\n0\n1\norders x 1\n",
        b"\xff\xfe",
        b"1\n0\n1\norders 0 1 1 1 1 1\n",
        b"1\n0\n1\norders 0 1 1 1 1 1 1\n",
        b"2\n0\n5\n",
        b"2\n0\n1\norders x 1\n",
        b"2\n0\n1\norders 0 1 1 1 1 1 1\n",
        b"2\n0\n1\norders 0 1 1 1 1 1 1 1\n",
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


# the directory of a log


def started(bench: Bench) -> tuple[Log, list[str]]:
    """Start again; return the log and the directories whose names were listed."""
    listed: list[str] = []
    bench.files.fault = lambda operation, path: listed.append(path) if operation == "list" else None
    return bench.manager().logs[TP], listed


def test_a_directory_that_is_as_recorded_is_not_listed(bench: Bench) -> None:
    log, listed = started(bench)
    assert not log.is_open and listed == [DIR]


@pytest.mark.parametrize("name", ["00000000000000000000.log.swap", "00000000000000000004.log.deleted", "x.tmp"])
def test_unfinished_files_are_found_after_a_clean_stop(bench: Bench, name: str) -> None:
    first = bench.files.read_bytes(segment_files(bench)[0])
    bench.files.write_atomic(f"{DIR}/orders-0/{name}", first)
    log, listed = started(bench)
    assert log.is_open and f"{DIR}/orders-0" in listed
    assert name not in bench.names() and len(list(read_values(log))) == RECORDS


def test_another_segment_is_found_after_a_clean_stop(bench: Bench) -> None:
    bench.files.write_atomic(f"{DIR}/orders-0/{file_name(RECORDS + 1, '.log')}", b"")
    log, listed = started(bench)
    assert log.is_open and f"{DIR}/orders-0" in listed


def test_a_segment_is_missed_in_a_directory_with_the_recorded_time(bench: Bench) -> None:
    """As after files were copied with their times and one was forgotten."""
    (summary,) = read_recorded(bench.files, DIR).logs.values()
    for base_offset in (summary.segments[0].base_offset, summary.segments[-1].base_offset):
        copied = bench.files.after_kill()
        copied.unlink(f"{DIR}/orders-0/{file_name(base_offset, '.log')}")
        as_copied = summary._replace(dir_modified_ns=copied.stat(f"{DIR}/orders-0").modified_ns)
        assert inspect(copied, f"{DIR}/orders-0", as_copied).damaged == (base_offset,)


def test_a_time_that_is_not_before_the_stop_is_not_recorded(bench: Bench) -> None:
    """A change after the stop could get the same time: file systems store coarse times."""
    (summary,) = read_recorded(bench.files, DIR).logs.values()
    directory, unknown = f"{DIR}/orders-0", summary._replace(dir_modified_ns=0)
    changed_ns = bench.files.stat(directory).modified_ns
    assert summary.dir_modified_ns == changed_ns
    assert with_directory(bench.files, directory, unknown, changed_ns + 1) == summary
    assert with_directory(bench.files, directory, unknown, changed_ns) == unknown


def test_the_time_of_a_directory_with_unfinished_files_is_not_recorded(bench: Bench) -> None:
    (summary,) = read_recorded(bench.files, DIR).logs.values()
    bench.files.write_atomic(f"{DIR}/orders-0/00000000000000000004.log.deleted", b"")
    unknown = summary._replace(dir_modified_ns=0)
    assert with_directory(bench.files, f"{DIR}/orders-0", unknown, 1 << 62) == unknown


def test_a_changed_directory_is_found_on_a_real_file_system(tmp_path: Path) -> None:
    def manager() -> LogManager:
        made = LogManager([str(tmp_path)], clock=SystemClock(), rng=Random(1), default_config=SMALL)
        made.load_logs()
        return made

    first = manager()
    append(first.get_or_create_log(TP, is_new=True), batch(b"v"))
    first.shutdown({TP: 1})
    second = manager()
    assert not second.logs[TP].is_open
    second.shutdown({TP: 1})
    unfinished = tmp_path / "orders-0" / "00000000000000000000.log.cleaned"
    unfinished.write_bytes(b"half")
    third = manager()
    assert third.logs[TP].is_open and not unfinished.exists()
    third.abandon()


# leader epochs and producers


EPOCHS = [(3, 0), (5, 20), (6, 25)]


@pytest.fixture
def with_epochs(bench: Bench) -> Bench:
    """The same log with records of two more epochs and of an idempotent producer, cleanly stopped."""
    manager = bench.manager()
    log = manager.logs[TP]
    for i in range(10):
        append(log, batch(b"p%d" % i, producer=(7, 0, i)), epoch=5 if i < 5 else 6)
    assert [tuple(entry) for entry in log.leader_epochs.entries] == EPOCHS
    manager.shutdown({TP: 30})
    return bench


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        bytes(30),
        b"0\n",
        b"0\n0\n",
        b"garbage\n",
        b"0\n3\n3 0\n5 20\n",
        b"0\n3\n3 0\n5 20\n6 2",
        b"0\n2\n3 0\n5 20\n",
        b"0\n1\n6 25\n",
        b"0\n3\n3 0\n5 20\n6 28\n",
        b"0\n4\n3 0\n5 20\n6 25\n9 27\n",
    ],
    ids=["missing", "empty", "zeros", "version", "none", "garbage", "line", "digit", "old", "end", "offset", "more"],
)
def test_damaged_leader_epochs_are_read_from_the_records(with_epochs: Bench, content: bytes | None) -> None:
    """A leader appends in the epoch of the last record: a lost entry would begin at the wrong offset again."""
    path = f"{DIR}/orders-0/{LEADER_EPOCH_CHECKPOINT}"
    if content is None:
        with_epochs.files.unlink(path)
    else:
        with_epochs.files.write_atomic(path, content)
    manager = with_epochs.manager()
    log = manager.logs[TP]
    assert not log.is_open and log.latest_epoch == 6
    append(log, batch(b"new"), epoch=6)
    assert [tuple(entry) for entry in log.leader_epochs.entries] == EPOCHS
    manager.shutdown({TP: 31})
    assert with_epochs.files.read_bytes(path) == b"0\n3\n3 0\n5 20\n6 25\n"


def test_a_moved_log_start_does_not_make_the_epochs_wrong(with_epochs: Bench, caplog: pytest.LogCaptureFixture) -> None:
    manager = with_epochs.manager()
    log = manager.logs[TP]
    log.open()
    log.update_high_watermark(30)
    with_epochs.clock.ms += 10_000
    list(manager.checkpoints.summary_pass())
    assert log.increment_log_start_offset(22) is ErrorCode.NONE
    list(manager.checkpoints.summary_pass())
    manager.checkpoints.write_log_start_offsets()
    manager.abandon()
    with_epochs.files = with_epochs.files.after_kill()
    log = with_epochs.manager().logs[TP]
    assert not log.is_open
    with caplog.at_level(logging.WARNING):
        log.open()
    assert [tuple(entry) for entry in log.leader_epochs.entries] == [(5, 22), (6, 25)]
    assert not caplog.records


def test_epochs_before_those_of_the_file_are_read_from_the_log_start_on(with_epochs: Bench) -> None:
    with_epochs.files.write_atomic(f"{DIR}/orders-0/{LEADER_EPOCH_CHECKPOINT}", b"0\n1\n6 25\n")
    reads: list[str] = []
    with_epochs.files.fault = lambda operation, path: reads.append(path) if operation == "pread" else None
    log = with_epochs.open(clean=True, recovery_point=30, log_start_offset=22)
    assert [tuple(entry) for entry in log.leader_epochs.entries] == [(5, 22), (6, 25)]
    floor = log.segments.floor(22)
    assert floor is not None
    assert {path for path in reads if path.endswith(".log")} <= {
        segment.path(".log") for segment in log.segments if segment.base_offset >= floor.base_offset
    }


@pytest.mark.parametrize("harm", ["missing", "empty", "garbled"])
def test_damaged_producer_snapshots_are_read_from_the_records(with_epochs: Bench, harm: str) -> None:
    """A repeated batch would be written twice if its producer were forgotten."""
    found = [f"{DIR}/orders-0/{name}" for name in with_epochs.names() if name.endswith(".snapshot")]
    assert found
    for path in found:
        if harm == "missing":
            with_epochs.files.unlink(path)
        else:
            with_epochs.files.write_atomic(path, b"" if harm == "empty" else bytes(60))
    log = with_epochs.manager().logs[TP]
    assert not log.is_open
    assert append(log, batch(b"p9", producer=(7, 0, 9)), epoch=6).base_offset == 29
    assert log.log_end_offset == 30


@pytest.mark.parametrize("producer_id", [7, -1], ids=["producer", "none"])
def test_a_log_is_opened_after_a_kill_without_reading_its_active_segment(producer_id: int) -> None:
    """It is opened on the loop, by its first append."""
    reads: list[str] = []
    bench = Bench(LogConfig(flush_messages=1))
    manager = bench.manager()
    log = manager.get_or_create_log(TP)
    for number in range(2_000):
        append(log, batch(b"v" * 5_000, producer=(producer_id, 0, number) if producer_id >= 0 else None))
    assert log.recovery_point == 2_000
    list(manager.checkpoints.summary_pass())
    manager.abandon()
    bench.files.fault = lambda operation, path: reads.append(path) if operation == "pread" else None
    log = bench.manager().logs[TP]
    assert not log.is_open
    reads.clear()
    append(log, batch(b"v", producer=(producer_id, 0, 2_000) if producer_id >= 0 else None))
    assert len(reads) <= 3
    if producer_id >= 0:
        assert log.producers.entries[7].last_sequence == 2_000


def test_an_idle_log_has_one_snapshot_of_its_end() -> None:
    bench = Bench(LogConfig(flush_messages=1))
    manager = bench.manager()
    log = manager.get_or_create_log(TP)

    def snapshots() -> list[int]:
        list(manager.checkpoints.summary_pass())
        return [int(name[:20]) for name in bench.names() if name.endswith(".snapshot")]

    def grow(sequence: int, size: int = 70_000, *, transactional: bool = False) -> None:
        append(log, batch(bytes(size), producer=(7, 0, sequence), transactional=transactional))

    grow(0, 100)
    assert not snapshots(), "an opening reads little"
    grow(1)
    assert snapshots() == [2]
    log.roll()
    grow(2)
    assert snapshots() == [2, 3]
    grow(3, 100)
    assert snapshots() == [2, 3], "there is little behind the snapshot"
    grow(4)
    assert snapshots() == [2, 5], "one of the roll, one of the end"
    writes: list[str] = []
    bench.files.fault = lambda operation, path: writes.append(path) if operation == "write" else None
    snapshots()
    assert not [path for path in writes if path.endswith(".snapshot")]
    log.truncate_to(4)
    grow(4, 100)
    assert snapshots() == [2, 5], "the one of the former end is gone"
    grow(5, transactional=True)
    assert snapshots() == [2, 5], "the next start reads an open transaction"
