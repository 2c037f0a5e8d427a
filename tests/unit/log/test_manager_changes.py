"""The cost of a change of the log manager's logs follows the change: counts and topics are kept, not computed."""

from __future__ import annotations

import errno
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from klamm.errors import ErrorCode, KlammError
from klamm.log import Log, LogConfig, LogManager, checkpoint_writer, hosted_logs, log_passes, summary_writer
from klamm.log.background import BackgroundWorker
from klamm.log.checkpoints import MetaProperties, read_meta_properties
from klamm.log.files import Files
from klamm.log.hosted_logs import LOGS_PER_SLICE
from klamm.log.jobs import Job
from klamm.log.log_passes import CHECKED_PER_STEP
from klamm.log.names import LOG_START_OFFSET_CHECKPOINT
from klamm.log.retention import MAX_DELETED
from klamm.log.summaries import LogSummary
from klamm.log.summary_writer import INSPECTED_PER_STEP, VISITED_PER_STEP, summarise
from klamm.model import TopicPartition
from tests.support.log_passes import change_config, delete_logs
from tests.unit.log.harness import DIR, NOW, TP, Bench, append, batch

DIRS = ("/a", "/b")


def partitions(topic: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(topic, i) for i in range(count)]


def in_dir(manager: LogManager, log_dir: str) -> list[TopicPartition]:
    return [tp for tp, log in manager.logs.items() if log.log_dir == log_dir]


def test_directories_stay_even_over_deletions_and_restarts() -> None:
    bench = Bench()
    manager = bench.manager(DIRS)
    for tp in partitions("t", 10):
        manager.get_or_create_log(tp, is_new=True)
    in_a = in_dir(manager, "/a")
    assert len(in_a) == 5
    delete_logs(manager, in_a[:4])
    manager.shutdown()
    again = bench.manager(DIRS)
    for tp in partitions("u", 4):
        assert again.get_or_create_log(tp, is_new=True).log_dir == "/a"
    assert len(in_dir(again, "/a")) == len(in_dir(again, "/b")) == 5


def test_a_deletion_of_many_writes_the_checkpoints_once() -> None:
    bench = Bench()
    manager = bench.manager()
    for tp in partitions("t", 20):
        log = manager.get_or_create_log(tp, is_new=True)
        append(log, batch(b"a", b"b"))
        log.update_high_watermark(2)
        log.increment_log_start_offset(1)
    manager.checkpoints.write_recovery_points()
    manager.checkpoints.write_log_start_offsets()
    written: list[str] = []

    def count(operation: str, path: str) -> None:
        if operation == "write" and path.endswith("-checkpoint"):
            written.append(path)

    bench.files.fault = count
    outcome = delete_logs(manager, partitions("t", 21))
    assert set(outcome.values()) == {ErrorCode.NONE} and len(outcome) == 21
    assert not manager.logs
    assert len(written) == 2, "recovery points and log starts"
    assert delete_logs(manager, []) == {}


def test_a_topic_config_reaches_the_logs_of_its_topic() -> None:
    bench = Bench()
    manager = bench.manager()
    for topic in ("t", "u"):
        for tp in partitions(topic, 2):
            manager.get_or_create_log(tp, is_new=True)
    small = replace(bench.config, segment_bytes=100)
    change_config(manager, "t", small)
    assert [tp for tp, log in manager.logs.items() if log.config is small] == partitions("t", 2)
    delete_logs(manager, partitions("t", 2))
    change_config(manager, "t", small)
    assert not any(log.config is small for log in manager.logs.values())


@pytest.mark.parametrize(("broker_id", "cluster_id"), [(2, "cluster-a"), (1, "cluster-b")])
@pytest.mark.parametrize("is_old", [True, False])
def test_a_refused_start_leaves_the_directories_of_another_broker_as_they_are(
    broker_id: int, cluster_id: str, is_old: bool
) -> None:
    bench = Bench()
    dirs = ("/fresh", "/a", "/b")
    owner = LogManager(dirs[1:], clock=bench.clock, rng=Random(0), files=bench.files)
    owner.load_logs(MetaProperties(1, "cluster-a"))
    append(owner.get_or_create_log(TP, is_new=True), batch(b"x"))
    owner.shutdown()
    if is_old:  # written by a version that knew no cluster ids
        bench.files.write_atomic("/a/meta.properties", b"version=0\nbroker.id=1\n")
    before = contents(bench, "/a") | contents(bench, "/b")
    other = LogManager(dirs, clock=bench.clock, rng=Random(0), files=bench.files)
    with pytest.raises(KlammError, match="belongs to"):
        other.load_logs(MetaProperties(broker_id, cluster_id))
    assert contents(bench, "/a") | contents(bench, "/b") == before
    assert contents(bench, "/fresh") == {}, "what belongs to nobody yet is not claimed either"
    owner = LogManager(dirs, clock=bench.clock, rng=Random(0), files=bench.files)
    owner.load_logs(MetaProperties(1, "cluster-a"))
    assert read_meta_properties(bench.files, "/fresh") == MetaProperties(1, "cluster-a")


def contents(bench: Bench, directory: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for info in bench.files.list_dir(directory):
        path = f"{directory}/{info.name}"
        found |= contents(bench, path) if info.is_dir else {path: bench.files.read_bytes(path)}
    return found


def test_a_directory_with_an_unreadable_owner_has_failed() -> None:
    bench = Bench()

    def fault(operation: str, path: str) -> None:
        if operation == "read" and path == "/a/meta.properties":
            raise OSError(errno.EIO, "Input/output error", path)

    bench.files.fault = fault
    manager = LogManager(DIRS, clock=bench.clock, rng=Random(0), files=bench.files)
    manager.load_logs(MetaProperties(1, "cluster-a"))
    assert [d.path for d in manager.dirs.live] == ["/b"]
    assert manager.dirs.failures == {"/a": "/a cannot be used: Input/output error"}


def test_retention_takes_many_logs_in_slices_and_leaves_those_alone_that_go_meanwhile() -> None:
    bench = Bench(LogConfig(segment_bytes=500, retention_ms=1))
    manager = bench.manager()
    tps = partitions("t", LOGS_PER_SLICE + 2)
    for tp in tps:
        log = manager.get_or_create_log(tp, is_new=True)
        append(log, batch(b"x"))
        log.update_high_watermark(1)
    steps = manager.passes.retention(NOW + 60_000)
    for shortened in range(1, LOGS_PER_SLICE + 1):
        assert next(steps) == 1
        assert sum(log.log_start_offset for log in manager.logs.values()) == shortened, "one log per step"
    gone = manager.logs[tps[-1]]
    delete_logs(manager, [tps[-1]])
    assert list(steps) == [0, 1, 0], "the ends of both slices, and the last log"
    assert gone.log_start_offset == 0
    assert [log.log_start_offset for log in manager.logs.values()] == [1] * (LOGS_PER_SLICE + 1)


def test_retention_checks_few_logs_per_step(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = 0

    def check(log: Log, now_ms: int) -> int:
        nonlocal checked
        checked += 1
        return 0

    monkeypatch.setattr(log_passes, "delete_old_segments", check)
    manager = Bench().manager()
    count = 2 * LOGS_PER_SLICE + 1
    for tp in partitions("t", count):
        manager.get_or_create_log(tp, is_new=True)
    seen = 0
    for _ in manager.passes.retention(NOW):
        assert checked - seen <= CHECKED_PER_STEP
        seen = checked
    assert checked == count


def test_retention_deletes_many_segments_of_a_log_in_steps() -> None:
    bench = Bench(LogConfig(segment_bytes=200, retention_ms=1))
    manager = bench.manager()
    log = manager.get_or_create_log(TP, is_new=True)
    for _ in range(5 * MAX_DELETED):
        append(log, batch(b"x" * 100))
    log.update_high_watermark(log.log_end_offset)
    assert len(log.segments) == 5 * MAX_DELETED
    assert list(manager.passes.retention(NOW + 60_000)) == [MAX_DELETED] * 5 + [0]
    assert log.log_start_offset == log.log_end_offset == 5 * MAX_DELETED


def test_retention_opens_one_log_per_step() -> None:
    """Its record is old, but it is above the high watermark."""
    bench = Bench(LogConfig(segment_bytes=300, retention_ms=1000))
    manager = bench.manager()
    tps = partitions("t", 5)
    for tp in tps:
        log = manager.get_or_create_log(tp, is_new=True)
        append(log, batch(b"x"))
    manager.shutdown(dict.fromkeys(tps, 0))
    manager = bench.manager()
    logs = list(manager.logs.values())
    assert not any(log.is_open for log in logs)
    steps = manager.passes.retention(NOW + 60_000)
    for opened in range(1, 6):
        assert next(steps) == 0
        assert sum(log.is_open for log in logs) == opened
    assert list(steps) == [0]


def test_changed_logs_are_summarised_in_short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosted_logs, "LOGS_PER_SLICE", 3 * INSPECTED_PER_STEP)
    manager = Bench().manager()
    for tp in partitions("t", 2 * INSPECTED_PER_STEP + 1):
        manager.get_or_create_log(tp, is_new=True)
    inspected: list[TopicPartition] = []

    def noting(files: Files, log: Log) -> LogSummary | None:
        inspected.append(log.topic_partition)
        return summarise(files, log)

    monkeypatch.setattr(summary_writer, "summarise", noting)
    counts = [len(inspected) for _ in manager.checkpoints.summary_pass()]
    assert counts == [INSPECTED_PER_STEP, 2 * INSPECTED_PER_STEP, 2 * INSPECTED_PER_STEP + 1]


def test_known_summaries_move_to_the_next_pass_one_by_one() -> None:
    bench = Bench()
    manager = bench.manager()
    count = LOGS_PER_SLICE + 1
    for tp in partitions("t", count):
        manager.get_or_create_log(tp, is_new=True)
    bench.clock.ms += 60_000
    list(manager.checkpoints.summary_pass())
    known = manager.checkpoints._summaries._known
    assert len(known) == count
    sizes = [len(known) for _ in manager.checkpoints.summary_pass()]
    assert sizes[-1] == 0
    steps = [before - after for before, after in pairwise((count, *sizes))]
    assert max(steps) <= VISITED_PER_STEP, "freeing all of them in one step would hold the loop"
    assert len(manager.checkpoints._summaries._known) == count


def test_expired_producers_are_forgotten_in_slices() -> None:
    manager = Bench().manager()
    for tp in partitions("t", LOGS_PER_SLICE + 1):
        manager.get_or_create_log(tp, is_new=True)
    assert len(list(manager.passes.producer_expiration(NOW))) == 2


def test_checkpoints_are_encoded_where_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on the loop: with many logs that takes longer than to collect the offsets."""
    manager = Bench().manager()
    manager.get_or_create_log(TP)
    jobs: list[Job] = []
    encoded: list[dict[TopicPartition, int]] = []

    def encode(entries: dict[TopicPartition, int]) -> bytes:
        encoded.append(entries)
        return b""

    monkeypatch.setattr(checkpoint_writer, "encode_offsets", encode)
    monkeypatch.setattr(BackgroundWorker, "submit", lambda worker, job: jobs.append(job))
    manager.checkpoints.write_recovery_points()
    assert (len(jobs), encoded) == (1, [])
    jobs[0].work()
    assert encoded == [{TP: 0}]


def test_a_start_removes_checkpoint_entries_of_logs_that_are_gone() -> None:
    """A crash after a deletion and before its checkpoint: a topic created again must not inherit the old offsets."""
    bench = Bench()
    manager = bench.manager()
    gone, kept = partitions("t", 2)
    for tp in (gone, kept):
        log = manager.get_or_create_log(tp, is_new=True)
        append(log, batch(b"a", b"b"))
        log.update_high_watermark(2)
        log.increment_log_start_offset(1)
    manager.checkpoints.write_log_start_offsets()
    manager.delete_unrecorded(gone)
    manager.dirs.release()
    bench.manager()
    text = bench.files.read_bytes(f"{DIR}/{LOG_START_OFFSET_CHECKPOINT}").decode()
    assert text.splitlines() == ["0", "1", f"{kept} 1".replace("-", " ")]
