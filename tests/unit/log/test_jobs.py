"""Work that fails, on a disk or in itself, ends: the next one is started, and other logs do not notice."""

from __future__ import annotations

import asyncio
import errno
import threading
from dataclasses import replace

import pytest

from klamm.errors import ErrorCode
from klamm.log import AppendOrigin, Log, LogConfig, LogManager, cleaner
from klamm.log.local_log import LocalLog
from klamm.log.memory_files import MemoryFiles
from klamm.log.transaction_index import AbortedTxn
from klamm.model import TopicPartition
from klamm.protocol.record_batch import Record, build_batch
from tests.unit.log.harness import DIR, NOW, TP, Bench, append, batch, close, end_txn, read_values

COMPACT = LogConfig(segment_bytes=300, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0)
OTHER = TopicPartition("payments", 0)


def dirty_log(manager: LogManager, tp: TopicPartition, count: int) -> Log:
    log = manager.get_or_create_log(tp)
    for i in range(count):
        append(log, build_batch([Record(timestamp=NOW, key=b"k", value=b"%d" % i)]))
    log.roll()
    log.update_high_watermark(log.log_end_offset)
    return log


def abort_one(log: Log, producer_id: int, value: bytes) -> None:
    data = batch(value, producer=(producer_id, 0, 0), transactional=True)
    append(log, data, origin=AppendOrigin.COORDINATOR)
    end_txn(log, producer_id, abort=True)


def break_txn_index(files: MemoryFiles, name: str) -> None:
    handle = files.open(f"{DIR}/orders-0/{name}")
    handle.pwrite((b"\x00\x07",), 0)


def test_a_broken_index_of_aborted_transactions_is_rewritten_at_the_next_start() -> None:
    bench = Bench(LogConfig(segment_bytes=400))
    log = bench.open()
    for producer in range(1, 5):
        abort_one(log, producer, b"x" * 100)
    before = log.local.collect_aborted(0, log.log_end_offset)
    assert len(before) == 4
    close(log)
    names = [n for n in bench.names() if n.endswith(".txnindex")]
    assert len(names) > 1
    for name in names[1:]:
        break_txn_index(bench.files, name)
    again = bench.open(clean=True, recovery_point=log.log_end_offset)
    assert again.local.collect_aborted(0, again.log_end_offset) == before
    found = again.read(0, 1 << 20, max_offset=again.log_end_offset, include_aborted=True)
    assert not isinstance(found, ErrorCode)
    assert isinstance(found.aborted[0], AbortedTxn)
    close(again)
    assert bench.open(clean=True, recovery_point=log.log_end_offset).local.collect_aborted(0, 100) == before


def test_one_log_that_cannot_be_read_does_not_keep_the_others_from_being_cleaned() -> None:
    bench = Bench(COMPACT)
    manager = bench.manager()
    bad, good = dirty_log(manager, TP, 40), dirty_log(manager, OTHER, 20)
    segment = bad.segments.first
    abort_file = segment.path(".txnindex")
    bench.files.write_atomic(abort_file, b"\xff" * 34)
    segment.txn_index._exists, segment.txn_index._entries = True, None
    while any(manager.passes.compaction(NOW)):
        pass
    any(manager.passes.compaction(NOW))
    assert [v for _, v in read_values(good)] == [b"19"]
    assert len(read_values(bad)) == 40
    assert not manager.dirs.failures


def test_a_disk_that_fails_while_a_log_is_chosen_takes_its_directory_offline() -> None:
    bench = Bench(replace(COMPACT, min_compaction_lag_ms=1))
    manager = bench.manager(("/a", "/b"))
    logs = [dirty_log(manager, TopicPartition("t", i), 10) for i in range(4)]
    for log in logs:
        for segment in log.segments:
            segment.release()
            segment._max_timestamp = None

    def fault(operation: str, path: str) -> None:
        if operation == "open" and path.startswith("/a/"):
            raise OSError(errno.EIO, "Input/output error", path)

    bench.files.fault = fault
    any(manager.passes.compaction(NOW + 10))
    assert list(manager.dirs.failures) == ["/a"]
    assert [log.disk.is_failed for log in logs] == [log.log_dir == "/a" for log in logs]


def test_starts_of_segments_of_a_disk_that_fails_are_an_answer() -> None:
    bench = Bench(LogConfig(segment_bytes=300))
    log = bench.open()
    for i in range(10):
        append(log, batch(b"%d" % i))
    starts = log.segment_starts()
    assert not isinstance(starts, ErrorCode)
    assert starts == [s.base_offset for s in log.segments]
    assert log.segment_starts(NOW - 1) == []
    for segment in log.segments:
        segment.release()
        segment._max_timestamp = None

    def fault(operation: str, path: str) -> None:
        raise OSError(errno.EIO, "Input/output error", path)

    bench.files.fault = fault
    assert log.segment_starts(NOW) is ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("where", ["work", "commit", "exchange"])
def test_cleaning_that_fails_in_itself_does_not_stop_all_cleaning(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(COMPACT)
    manager = bench.manager()
    bad, good = dirty_log(manager, TP, 40), dirty_log(manager, OTHER, 20)

    def fail(*args: object) -> None:
        raise ValueError("a mistake in the program")

    with monkeypatch.context() as patch:
        if where == "work":
            patch.setattr(cleaner, "clean", fail)
        elif where == "commit":
            patch.setattr(cleaner.CleanJob, "_segment", fail)
        else:
            patch.setattr(LocalLog, "replace_segments", fail)
        assert any(manager.passes.compaction(NOW))
    while any(manager.passes.compaction(NOW)):
        pass
    assert [v for _, v in read_values(good)] == [b"19"]
    assert len(read_values(bad)) == 40
    assert not [n for n in bench.names() if n.endswith((".cleaned", ".swap"))]
    assert not manager.dirs.failures


def test_a_flush_that_fails_in_itself_is_followed_by_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    manager = bench.manager()
    log = manager.get_or_create_log(TP)
    append(log, batch(b"x"))

    def fail(path: str) -> None:
        raise ValueError("a mistake in the program")

    with monkeypatch.context() as patch:
        patch.setattr(bench.files, "fsync_path", fail)
        log.flush()
    assert log.recovery_point == 0
    log.flush()
    assert log.recovery_point == 1


def test_cleaned_segments_reach_the_disk_off_the_loop() -> None:
    bench = Bench(COMPACT)
    synced_by: list[int] = []

    def note(operation: str, path: str) -> None:
        if operation == "fsync":
            synced_by.append(threading.get_ident())

    async def run() -> None:
        manager = bench.manager()
        manager.start_background(asyncio.get_running_loop())
        log = dirty_log(manager, TP, 40)
        bench.files.fault = note
        assert any(manager.passes.compaction(NOW))
        async with asyncio.timeout(60):
            while log.cleaner_offset == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        bench.files.fault = None
        assert [v for _, v in read_values(log)] == [b"39"]
        manager.shutdown()

    asyncio.run(run())
    assert synced_by
    assert threading.get_ident() not in synced_by


def test_a_log_that_is_cut_before_its_cleaned_segments_are_in_place_keeps_its_own() -> None:
    bench = Bench(COMPACT)
    manager = bench.manager()
    log = dirty_log(manager, TP, 40)
    end = log.segments.base_offsets[-2]

    def cut(operation: str, path: str) -> None:
        if operation == "fsync" and any(n.endswith(".swap") for n in bench.names()):
            bench.files.fault = None
            log.truncate_to(end)

    bench.files.fault = cut
    assert any(manager.passes.compaction(NOW))
    assert log.log_end_offset == end
    assert not [n for n in bench.names() if n.endswith((".cleaned", ".swap"))]
    assert [v for _, v in read_values(log)] == [b"%d" % i for i in range(end)]
    assert log.cleaner_offset == 0
