"""Checkpoints and the choice of what to clean take many logs in slices; between two of them logs change and go."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from klamm.log import Log, LogConfig, LogManager, append_as_follower, full_disks, hosted_logs, log_checkpoints
from klamm.log.checkpoints import read_offsets
from klamm.log.hosted_logs import HostedLogs
from klamm.log.names import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)
from klamm.log.results import ReadResult
from klamm.model import TopicPartition
from tests.support.log_passes import delete_logs, write_deletions
from tests.unit.log.harness import DIR, NOW, Bench, append, batch

TPS = [TopicPartition("t", index) for index in range(5)]
COMPACT = LogConfig(segment_bytes=300, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0)
Pass = Callable[[LogManager], Iterator[object]]
PASSES: list[tuple[str, Pass]] = [
    (RECOVERY_POINT_CHECKPOINT, lambda manager: manager.checkpoints.recovery_point_pass()),
    (LOG_START_OFFSET_CHECKPOINT, lambda manager: manager.checkpoints.log_start_offset_pass()),
    (HIGH_WATERMARK_CHECKPOINT, lambda manager: manager.checkpoints.high_watermark_pass(lambda log: True)),
]
each_pass = pytest.mark.parametrize(("name", "begin"), PASSES, ids=[name for name, _ in PASSES])


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosted_logs, "LOGS_PER_SLICE", 2)


def filled(bench: Bench, *tps: TopicPartition, log_dirs: tuple[str, ...] = (DIR,)) -> LogManager:
    """Logs of three records, on the disk and committed, of which the first was deleted."""
    manager = bench.manager(log_dirs)
    for tp in tps:
        log = manager.get_or_create_log(tp, is_new=True)
        append(log, batch(b"a", b"b", b"c"))
        log.flush()
        log.update_high_watermark(3)
        log.increment_log_start_offset(1)
    return manager


def written(bench: Bench, name: str, log_dir: str = DIR) -> dict[TopicPartition, int]:
    return read_offsets(bench.files, f"{log_dir}/{name}")


@each_pass
def test_a_checkpoint_is_written_when_the_last_slice_is_collected(name: str, begin: Pass) -> None:
    bench = Bench()
    manager = filled(bench, *TPS)
    steps = begin(manager)
    for _ in range(3):
        next(steps)
        assert written(bench, name) == {}
    assert not list(steps)
    assert written(bench, name) == dict.fromkeys(TPS, 1 if name == LOG_START_OFFSET_CHECKPOINT else 3)


@each_pass
def test_a_log_that_is_deleted_meanwhile_is_not_reported(name: str, begin: Pass) -> None:
    """A checkpoint of a deleted log must not apply to the next log of that name: records would count as flushed."""
    bench = Bench()
    manager = filled(bench, *TPS)
    steps = begin(manager)
    next(steps)
    gone = [TPS[0], TPS[4]]
    delete_logs(manager, gone)
    for tp in gone:
        append(manager.get_or_create_log(tp, is_new=True), batch(b"x"))
    for _ in steps:
        pass
    assert {tp: written(bench, name).get(tp, 0) for tp in gone} == dict.fromkeys(gone, 0)
    assert set(TPS) - set(gone) <= set(written(bench, name))


@each_pass
def test_a_directory_that_fails_meanwhile_is_not_written_to(name: str, begin: Pass) -> None:
    bench = Bench()
    manager = filled(bench, *TPS, log_dirs=("/a", "/b"))
    steps = begin(manager)
    next(steps)
    manager.failed("/a", OSError(errno.EIO, "Input/output error"), "a test")
    assert len(list(steps)) == 1, "the logs of the last slice are gone"
    assert written(bench, name, "/a") == {}
    assert set(written(bench, name, "/b")) == {TPS[1], TPS[3]}


def test_a_whole_checkpoint_is_not_replaced_by_an_earlier_collection() -> None:
    bench = Bench()
    manager = filled(bench, *TPS)
    steps = manager.checkpoints.recovery_point_pass()
    next(steps)
    manager.logs[TPS[0]].truncate_to(1)
    manager.checkpoints.write_recovery_points()
    assert list(steps) == []
    assert written(bench, RECOVERY_POINT_CHECKPOINT)[TPS[0]] == 1


def test_only_high_watermarks_of_logs_with_a_partition_are_recorded() -> None:
    bench = Bench()
    manager = filled(bench, *TPS)
    list(manager.checkpoints.high_watermark_pass(lambda log: log.topic_partition == TPS[3]))
    assert written(bench, HIGH_WATERMARK_CHECKPOINT) == {TPS[3]: 3}


def looked_at(monkeypatch: pytest.MonkeyPatch, function: str) -> list[TopicPartition]:
    """The logs whose offsets are collected from now on."""
    real: Callable[[Iterable[Log]], Iterable[tuple[Log, int]]] = getattr(log_checkpoints, function)
    seen: list[TopicPartition] = []

    def noting(logs: Iterable[Log]) -> Iterable[tuple[Log, int]]:
        given = list(logs)
        seen.extend(log.topic_partition for log in given)
        return real(given)

    monkeypatch.setattr(log_checkpoints, function, noting)
    return seen


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_deletion_changes_the_checkpoints_without_a_look_at_other_logs(
    is_restarted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench()
    manager = filled(bench, *TPS)
    for tp in TPS:
        manager.logs[tp].set_cleaner_offset(2)
    list(manager.checkpoints.recovery_point_pass())
    list(manager.checkpoints.log_start_offset_pass())
    manager.checkpoints.write_cleaner_offset(manager.logs[TPS[0]])
    for tp in TPS[1:]:
        manager.checkpoints.write_cleaner_offset(manager.logs[tp])
    if is_restarted:
        manager.shutdown()
        manager = bench.manager()
    seen = [looked_at(monkeypatch, name) for name in ("recovery_points", "log_start_offsets", "cleaner_offsets")]
    delete_logs(manager, [TPS[1]])
    assert seen == [[], [], []]
    rest = [tp for tp in TPS if tp != TPS[1]]
    assert written(bench, RECOVERY_POINT_CHECKPOINT) == dict.fromkeys(rest, 3)
    assert written(bench, LOG_START_OFFSET_CHECKPOINT) == dict.fromkeys(rest, 1)
    assert written(bench, CLEANER_CHECKPOINT) == dict.fromkeys(rest, 2), (
        "a log that was created again has not been cleaned"
    )


def test_a_cleaned_log_is_reported_without_a_look_at_logs_that_were_never_cleaned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    manager = filled(bench, *TPS)
    seen = looked_at(monkeypatch, "cleaner_offsets")
    for tp in TPS[:2]:
        manager.logs[tp].set_cleaner_offset(3)
        manager.checkpoints.write_cleaner_offset(manager.logs[tp])
    assert seen[0] == TPS[0] and sorted(seen[1:]) == TPS[:2]
    manager.logs[TPS[0]].set_cleaner_offset(1)
    manager.checkpoints.write_cleaner_offset(manager.logs[TPS[1]])
    assert written(bench, CLEANER_CHECKPOINT) == {TPS[0]: 1, TPS[1]: 3}, "one that was cut is reported again"


@pytest.mark.parametrize("steps_before", [0, 1, 2, 3])
def test_a_log_that_is_moved_while_a_checkpoint_is_collected_is_recorded_where_it_is(steps_before: int) -> None:
    bench = Bench()
    manager = filled(bench, *TPS, log_dirs=("/a", "/b"))
    source = manager.logs[TPS[1]]
    target = next(log_dir for log_dir in manager.dirs.live if log_dir.path != source.log_dir)
    future = manager.futures.create(source, target)
    copied = source.read(1, 10_000, max_offset=3)
    assert isinstance(copied, ReadResult)
    append_as_follower(future, copied.records)
    future.flush()
    future.update_high_watermark(3)
    future.increment_log_start_offset(1)
    passes = [manager.checkpoints.recovery_point_pass(), manager.checkpoints.log_start_offset_pass()]
    for steps in passes:
        for _ in range(steps_before):
            next(steps)
    manager.swap_with_future(TPS[1])
    for steps in passes:
        list(steps)
    for name, offset in ((RECOVERY_POINT_CHECKPOINT, 3), (LOG_START_OFFSET_CHECKPOINT, 1)):
        assert written(bench, name, target.path)[TPS[1]] == offset
        assert TPS[1] not in written(bench, name, source.log_dir)


def test_a_log_that_is_created_again_before_its_deletion_is_written_keeps_its_entries() -> None:
    """A StopReplica that fails half-way leaves deleted logs that the next one writes the checkpoints of."""
    bench = Bench()
    manager = filled(bench, *TPS)
    manager.delete_unrecorded(TPS[1])
    log = manager.get_or_create_log(TPS[1], is_new=True)
    append(log, batch(b"a", b"b", b"c", b"d"))
    log.flush()
    log.update_high_watermark(4)
    log.increment_log_start_offset(2)
    manager.checkpoints.write_recovery_points()
    manager.checkpoints.write_log_start_offsets()
    write_deletions(manager)
    assert written(bench, RECOVERY_POINT_CHECKPOINT)[TPS[1]] == 4
    assert written(bench, LOG_START_OFFSET_CHECKPOINT)[TPS[1]] == 2


def dirty(bench: Bench) -> LogManager:
    """The log of the middle slice is the dirtiest: the others have been cleaned once."""
    manager = bench.manager()
    for tp in TPS:
        log = manager.get_or_create_log(tp, is_new=True)
        for _ in range(20):
            append(log, batch(b"x"))
        log.roll()
        log.update_high_watermark(log.log_end_offset)
        if tp != TPS[2]:
            log.set_cleaner_offset(log.log_end_offset - 2)
    return manager


def cleaned(manager: LogManager) -> list[TopicPartition]:
    return [tp for tp, log in manager.logs.items() if log.cleaner_offset == log.log_end_offset]


def test_the_dirtiest_log_of_all_slices_is_cleaned() -> None:
    manager = dirty(Bench(COMPACT))
    assert list(manager.passes.compaction(NOW)) == [False, False, False, True]
    assert cleaned(manager) == [TPS[2]]


def test_the_dirtiest_log_goes_while_it_is_looked_for() -> None:
    bench = Bench(COMPACT)
    manager = dirty(bench)
    steps = manager.passes.compaction(NOW)
    next(steps), next(steps)
    delete_logs(manager, [TPS[2]])
    append(manager.get_or_create_log(TPS[2], is_new=True), batch(b"new"))
    assert list(steps) == [False]
    assert cleaned(manager) == []
    assert any(manager.passes.compaction(NOW)), "the next pass finds another"


def test_the_dirtiest_log_is_cut_while_it_is_looked_for() -> None:
    manager = dirty(Bench(COMPACT))
    steps = manager.passes.compaction(NOW)
    next(steps), next(steps)
    manager.logs[TPS[2]].truncate_to(0)
    assert list(steps) == [False], "nothing is left of it to clean"


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_logs_of_a_failed_directory_fail_at_once_and_are_closed_in_slices(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(full_disks, "RELEASED_PER_SLICE", 2)
    closed: list[TopicPartition] = []
    real_close = Log.close_handles

    def close(log: Log) -> None:
        closed.append(log.topic_partition)
        real_close(log)

    monkeypatch.setattr(Log, "close_handles", close)
    manager = filled(Bench(), *TPS)
    logs = list(manager.logs.values())
    loop = asyncio.new_event_loop()
    with ThreadPoolExecutor(1) as worker:
        manager.start_background(loop, worker)
        manager.failed(DIR, OSError(code, "testing"), "testing")
        assert all(log.disk.is_failed for log in logs) and not manager.logs
        assert all(manager.is_offline(tp) and manager.get_log(tp) is None for tp in TPS)
        seen = [len(closed)]
        for _ in range(2):
            assert manager.passes.revival() == 0, "not before all logs are closed"
            loop.call_soon(loop.stop)
            loop.run_forever()
            seen.append(len(closed))
        assert seen == [2, 4, 5] and closed == TPS
        assert manager.passes.revival() == (code == errno.ENOSPC)
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert [*manager.logs] == (TPS if code == errno.ENOSPC else [])
    manager.abandon()
    loop.close()


def test_slices_are_filled_again() -> None:
    """Topics that come and go leave no empty slices behind, and every log is in one slice."""
    rng = Random(7)
    bench = Bench()
    manager = bench.manager()
    hosted = HostedLogs()
    logs = {tp: manager.get_or_create_log(tp, is_new=True) for tp in (TopicPartition("t", i) for i in range(30))}
    in_use: dict[TopicPartition, Log] = {}
    for _ in range(500):
        tp = rng.choice(list(logs))
        if tp in in_use:
            assert hosted.remove(tp) is in_use.pop(tp)
        elif len(in_use) < 15:
            hosted.add(logs[tp])
            in_use[tp] = logs[tp]
        slices = list(hosted.slices())
        assert sorted(log.topic_partition for part in slices for log in part) == sorted(in_use)
        assert all(len(part) <= 2 for part in slices) and len(slices) <= 15


def test_a_log_that_replaces_another_of_a_failed_directory_is_visited_once() -> None:
    """The old one is forgotten later, slice by slice."""
    manager, other = Bench().manager(), Bench().manager()
    hosted = HostedLogs()
    tp = TopicPartition("t", 0)
    old, new = (each.get_or_create_log(tp, is_new=True) for each in (manager, other))
    hosted.add(old)
    assert hosted.remove_dir(old.log_dir) == {tp: old}
    assert list(hosted.slices_in_use()) == [[]]
    hosted.add(new)
    assert list(hosted.slices_in_use()) == [[new]]
