"""A disk that is full, read-only or broken: KAFKA_STORAGE_ERROR, nothing half-written, and the broker lives."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path
from random import Random

import pytest

from klamm.clock import SystemClock
from klamm.errors import ErrorCode, LogDirError
from klamm.log import AppendOrigin, LogConfig, LogManager, append_as_follower, append_as_leader, names
from klamm.log.log_manager import LogEvents
from klamm.log.memory_files import MemoryFiles
from klamm.model import TopicPartition
from tests.support.log_passes import delete_logs
from tests.support.record_batches import assign_offsets
from tests.unit.log.harness import DIR, TP, Bench, append, batch, end_txn, marker, read_values


class Faults:
    """Fails the n-th matching operation."""

    def __init__(self, operation: str, part: str, number: int = 0, code: int = errno.EIO) -> None:
        self.operation, self.part, self.countdown, self.code = operation, part, number, code
        self.partial: int | None = None

    def __call__(self, operation: str, path: str) -> int | None:
        if operation != self.operation or self.part not in path:
            return None
        self.countdown -= 1
        if self.countdown >= 0:
            return None
        if self.partial is not None:
            return self.partial
        raise OSError(self.code, os.strerror(self.code), path)


def manager_with(
    files: MemoryFiles, dirs: tuple[str, ...] = (DIR,), config: LogConfig | None = None
) -> tuple[LogManager, list[tuple[str, str]]]:
    failures: list[tuple[str, str]] = []
    manager = LogManager(
        dirs,
        clock=Bench().clock,
        rng=Random(0),
        default_config=config or LogConfig(segment_bytes=500),
        files=files,
        events=LogEvents(on_dir_failure=lambda log_dir, sentence: failures.append((log_dir, sentence))),
    )
    manager.load_logs()
    return manager, failures


@pytest.mark.parametrize("partial", [0, 1, 20, 70])
def test_a_full_disk(partial: int, caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    manager, failures = manager_with(files)
    log = manager.get_or_create_log(TP)
    for i in range(3):
        append(log, batch(b"%d" % i, producer=(7, 0, i)))
    fault = Faults("pwrite", ".log")
    fault.partial = partial
    files.fault = fault
    result = append_as_leader(log, batch(b"x", producer=(7, 0, 3)), 0)
    assert result.error == ErrorCode.KAFKA_STORAGE_ERROR
    assert "No space left" in (result.error_message or "")
    assert failures == [(DIR, f"{DIR} has failed while appending to {DIR}/orders-0: No space left on device")]
    assert "No space left" in caplog.text
    files.fault = None
    assert log.read(0, 100, max_offset=3) is ErrorCode.KAFKA_STORAGE_ERROR
    assert append_as_leader(log, batch(b"x"), 0).error == ErrorCode.KAFKA_STORAGE_ERROR
    assert manager.get_log(TP) is None
    with pytest.raises(LogDirError):
        manager.get_or_create_log(TP)
    assert delete_logs(manager, [TP])[TP] == ErrorCode.KAFKA_STORAGE_ERROR
    assert len(failures) == 1
    assert files.list_dir(f"{DIR}/orders-0")[1].size_bytes == log.size_bytes, "what was half-written was cut off"
    manager.abandon()
    again, _ = manager_with(files)
    assert [v for _, v in read_values(again.logs[TP])] == [b"0", b"1", b"2"]
    assert append(again.logs[TP], batch(b"x", producer=(7, 0, 3))).base_offset == 3


class SmallDisk(MemoryFiles):
    """Has the room that a test gives it."""

    usable = 1 << 40

    def disk_usage(self, path: str) -> tuple[int, int]:
        return 1 << 40, self.usable


@pytest.mark.parametrize("partial", [0, 20, 70])
def test_a_full_disk_that_has_room_again_comes_back(partial: int) -> None:
    files = SmallDisk()
    revived: list[str] = []
    manager = LogManager(
        (DIR, "/other"),
        clock=Bench().clock,
        rng=Random(0),
        files=files,
        events=LogEvents(on_dir_revival=revived.append),
    )
    manager.load_logs()
    logs = [manager.get_or_create_log(TopicPartition("t", i), is_new=True) for i in range(4)]
    full, idle = (log for log in logs if log.log_dir == DIR)
    append(full, batch(b"kept", producer=(7, 0, 0)))
    append(idle, batch(b"idle"))
    full.update_high_watermark(1)
    fault = Faults("pwrite", ".log")
    fault.partial = partial
    files.fault = fault
    assert append_as_leader(full, batch(b"x", producer=(7, 0, 1)), 0).error == ErrorCode.KAFKA_STORAGE_ERROR
    tp, other = full.topic_partition, idle.topic_partition
    assert manager.get_log(tp) is None and manager.get_log(other) is None and manager.is_offline(tp)

    files.usable = 0
    assert manager.passes.revival() == 1 and manager.dirs.failures and not revived
    files.fault = Faults("write", ".klamm-probe", code=errno.ENOSPC)
    files.usable = 1 << 40
    assert manager.passes.revival() == 1 and manager.dirs.failures and not revived
    files.fault = None
    assert manager.passes.revival() == 1
    assert revived == [DIR] and not manager.dirs.failures and not manager.is_offline(tp)
    assert ".klamm-probe" not in [i.name for i in files.list_dir(DIR)]
    assert manager.passes.revival() == 0
    again = manager.get_or_create_log(tp)
    assert [v for _, v in read_values(again)] == [b"kept"] and manager.checkpoints.high_watermark(tp) == 1
    assert append(again, batch(b"x", producer=(7, 0, 1))).base_offset == 1
    assert append(manager.get_or_create_log(other), batch(b"more")).base_offset == 1
    manager.shutdown()
    assert files.exists(f"{DIR}/.kafka_cleanshutdown")


@pytest.mark.parametrize("begins", ["before", "while it is full"])
def test_a_disk_that_comes_back_during_a_checkpoint(begins: str) -> None:
    """The pass has not seen all logs of the directory, so it must not write the directory's file."""
    files = SmallDisk()
    manager = LogManager((DIR,), clock=Bench().clock, rng=Random(0), files=files)
    manager.load_logs()
    log = manager.get_or_create_log(TopicPartition("t", 0), is_new=True)
    append(log, batch(b"kept"))
    path = f"{DIR}/{names.RECOVERY_POINT_CHECKPOINT}"
    manager.checkpoints.write_recovery_points()
    written = files.read_bytes(path)
    checkpoint = manager.checkpoints.recovery_point_pass()
    files.fault = Faults("pwrite", ".log", code=errno.ENOSPC)
    assert append_as_leader(log, batch(b"x"), 0).error == ErrorCode.KAFKA_STORAGE_ERROR
    if begins != "before":
        checkpoint = manager.checkpoints.recovery_point_pass()
    files.fault = None
    files.usable = 1 << 40
    assert manager.passes.revival() == 1 and not manager.dirs.failures
    for _ in checkpoint:
        pass
    assert files.read_bytes(path) == written
    for _ in manager.checkpoints.recovery_point_pass():
        pass
    assert b"t 0 " in files.read_bytes(path)


def test_a_broken_disk_does_not_come_back() -> None:
    files = MemoryFiles()
    manager, failures = manager_with(files)
    log = manager.get_or_create_log(TP)
    files.fault = Faults("fsync", ".log")
    append(log, batch(b"x"))
    log.flush()
    files.fault = None
    assert len(failures) == 1
    assert manager.passes.revival() == 0 and manager.is_offline(TP)


def test_the_other_directories_continue() -> None:
    files = MemoryFiles()
    manager, failures = manager_with(files, ("/a", "/b"))
    one, two = (manager.get_or_create_log(TopicPartition("t", i), is_new=True) for i in range(2))
    files.fault = Faults("pwrite", "/a/")
    assert append_as_leader(one, batch(b"x"), 0).error == ErrorCode.KAFKA_STORAGE_ERROR
    append(two, batch(b"y"))
    assert [f[0] for f in failures] == ["/a"]
    assert [d.path for d in manager.dirs.live] == ["/b"]
    with pytest.raises(LogDirError, match="may be on /a"):
        manager.get_or_create_log(TopicPartition("t", 9))
    assert manager.get_or_create_log(TopicPartition("t", 9), is_new=True).log_dir == "/b"
    manager.shutdown()
    assert not files.exists("/a/.kafka_cleanshutdown")
    assert files.exists("/b/.kafka_cleanshutdown")


@pytest.mark.parametrize(
    ("operation", "part"),
    [("open", ".log"), ("pread", ".log"), ("open", ".index"), ("write", ".snapshot"), ("fsync", ".log")],
)
@pytest.mark.parametrize("number", range(3))
def test_an_error_anywhere_is_an_answer(operation: str, part: str, number: int) -> None:
    files = MemoryFiles()
    manager, failures = manager_with(files)
    log = manager.get_or_create_log(TP)
    append(log, batch(b"first"))
    files.fault = Faults(operation, part, number)
    results = [append_as_leader(log, batch(b"%d" % i), 0) for i in range(40)]
    reads = [log.read(o, 100, max_offset=log.log_end_offset) for o in range(log.log_end_offset)]
    log.offset_for_timestamp(5)
    sum(manager.passes.retention(1 << 50))
    log.flush()
    files.fault = None
    errors = {r.error for r in results} | {r for r in reads if isinstance(r, ErrorCode)}
    assert errors <= {ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.OFFSET_OUT_OF_RANGE}
    assert len(failures) == 1
    manager.abandon()
    again, _ = manager_with(files)
    acknowledged = sum(r.error == ErrorCode.NONE for r in results)
    assert again.logs[TP].log_end_offset >= acknowledged + 1


@pytest.mark.parametrize("operation", ["fsync", "write", "rename", "unlink", "rmtree", "mkdir"])
def test_an_error_in_the_managers_own_work(operation: str) -> None:
    files = MemoryFiles()
    manager, failures = manager_with(files)
    log = manager.get_or_create_log(TP)
    for i in range(20):
        append(log, batch(b"%d" % i))
    log.update_high_watermark(20)
    files.fault = Faults(operation, DIR)
    manager.passes.flush(1 << 62)
    sum(manager.passes.retention(1 << 62))
    manager.checkpoints.write_recovery_points()
    delete_logs(manager, [TP])
    if not failures:
        manager.passes.deletion(1 << 62)
    if not failures:
        with pytest.raises(LogDirError, match="cannot be created"):
            manager.get_or_create_log(TopicPartition("new", 0), is_new=True)
    assert len(failures) == 1
    manager.shutdown()
    assert not files.exists(f"{DIR}/.kafka_cleanshutdown")


def test_the_failure_of_the_last_directory_is_reported() -> None:
    files = MemoryFiles(Faults("mkdir", DIR, code=errno.EROFS))
    with pytest.raises(LogDirError, match="no log directory can be used: /data cannot be used: Read-only"):
        manager_with(files)


def test_the_kernel_refuses_in_the_middle_of_a_write(tmp_path: Path) -> None:
    manager = LogManager([str(tmp_path)], clock=SystemClock(), rng=Random(0))
    manager.load_logs()
    log = manager.get_or_create_log(TP)
    append(log, batch(b"a" * 100))
    size = log.size_bytes
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, limits[1]))
    try:
        result = append_as_leader(log, batch(b"b" * 100), 0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert result.error == ErrorCode.KAFKA_STORAGE_ERROR
    assert result.error_message == "the disk failed: File too large"
    assert (tmp_path / "orders-0" / "00000000000000000000.log").stat().st_size == size
    manager.abandon()
    again = LogManager([str(tmp_path)], clock=SystemClock(), rng=Random(0))
    again.load_logs()
    assert read_values(again.logs[TP]) == [(0, b"a" * 100)]
    again.shutdown()


@pytest.mark.parametrize("as_leader", [True, False])
def test_a_disk_that_is_full_when_flush_messages_is_due(as_leader: bool) -> None:
    files = MemoryFiles()
    config = LogConfig(flush_messages=1, index_interval_bytes=0)
    manager, failures = manager_with(files, config=config)
    log = manager.get_or_create_log(TP)
    append(log, batch(b"first"))
    files.fault = Faults("pwrite", ".index", code=errno.ENOSPC)
    if as_leader:
        results = [append_as_leader(log, batch(b"again"), 0) for _ in range(3)]
    else:
        stored = bytearray(batch(b"again"))
        assign_offsets(stored, 1, 0)
        results = [append_as_follower(log, stored) for _ in range(3)]
    assert [r.error for r in results] == [ErrorCode.KAFKA_STORAGE_ERROR] * 3
    assert len(failures) == 1
    assert log.log_end_offset <= 2, "a retry is not appended beside what it repeats"


@pytest.mark.parametrize(("operation", "part"), [("open", ".txnindex"), ("pwrite", ".txnindex")])
def test_an_aborted_transaction_that_cannot_be_noted_is_an_answer(operation: str, part: str) -> None:
    files = MemoryFiles()
    manager, failures = manager_with(files)
    log = manager.get_or_create_log(TP)
    append(log, batch(b"x", producer=(1, 0, 0), transactional=True), origin=AppendOrigin.COORDINATOR)
    files.fault = Faults(operation, part)
    result = append_as_leader(log, marker(1, 0, abort=True), 0, origin=AppendOrigin.COORDINATOR)
    assert result.error == ErrorCode.KAFKA_STORAGE_ERROR
    assert len(failures) == 1
    files.fault = None
    manager.abandon()
    again, _ = manager_with(files)
    log = again.logs[TP]
    if operation == "open":
        assert log.log_end_offset == 1 and log.producers.first_unstable_offset == 0, "the transaction is still open"
        end_txn(log, 1, abort=True)
    assert [t.producer_id for t in log.local.collect_aborted(0, 10)] == [1], "recovery finds it"


@pytest.mark.parametrize(
    ("operation", "part"),
    [("open", ".log"), ("pwrite", ".cleaned"), ("rename", ".cleaned"), ("fsync", DIR), ("rename", ".swap")],
)
@pytest.mark.parametrize("number", range(4))
def test_an_error_anywhere_in_a_cleaner_pass_loses_nothing(operation: str, part: str, number: int) -> None:
    files = MemoryFiles()
    config = LogConfig(segment_bytes=300, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0)
    manager, failures = manager_with(files, config=config)
    log = manager.get_or_create_log(TP)
    for i in range(30):
        append(log, batch(b"%d" % i))
    log.roll()
    log.update_high_watermark(30)
    log.flush()
    files.fault = Faults(operation, part, number)
    any(manager.passes.compaction(1 << 50))
    files.fault = None
    assert [f[0] for f in failures] in ([DIR], [])
    manager.abandon()
    again, _ = manager_with(files, config=config)
    values = [v for _, v in read_values(again.logs[TP])]
    assert values[-1] == b"29"
    assert again.logs[TP].log_end_offset == 30
