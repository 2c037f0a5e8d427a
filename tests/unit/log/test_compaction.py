"""Compaction: what stays, what goes and when, and a crash at any step of the exchange."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from klamm.errors import ErrorCode
from klamm.log import Log, LogConfig, LogManager
from klamm.protocol.compression import CompressionType
from klamm.protocol.record_batch import Record, TimestampType, build_batch, records
from tests.support.log_passes import delete_logs
from tests.unit.log.harness import DIR, ELAPSED, NOW, TP, Bench, append, batch, end_txn, read_batches

DAY = 86_400_000
COMPACT = LogConfig(segment_bytes=300, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0)


def put(log: Log, key: bytes, value: bytes | None, timestamp: int = NOW) -> None:
    append(log, build_batch([Record(timestamp=timestamp, key=key, value=value)]))


def compact(manager: LogManager, log: Log, now_ms: int = NOW) -> None:
    """Rolls, so that all but the new segment can be cleaned, and cleans until nothing is dirty."""
    log.roll()
    log.update_high_watermark(log.log_end_offset)
    for _ in range(20):
        if not any(manager.passes.compaction(now_ms)):
            return
    raise AssertionError("the log does not become clean")


def start(config: LogConfig = COMPACT) -> tuple[Bench, LogManager, Log]:
    bench = Bench(config)
    manager = bench.manager()
    return bench, manager, manager.get_or_create_log(TP)


def rows(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(r.offset, r.key, r.value) for b in read_batches(log) if not b.is_control for r in records(b)]


def test_the_newest_value_of_every_key_stays_at_its_offset() -> None:
    bench, manager, log = start()
    for i in range(50):
        put(log, b"k%d" % (i % 7), b"%d" % i)
    compact(manager, log)
    assert rows(log) == [(i, b"k%d" % (i % 7), b"%d" % i) for i in range(43, 50)]
    assert (log.log_start_offset, log.log_end_offset) == (0, 50)
    for i in range(50, 60):
        put(log, b"k1", b"%d" % i)
    compact(manager, log)
    expected = [r for r in [(i, b"k%d" % (i % 7), b"%d" % i) for i in range(43, 50)] if r[1] != b"k1"]
    assert rows(log) == [*expected, (59, b"k1", b"59")]
    found = log.read(0, 10, max_offset=60)
    assert not isinstance(found, ErrorCode)
    manager.passes.deletion(ELAPSED + DAY)
    assert not any(n.endswith((".deleted", ".cleaned", ".swap")) for n in bench.names())
    manager.shutdown()
    again = bench.manager().logs[TP]
    assert rows(again) == rows(log)
    assert again.cleaner_offset == 60


@pytest.mark.parametrize("codec", list(CompressionType))
@pytest.mark.parametrize("kind", list(TimestampType))
def test_a_batch_that_loses_records_keeps_everything_else(codec: CompressionType, kind: TimestampType) -> None:
    _, manager, log = start(replace(COMPACT, message_timestamp_type=kind))
    data = [Record(timestamp=NOW + i, key=k, value=b"v%d" % i) for i, k in enumerate((b"a", b"b", b"a", b"c"))]
    append(log, build_batch(data, compression=codec, producer_id=9, producer_epoch=1, base_sequence=5), epoch=3)
    compact(manager, log)
    (stored,) = read_batches(log)
    assert stored.is_valid()
    assert (stored.base_offset, stored.last_offset, stored.record_count) == (0, 3, 3)
    assert (stored.producer_id, stored.base_sequence, stored.last_sequence) == (9, 5, 8)
    assert (stored.compression, stored.partition_leader_epoch, stored.timestamp_type) == (codec, 3, kind)
    assert [(r.offset, r.value) for r in records(stored)] == [(1, b"v1"), (2, b"v2"), (3, b"v3")]
    times = [NOW + 1, NOW + 2, NOW + 3] if kind is TimestampType.CREATE_TIME else [NOW] * 3
    assert [r.timestamp for r in records(stored)] == times


def test_tombstones_go_after_their_horizon() -> None:
    _, manager, log = start()
    put(log, b"a", b"1")
    put(log, b"b", b"1")
    put(log, b"a", None)
    compact(manager, log)
    assert rows(log) == [(1, b"b", b"1"), (2, b"a", None)]
    horizons = [b.delete_horizon_ms for b in read_batches(log)]
    assert horizons == [None, NOW + DAY]
    assert [r.timestamp for b in read_batches(log) for r in records(b)] == [NOW, NOW]
    put(log, b"c", b"1")
    compact(manager, log, NOW + DAY - 1)
    assert (2, b"a", None) in rows(log)
    put(log, b"d", b"1")
    compact(manager, log, NOW + DAY)
    assert rows(log) == [(1, b"b", b"1"), (3, b"c", b"1"), (4, b"d", b"1")]


def test_aborted_records_go_at_once_and_their_markers_after_the_horizon() -> None:
    _, manager, log = start()
    append(log, batch(b"keep", key=b"a"))
    append(log, batch(b"aborted", key=b"a", producer=(1, 0, 0), transactional=True))
    append(log, batch(b"committed", key=b"b", producer=(2, 0, 0), transactional=True))
    end_txn(log, 1, abort=True)
    end_txn(log, 2, abort=False)
    append(log, batch(b"later", key=b"z", producer=(1, 0, 1)))
    append(log, batch(b"later", key=b"y", producer=(2, 0, 1)))
    compact(manager, log)
    values = [v for _, _, v in rows(log)]
    assert values == [b"keep", b"committed", b"later", b"later"], "an aborted record replaces nothing"
    assert [b.base_offset for b in read_batches(log) if b.is_control] == [3, 4]
    put(log, b"x", b"1")
    compact(manager, log, NOW + 1)
    assert [b.delete_horizon_ms for b in read_batches(log) if b.is_control] == [NOW + 1 + DAY, None]
    put(log, b"x", b"2")
    compact(manager, log, NOW + 1 + DAY)
    assert [b.base_offset for b in read_batches(log) if b.is_control] == [4], "the commit marker has a record left"
    assert log.local.collect_aborted(0, 100) == ()


def test_the_last_batch_of_a_producer_stays_empty() -> None:
    bench, manager, log = start()
    append(log, batch(b"1", key=b"a", producer=(9, 3, 0)))
    append(log, batch(b"2", key=b"a", producer=(9, 3, 1)))
    put(log, b"a", b"3")
    compact(manager, log)
    assert [(b.base_offset, b.record_count, b.producer_id) for b in read_batches(log)] == [(1, 0, 9), (2, 1, -1)]
    manager.abandon()
    again = bench.manager().logs[TP]
    assert append(again, batch(b"2", key=b"a", producer=(9, 3, 1))).is_duplicate
    assert append(again, batch(b"3", key=b"a", producer=(9, 3, 2))).base_offset == 3


def test_records_that_may_not_be_cleaned_yet() -> None:
    _, manager, log = start(replace(COMPACT, min_compaction_lag_ms=1000))
    for i in range(20):
        put(log, b"k", b"%d" % i, timestamp=NOW + i * 100)
    log.roll()
    assert not any(manager.passes.compaction(NOW + DAY)), "nothing is below the high watermark"
    log.update_high_watermark(20)
    assert not any(manager.passes.compaction(NOW + 900))
    assert any(manager.passes.compaction(NOW + 2000))
    assert len(rows(log)) > 5, "the young segments are left alone"
    any(manager.passes.compaction(NOW + DAY))
    assert rows(log) == [(19, b"k", b"19")]


def test_an_open_transaction_holds_the_cleaner_back() -> None:
    _, manager, log = start()
    for i in range(10):
        put(log, b"k", b"%d" % i)
    log.roll()
    append(log, batch(b"open", key=b"k", producer=(1, 0, 0), transactional=True))
    for i in range(10):
        put(log, b"k", b"later %d" % i)
    compact(manager, log)
    assert [o for o, _, _ in rows(log)][:2] == [9, 10]
    assert log.cleaner_offset == 10


def test_the_dirty_ratio_decides() -> None:
    _, manager, log = start(replace(COMPACT, min_cleanable_dirty_ratio=0.5, segment_bytes=1 << 20))
    for i in range(50):
        put(log, b"k%d" % i, b"v" * 10)
    compact(manager, log)
    for i in range(10):
        put(log, b"k%d" % i, b"w" * 10)
    log.roll()
    log.update_high_watermark(log.log_end_offset)
    assert not any(manager.passes.compaction(NOW))
    log.update_config(replace(log.config, max_compaction_lag_ms=1000))
    assert any(manager.passes.compaction(NOW + 1001)), "records wait no longer than max.compaction.lag.ms"


def test_segments_are_merged() -> None:
    bench, manager, log = start(replace(COMPACT, segment_bytes=400))
    for i in range(200):
        put(log, b"k%d" % (i % 3), b"%d" % i)
    assert len(log.segments) > 20
    for _ in range(3):
        put(log, b"x", b"1")
        compact(manager, log)
    assert len(log.segments) < 10
    assert [v for _, _, v in rows(log)] == [b"197", b"198", b"199", b"1"]
    manager.passes.deletion(ELAPSED + DAY)
    snapshots = {int(n[:20]) for n in bench.names() if n.endswith(".snapshot")}
    assert snapshots <= {*log.segments.base_offsets, log.log_end_offset}


def test_a_small_map_cleans_in_several_rounds() -> None:
    import klamm.log.cleaner as cleaner

    _, _, log = start()
    for i in range(60):
        put(log, b"k%d" % (i % 20), b"%d" % i)
    log.roll()
    log.update_high_watermark(60)
    target = cleaner.dirtiest([log], NOW)
    assert target is not None
    job = cleaner.CleanJob(log.env, target, NOW, lambda job, to: job.log.set_cleaner_offset(to or 0))
    job.plan = replace(job.plan, max_keys=5)
    job.work()
    job.commit()
    assert 0 < log.cleaner_offset < 60
    assert [v for _, _, v in rows(log)][-20:] == [b"%d" % i for i in range(40, 60)]


def test_a_log_cut_while_it_is_cleaned_is_left_alone() -> None:
    import klamm.log.cleaner as cleaner

    bench, _, log = start()
    for i in range(40):
        put(log, b"k", b"%d" % i)
    log.roll()
    log.update_high_watermark(40)
    target = cleaner.dirtiest([log], NOW)
    assert target is not None
    outcome: list[int | None] = []
    job = cleaner.CleanJob(log.env, target, NOW, lambda log, to: outcome.append(to))
    job.work()
    assert any(n.endswith(".cleaned") for n in bench.names())
    log.truncate_to(20)
    job.commit()
    assert outcome == [None]
    assert not any(n.endswith(".cleaned") for n in bench.names())
    assert [v for _, _, v in rows(log)] == [b"%d" % i for i in range(20)]


def test_a_topic_deleted_while_it_is_cleaned() -> None:
    import klamm.log.cleaner as cleaner

    _, manager, log = start()
    for i in range(40):
        put(log, b"k", b"%d" % i)
    log.roll()
    log.update_high_watermark(40)
    target = cleaner.dirtiest([log], NOW)
    assert target is not None
    job = cleaner.CleanJob(log.env, target, NOW, lambda log, to: None)
    delete_logs(manager, [TP])
    job.work()
    job.commit()
    assert [d.path for d in manager.dirs.live] == [DIR]


class Stop(Exception):
    """The process is killed here."""


@pytest.mark.parametrize("step", range(107))
def test_a_crash_at_any_step_of_the_exchange(step: int) -> None:
    bench, manager, log = start()
    for i in range(30):
        put(log, b"k%d" % (i % 4), b"%d" % i)
    append(log, batch(b"gone", key=b"k1", producer=(1, 0, 0), transactional=True))
    end_txn(log, 1, abort=True)
    log.roll()
    log.update_high_watermark(log.log_end_offset)
    newest = {b"k0": b"28", b"k1": b"29", b"k2": b"26", b"k3": b"27"}
    countdown = step

    def fault(operation: str, path: str) -> None:
        nonlocal countdown
        if operation in ("rename", "unlink", "write", "pwrite"):
            countdown -= 1
            if countdown < 0:
                raise Stop

    bench.files.fault = fault
    crashed = True
    try:
        any(manager.passes.compaction(NOW))
        crashed = False
    except Stop:
        pass
    bench.files.fault = None
    after = Bench(COMPACT, bench.files)
    manager.dirs.release()
    again = after.manager().logs[TP]
    assert again.log_end_offset == log.log_end_offset
    aborted = {t.producer_id for t in again.local.collect_aborted(0, 1 << 40)}
    table = {
        r.key: r.value
        for b in read_batches(again)
        if not b.is_control and not (b.is_transactional and b.producer_id in aborted)
        for r in records(b)
    }
    assert table == newest
    assert not any(n.endswith((".cleaned", ".swap")) for n in after.names())
    offsets = [b.base_offset for b in read_batches(again)]
    assert offsets == sorted(set(offsets))
    assert crashed or len(offsets) < 10


def test_a_full_disk_while_cleaning_takes_the_directory_offline() -> None:
    bench, manager, log = start()
    for i in range(40):
        put(log, b"k", b"%d" % i)
    log.roll()
    log.update_high_watermark(40)

    def fault(operation: str, path: str) -> None:
        if ".cleaned" in path and operation == "pwrite":
            raise OSError(errno.ENOSPC, "No space left on device", path)

    bench.files.fault = fault
    any(manager.passes.compaction(NOW))
    assert log.disk.is_failed
    assert manager.get_log(TP) is None
