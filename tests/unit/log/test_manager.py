"""The log manager: directories, restarts, checkpoints, deletion, retention, flushing."""

from __future__ import annotations

import asyncio
import threading
from itertools import pairwise
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from klamm.clock import SystemClock, elapsed_ms
from klamm.errors import ErrorCode, KlammError, LogDirError
from klamm.log import LogConfig, LogManager, append_as_follower
from klamm.log.background import BackgroundWorker
from klamm.log.checkpoints import MetaProperties, read_meta_properties, read_offsets
from klamm.log.files import OsFiles
from klamm.log.flush_queue import LOGS_PER_STEP
from klamm.log.jobs import Job
from klamm.log.log import Log
from klamm.log.log_manager import LogEvents, LogLimits
from klamm.model import TopicPartition
from tests.support.log_passes import change_config, delete_logs
from tests.unit.log.harness import DIR, ELAPSED, NOW, TP, Bench, append, batch, close, read_values

TOPIC_ID = UUID("11223344-5566-7788-99aa-bbccddeeff00")
SMALL = LogConfig(segment_bytes=500, file_delete_delay_ms=60_000)
HOUR = 3_600_000


def test_a_clean_restart_reads_the_end_of_each_log_only() -> None:
    bench = Bench(SMALL)
    manager = bench.manager()
    for partition in range(5):
        log = manager.get_or_create_log(TopicPartition("orders", partition), TOPIC_ID, is_new=True)
        for i in range(20):
            append(log, batch(b"%d" % i, producer=(7, 0, i)), epoch=2)
    manager.shutdown({TP: 17})
    assert ".kafka_cleanshutdown" in bench.names(DIR)
    opened: list[str] = []

    def fault(operation: str, path: str) -> None:
        if operation == "pread":
            opened.append(path)

    bench.files.fault = fault
    again = bench.manager()
    assert len(opened) == 5 and len(set(opened)) == 5  # the checksum of the last bytes, one read per log
    assert not any(log.is_open for log in again.logs.values())
    assert ".kafka_cleanshutdown" not in bench.names(DIR)
    assert len(again.logs) == 5
    log = again.logs[TP]
    assert (log.log_end_offset, log.recovery_point, log.topic_id) == (20, 20, TOPIC_ID)
    assert log.producers.entries[7].last_sequence == 19
    assert again.checkpoints.high_watermark(TP) == 17
    assert again.checkpoints.high_watermark(TopicPartition("orders", 1)) == 0
    assert [v for _, v in read_values(log)] == [b"%d" % i for i in range(20)]


def test_a_run_knows_whether_the_last_one_stopped_cleanly() -> None:
    bench = Bench(SMALL)
    manager = bench.manager()
    assert not manager.had_clean_shutdown
    manager.shutdown(is_clean=False)
    assert ".kafka_cleanshutdown" not in bench.names(DIR)
    manager = bench.manager()
    assert not manager.had_clean_shutdown
    manager.shutdown()
    done: list[tuple[str, str]] = []
    bench.files.fault = lambda operation, path: done.append((operation, path))
    assert bench.manager().had_clean_shutdown
    removed = done.index(("unlink", f"{DIR}/.kafka_cleanshutdown"))
    assert done[removed + 1] == ("fsync", DIR), "a mark that comes back after a loss of power would be a lie"


def test_an_unclean_restart_recovers_from_the_checkpoint() -> None:
    bench = Bench(SMALL)
    manager = bench.manager()
    log = manager.get_or_create_log(TP)
    for i in range(30):
        append(log, batch(b"%d" % i))
    manager.checkpoints.write_recovery_points()
    assert log.recovery_point > 0
    manager.abandon()
    again = bench.manager()
    assert again.logs[TP].log_end_offset == 30
    assert again.logs[TP].recovery_point == log.recovery_point


def test_a_directory_belongs_to_one_broker(tmp_path: object) -> None:
    first = LogManager([str(tmp_path)], clock=SystemClock(), rng=Random(0))
    first.load_logs()
    second = LogManager([str(tmp_path)], clock=SystemClock(), rng=Random(0))
    with pytest.raises(LogDirError, match="used by another broker"):
        second.load_logs()
    first.dirs.claim(MetaProperties(1, "cluster-a"))
    first.shutdown()
    second.load_logs()
    second.dirs.claim(MetaProperties(1, "cluster-a"))
    assert read_meta_properties(OsFiles(), str(tmp_path)) == MetaProperties(1, "cluster-a")
    with pytest.raises(KlammError, match="belongs to broker 1"):
        second.dirs.claim(MetaProperties(2, "cluster-a"))
    with pytest.raises(KlammError, match="belongs to cluster cluster-a"):
        second.dirs.claim(MetaProperties(1, "cluster-b"))
    second.shutdown()


def test_an_empty_file_of_the_owner_is_written_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As in Kafka; a power failure can leave it empty."""
    (tmp_path / "meta.properties").write_bytes(b"\n")
    manager = LogManager([str(tmp_path)], clock=SystemClock(), rng=Random(0))
    manager.load_logs()
    manager.dirs.claim(MetaProperties(1, "cluster-a"))
    assert read_meta_properties(OsFiles(), str(tmp_path)) == MetaProperties(1, "cluster-a")
    assert "meta.properties is empty: writing it again for broker 1 of cluster cluster-a" in caplog.text
    caplog.clear()
    manager.dirs.claim(MetaProperties(1, "cluster-a"))
    assert caplog.text == ""
    manager.shutdown()


BINARY = bytes(range(128, 256)) * 10


@pytest.mark.parametrize("content", [BINARY, b"0\n" + BINARY + b"\na 0 0\n", b"0\n1\na 0 " + BINARY + b"\n"])
def test_a_warning_about_a_damaged_checkpoint_is_short(content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.manager().shutdown()
    bench.files.write_atomic(f"{DIR}/recovery-point-offset-checkpoint", content)
    bench.manager()
    (warning,) = [record.getMessage() for record in caplog.records if "ignoring a checkpoint" in record.getMessage()]
    assert warning.isascii() and len(warning) < 700


def test_a_new_log_goes_to_the_directory_with_fewest() -> None:
    manager = Bench().manager(("/a", "/b"))
    dirs = [manager.get_or_create_log(TopicPartition("t", i), is_new=True).log_dir for i in range(4)]
    assert dirs == ["/a", "/b", "/a", "/b"]


@pytest.mark.parametrize("offset", [b"99999999999999999999999", b"-5"])
def test_a_checkpoint_with_an_offset_that_no_request_can_carry_is_not_used(offset: bytes) -> None:
    bench = Bench()
    manager = bench.manager()
    append(manager.get_or_create_log(TP), batch(b"a"))
    manager.abandon()
    for name in ("log-start-offset", "recovery-point-offset", "replication-offset"):
        bench.files.write_atomic(f"{DIR}/{name}-checkpoint", b"0\n1\norders 0 " + offset + b"\n")
    again = bench.manager()
    log = again.get_or_create_log(TP)
    assert (log.log_start_offset, log.log_end_offset) == (0, 1)
    assert again.checkpoints.high_watermark(TP) == 0


def test_links_that_lead_nowhere_do_not_keep_a_directory_from_loading(tmp_path: Path) -> None:
    (tmp_path / "dangling-0").symlink_to(tmp_path / "nowhere")
    (tmp_path / "circle-0").symlink_to(tmp_path / "circle-0")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "linked-0").symlink_to(elsewhere)
    infos = {info.name: info.is_dir for info in OsFiles().list_dir(str(tmp_path))}
    assert infos == {"circle-0": False, "dangling-0": False, "elsewhere": True, "linked-0": True}


@pytest.mark.parametrize("name", ["orders-00", "orders-\u0660", "orders-99999999999999999999", "caf\udce9-0"])
def test_a_directory_that_is_not_the_name_of_a_partition_is_passed_over(name: str) -> None:
    bench = Bench()
    manager = bench.manager()
    append(manager.get_or_create_log(TP), batch(b"a"))
    manager.abandon()
    bench.files.make_dirs(f"{DIR}/{name}")
    for _ in range(2):  # a log for it would get a directory with the usual name, and the next start would find both
        manager = bench.manager()
        assert list(manager.logs) == [TP]
        manager.abandon()


def test_a_file_whose_name_is_beyond_the_last_offset_is_not_a_segment() -> None:
    bench = Bench()
    manager = bench.manager()
    append(manager.get_or_create_log(TP), batch(b"a"))
    manager.abandon()
    bench.files.write_atomic(f"{DIR}/orders-0/99999999999999999999.log", b"x" * 50)
    assert bench.manager().get_or_create_log(TP).log_end_offset == 1


def test_topic_ids() -> None:
    bench = Bench()
    manager = bench.manager()
    log = manager.get_or_create_log(TP)
    assert log.topic_id is None
    assert manager.get_or_create_log(TP, TOPIC_ID).topic_id == TOPIC_ID
    assert log.assign_topic_id(UUID(int=5)) == ErrorCode.INCONSISTENT_TOPIC_ID
    data = bench.files.read_bytes(f"{DIR}/orders-0/partition.metadata")
    assert data == b"version: 0\ntopic_id: ESIzRFVmd4iZqrvM3e7_AA"


def test_deleting_a_log() -> None:
    bench = Bench()
    manager = bench.manager()
    append(manager.get_or_create_log(TP), batch(b"a"))
    manager.checkpoints.write_recovery_points()
    assert delete_logs(manager, [TP])[TP] == ErrorCode.NONE
    assert manager.get_log(TP) is None
    assert read_offsets(bench.files, f"{DIR}/recovery-point-offset-checkpoint") == {}
    (deleted,) = [n for n in bench.names(DIR) if n.endswith("-delete")]
    assert deleted.startswith("orders-0.")
    assert manager.get_or_create_log(TP, is_new=True).log_end_offset == 0, "the name is free at once"
    manager.passes.deletion(ELAPSED + 59_999)
    assert deleted in bench.names(DIR)
    manager.abandon()
    again = bench.manager()
    again.passes.deletion(ELAPSED + 60_000)
    assert deleted not in bench.names(DIR), "a restart continues the deletion"
    assert TP in again.logs


def test_other_directories_are_passed_over() -> None:
    bench = Bench()
    for name in ("lost+found", "orders-1.0123-future", "orders-2.0123-stray", "orders-x", " -0", "two words-0"):
        bench.files.make_dirs(f"{DIR}/{name}")
    assert bench.manager().logs == {}


def test_retention_by_size() -> None:
    bench = Bench(LogConfig(segment_bytes=500, retention_bytes=1200))
    manager = bench.manager()
    log = manager.get_or_create_log(TP)
    for i in range(60):
        append(log, batch(b"%d" % i))
    assert sum(manager.passes.retention(NOW)) == 0, "nothing above the high watermark goes"
    log.update_high_watermark(log.log_end_offset)
    assert sum(manager.passes.retention(NOW)) > 0
    assert 1200 <= log.size_bytes < 1200 + 500
    assert log.log_start_offset == log.segments.first.base_offset > 0
    assert log.leader_epochs.entries[0].start_offset == log.log_start_offset
    assert any(n.endswith(".log.deleted") for n in bench.names())
    manager.passes.deletion(ELAPSED + 60_000)
    assert not any(n.endswith(".deleted") for n in bench.names())
    assert read_values(log)[0][0] == log.log_start_offset
    snapshots = [int(n[:20]) for n in bench.names() if n.endswith(".snapshot")]
    assert all(s >= log.log_start_offset for s in snapshots)


def test_retention_by_time_takes_the_active_segment_too() -> None:
    bench = Bench(LogConfig(segment_bytes=500, retention_ms=HOUR))
    manager = bench.manager()
    log = manager.get_or_create_log(TP)
    for i in range(30):
        append(log, batch(b"%d" % i, timestamp=NOW + i * 1000))
    log.update_high_watermark(30)
    assert sum(manager.passes.retention(NOW + HOUR + 15_000)) > 0
    assert 0 < log.log_start_offset <= 15
    sum(manager.passes.retention(NOW + 2 * HOUR))
    assert (log.log_start_offset, log.log_end_offset, len(log.segments)) == (30, 30, 1)
    assert append(log, batch(b"x")).base_offset == 30
    sum(manager.passes.retention(NOW + HOUR))
    assert len(log.segments) == 1


def test_a_compacted_log_has_no_retention_but_a_start_offset() -> None:
    bench = Bench(LogConfig(segment_bytes=500, retention_ms=1, cleanup_policy=frozenset({"compact"})))
    manager = bench.manager()
    log = manager.get_or_create_log(TP)
    for i in range(30):
        append(log, batch(b"%d" % i))
    log.update_high_watermark(30)
    assert sum(manager.passes.retention(NOW + HOUR)) == 0
    assert log.increment_log_start_offset(31) == ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.increment_log_start_offset(17) == ErrorCode.NONE
    assert sum(manager.passes.retention(NOW + HOUR)) > 0
    assert log.log_start_offset == 17
    assert log.segments.first.base_offset <= 17
    manager.checkpoints.write_log_start_offsets()
    manager.abandon()
    again = bench.manager()
    assert again.logs[TP].log_start_offset == 17
    assert read_values(again.logs[TP])[0][0] <= 17


def test_a_log_start_beyond_the_end_starts_over() -> None:
    bench = Bench()
    append(bench.open(), batch(b"a"))
    log = bench.open(log_start_offset=50)
    assert (log.log_start_offset, log.log_end_offset) == (50, 50)
    assert append(log, batch(b"b")).base_offset == 50


def test_a_log_start_beyond_the_end_of_a_clean_stop_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing but a damaged file names such an offset: it must not cost the records."""
    bench = Bench()
    manager = bench.manager()
    append(manager.get_or_create_log(TP), batch(b"a", b"b"))
    manager.shutdown()
    bench.files.write_atomic(f"{DIR}/log-start-offset-checkpoint", b"0\n1\norders 0 50\n")
    log = bench.manager().logs[TP]
    assert (log.log_start_offset, log.log_end_offset, len(read_values(log))) == (0, 2, 2)
    assert "ignoring the log start offset 50 of orders-0: the log ended at 2" in caplog.text


def test_segments_roll_by_time_with_jitter() -> None:
    bench = Bench(LogConfig(segment_ms=HOUR))
    log = bench.open()
    append(log, batch(b"a", timestamp=NOW))
    append(log, batch(b"b", timestamp=NOW + HOUR))
    assert len(log.segments) == 1
    append(log, batch(b"c", timestamp=NOW + HOUR + 1))
    assert [s.base_offset for s in log.segments] == [0, 2]
    append(log, batch(b"d", timestamp=-1))
    assert len(log.segments) == 2
    jittered = Bench(LogConfig(segment_ms=HOUR, segment_jitter_ms=HOUR)).open()
    for i in range(50):
        append(jittered, batch(b"a", timestamp=NOW + i * HOUR // 8))
    assert len(jittered.segments) > 50 // 8


def test_segments_roll_when_an_index_is_full() -> None:
    log = Bench(LogConfig(segment_index_bytes=40, index_interval_bytes=10)).open()
    for i in range(30):
        append(log, batch(b"%d" % i, timestamp=NOW + i))
    assert len(log.segments) > 5
    assert all(s.offset_index.entries <= 5 for s in log.segments)
    assert [o for o, _ in read_values(log)] == list(range(30))


def test_segments_roll_before_relative_offsets_overflow() -> None:
    from klamm.protocol.record_batch import Record, build_batch

    log = Bench().open()
    append(log, batch(b"a"))
    for base_offset in (5, 1 << 31, (1 << 31) + 1, 1 << 33):
        assert append_as_follower(log, build_batch([Record(value=b"x")], base_offset=base_offset)).error == 0
    assert [s.base_offset for s in log.segments] == [0, 1 << 31, 1 << 33]
    assert [o for o, _ in read_values(log)] == [0, 5, 1 << 31, (1 << 31) + 1, 1 << 33]


def test_open_files_are_bounded() -> None:
    bench = Bench(LogConfig(segment_bytes=200))
    manager = LogManager(
        [DIR],
        clock=bench.clock,
        rng=Random(0),
        default_config=bench.config,
        files=bench.files,
        limits=LogLimits(max_open_segments=3),
    )
    manager.load_logs()
    logs = [manager.get_or_create_log(TopicPartition("t", i), is_new=True) for i in range(4)]
    for i in range(12):
        for log in logs:
            append(log, batch(b"%d" % i, producer=(1, 0, i)))
    assert sum(s.is_open for log in logs for s in log.segments) == 3
    for log in logs:
        assert [v for _, v in read_values(log)] == [b"%d" % i for i in range(12)]
    manager.shutdown()


def test_flush_messages_and_flush_ms() -> None:
    bench = Bench(LogConfig(flush_messages=3, flush_ms=1000))
    manager = bench.manager()
    log = manager.get_or_create_log(TP)
    for _ in range(2):
        append(log, batch(b"a"))
    assert log.recovery_point == 0
    append(log, batch(b"a"))
    assert log.recovery_point == 3
    append(log, batch(b"a"))
    manager.passes.flush(ELAPSED + 999)
    assert log.recovery_point == 3
    manager.passes.flush(ELAPSED + 1000)
    assert log.recovery_point == 4


@pytest.mark.parametrize("hours", [-3, 3])
def test_a_wall_clock_that_is_moved_changes_no_flush_and_no_removal(hours: int) -> None:
    bench = Bench(LogConfig(flush_ms=1000, file_delete_delay_ms=60_000))
    manager = bench.manager()
    log = manager.get_or_create_log(TP)
    append(log, batch(b"a"))
    bench.clock.corrected_ms = hours * HOUR
    manager.passes.flush(elapsed_ms(bench.clock) + 999)
    assert log.recovery_point == 0
    manager.passes.flush(elapsed_ms(bench.clock) + 1000)
    assert log.recovery_point == 1
    assert delete_logs(manager, [TP])[TP] == ErrorCode.NONE
    bench.clock.corrected_ms = 0
    assert manager.passes.deletion(elapsed_ms(bench.clock) + 59_999) == 0
    assert manager.passes.deletion(elapsed_ms(bench.clock) + 60_000) == 1
    manager.shutdown()


def test_a_flush_pass_looks_at_the_logs_that_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many logs there are: with `flush.ms` only those that were appended to, without it none."""
    looked_at: list[TopicPartition] = []
    real = Log.flush_if_older

    def counting(log: Log, now_ms: int) -> None:
        looked_at.append(log.topic_partition)
        real(log, now_ms)

    monkeypatch.setattr(Log, "flush_if_older", counting)
    manager = Bench(LogConfig(flush_ms=1000)).manager()
    logs = [manager.get_or_create_log(TopicPartition("t", i)) for i in range(200)]
    for i in (3, 3, 150):
        append(logs[i], batch(b"a"))
    manager.passes.flush(ELAPSED + 999)
    assert looked_at == []
    manager.passes.flush(ELAPSED + 1000)
    assert [tp.partition for tp in looked_at] == [3, 150]
    assert [log.recovery_point for log in logs if log.recovery_point] == [2, 1]
    manager.passes.flush(ELAPSED + 10**9)
    assert len(looked_at) == 2, "what is on the disk is not looked at again"
    change_config(manager, "t", LogConfig())
    append(logs[7], batch(b"a"))
    manager.passes.flush(ELAPSED + 10**9)
    assert len(looked_at) == 2 and logs[7].recovery_point == 0
    change_config(manager, "t", LogConfig(flush_ms=10**6))
    change_config(manager, "t", LogConfig(flush_ms=50))
    manager.passes.flush(ELAPSED + 60)
    assert [tp.partition for tp in looked_at[2:]] == [7] and logs[7].recovery_point == 1
    manager.passes.flush(ELAPSED + 10**9)
    manager.shutdown()


def test_many_flushes_that_are_due_at_once_do_not_hold_the_loop() -> None:
    manager = Bench(LogConfig(flush_ms=1000)).manager()
    logs = [manager.get_or_create_log(TopicPartition("t", i)) for i in range(5 * LOGS_PER_STEP)]
    for log in logs:
        append(log, batch(b"a"))
    rest = manager.passes.flush(ELAPSED + 1000)
    assert rest is not None
    counts = [0, sum(log.recovery_point for log in logs)]
    for _ in rest:
        counts.append(sum(log.recovery_point for log in logs))
    assert counts[-1] == len(logs) and max(after - before for before, after in pairwise(counts)) == LOGS_PER_STEP
    manager.shutdown()


def test_a_flush_that_could_not_be_done_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = Bench(LogConfig(flush_ms=1000)).manager()
    log = manager.get_or_create_log(TP)
    append(log, batch(b"a"))
    jobs: list[Job] = []
    monkeypatch.setattr(BackgroundWorker, "submit", lambda worker, job: jobs.append(job))
    manager.passes.flush(ELAPSED + 1000)
    manager.passes.flush(ELAPSED + 1500)
    assert len(jobs) == 1
    jobs[0].abandon()
    manager.passes.flush(ELAPSED + 2000)
    assert len(jobs) == 2
    manager.abandon()


def test_file_work_happens_off_the_loop(tmp_path: object) -> None:
    threads: list[str] = []

    class Watched(OsFiles):
        def fsync_path(self, path: str) -> None:
            threads.append(threading.current_thread().name)
            super().fsync_path(path)

    async def run() -> None:
        flushed: asyncio.Queue[tuple[TopicPartition, int]] = asyncio.Queue()
        manager = LogManager(
            [str(tmp_path)],
            clock=SystemClock(),
            rng=Random(0),
            default_config=LogConfig(flush_messages=1),
            files=Watched(),
            events=LogEvents(on_flushed=lambda tp, offset: flushed.put_nowait((tp, offset))),
        )
        manager.load_logs()
        manager.start_background(asyncio.get_running_loop())
        log = manager.get_or_create_log(TP, is_new=True)
        result = append(log, batch(b"a"))
        assert result.flush_pending
        assert log.recovery_point == 0, "the fsync has not been waited for"
        assert await flushed.get() == (TP, 1)
        assert log.recovery_point == 1
        assert set(threads) == {"klamm-log_0"}
        append(log, batch(b"b"))
        manager.shutdown()
        assert log.recovery_point == 2

    asyncio.run(run())


def test_preallocated_segments_are_cut_when_they_are_done() -> None:
    bench = Bench(LogConfig(segment_bytes=1000, preallocate=True))
    log = bench.open()
    for i in range(20):
        append(log, batch(b"%d" % i))
    sizes = {i.name: i.size_bytes for i in bench.files.list_dir(log.dir) if i.name.endswith(".log")}
    assert list(sizes.values())[-1] == 1000
    assert all(size < 1000 for size in list(sizes.values())[:-1])
    again = bench.open(recovery_point=log.recovery_point)
    assert [v for _, v in read_values(again)] == [b"%d" % i for i in range(20)]
    close(log)
    assert bench.open(clean=True, recovery_point=20).log_end_offset == 20


def test_files_that_a_crash_has_emptied() -> None:
    bench = Bench(SMALL)
    manager = bench.manager()
    log = manager.get_or_create_log(TP, TOPIC_ID)
    for i in range(30):
        append(log, batch(b"%d" % i), epoch=i // 10)
    epochs = log.leader_epochs.entries
    manager.shutdown()
    for name in ("partition.metadata", "leader-epoch-checkpoint"):
        bench.files.write_atomic(f"{DIR}/orders-0/{name}", b"")
    for name in ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint"):
        bench.files.write_atomic(f"{DIR}/{name}", b"garbage")
    again = bench.manager()
    log = again.get_or_create_log(TP, TOPIC_ID)
    assert (log.log_end_offset, log.topic_id, log.leader_epochs.entries) == (30, TOPIC_ID, epochs)


def test_damage_before_the_recovery_point_costs_nothing_else() -> None:
    bench = Bench(SMALL)
    log = bench.open()
    for i in range(30):
        append(log, batch(b"%d" % i, producer=(7, 0, i)))
    log.flush()
    log.close_handles()
    handle = bench.files.open(log.segments.first.path(".log"))
    handle.pwrite((b"\xff" * 20,), 12)
    for offset in tuple(log.local.snapshots.offsets):
        log.local.snapshots.remove(offset)
    bench.files.unlink(log.leader_epochs.path)
    again = bench.open(recovery_point=30)
    assert (again.log_end_offset, again.producers.entries[7].last_sequence) == (30, 29)
    assert again.read(0, 100, max_offset=30) is ErrorCode.CORRUPT_MESSAGE
    second = again.segments.base_offsets[1]
    assert [o for o, _ in read_values(again, second)] == list(range(second, 30))


def test_a_garbled_end_after_a_clean_shutdown_is_cut() -> None:
    bench = Bench(SMALL)
    log = bench.open()
    for i in range(8):
        append(log, batch(b"%d" % i))
    close(log)
    log.local.snapshots.remove(8)
    path = log.segments.active.path(".log")
    bench.files.open(path).pwrite((b"\x07" * 200,), log.segments.active.size_bytes)
    again = bench.open(clean=True, recovery_point=8)
    assert [v for _, v in read_values(again)] == [b"%d" % i for i in range(8)]
    assert append(again, batch(b"8")).base_offset == 8


def test_a_segment_that_cannot_be_closed_does_not_fail_another_log() -> None:
    bench = Bench(LogConfig(index_interval_bytes=10))
    manager = LogManager(
        ["/a", "/b"],
        clock=bench.clock,
        rng=Random(0),
        default_config=bench.config,
        files=bench.files,
        limits=LogLimits(max_open_segments=1),
    )
    manager.load_logs()
    one, two = (manager.get_or_create_log(TopicPartition("t", i), is_new=True) for i in range(2))
    for _ in range(3):
        append(one, batch(b"a"))

    def fault(operation: str, path: str) -> None:
        if path.startswith("/a/") and path.endswith("index"):
            raise OSError(5, "Input/output error", path)

    bench.files.fault = fault
    append(two, batch(b"b"))
    append(two, batch(b"b"))
    assert [d.path for d in manager.dirs.live] == ["/a", "/b"]
