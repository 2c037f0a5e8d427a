"""A full disk that has room again: the file work is done off the loop, and the logs return in steps."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from klamm.clock import SystemClock, elapsed_ms
from klamm.errors import ErrorCode, LogDirError
from klamm.log import Log, LogConfig, LogManager, append_as_leader, full_disks
from klamm.log.log_manager import LogEvents
from klamm.log.memory_files import MemoryFiles
from klamm.log.names import LOG_START_OFFSET_CHECKPOINT
from klamm.model import TopicPartition
from tests.support.log_passes import change_config
from tests.unit.log.harness import DIR, Bench, append, batch, end_txn, read_batches, read_values

TPS = [TopicPartition("t", index) for index in range(5)]
FULL = TPS[0]
YOUNGEST = 9


class Worker(Executor):
    """Does its jobs when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.jobs.append((future, lambda: fn(*args, **kwargs)))
        return future

    def do_all(self) -> None:
        while self.jobs:
            future, work = self.jobs.pop(0)
            try:
                future.set_result(work())
            except OSError as e:
                future.set_exception(e)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.do_all()


@dataclass
class Stage:
    """Five logs, two of them with three records, on a disk that became full while one of them was written."""

    config: LogConfig
    loop: asyncio.AbstractEventLoop
    files: MemoryFiles = field(default_factory=MemoryFiles)
    worker: Worker = field(default_factory=Worker)
    used: list[tuple[str, str]] = field(default_factory=list)
    """The operations on files since the disk has room."""
    refused: dict[tuple[str, str], int] = field(default_factory=dict)
    """Operations that fail, and how."""
    revived: list[str] = field(default_factory=list)

    def start(self) -> LogManager:
        self.manager = LogManager(
            (DIR,),
            clock=SystemClock(),
            rng=Random(0),
            default_config=self.config,
            files=self.files,
            events=LogEvents(on_dir_revival=self.revived.append),
        )
        self.manager.load_logs()
        self.manager.start_background(self.loop, self.worker)
        self.manager.number_connections(lambda: YOUNGEST)
        return self.manager

    def fill(self) -> None:
        for tp in TPS:
            log = self.manager.get_or_create_log(tp, is_new=True)
            for number in range(3) if tp in TPS[:2] else ():
                append(log, batch(b"%d" % number, producer=(7, 0, number), transactional=True))
            log.update_high_watermark(2)
        end_txn(self.manager.logs[FULL], 7, abort=True)
        self.manager.logs[FULL].update_high_watermark(4)
        assert self.manager.logs[TPS[1]].increment_log_start_offset(2) is ErrorCode.NONE
        self.manager.checkpoints.write_log_start_offsets()
        self.do_all()
        self.files.fault = lambda operation, path: 20 if operation == "pwrite" and path.endswith(".log") else None
        result = append_as_leader(self.manager.logs[FULL], batch(b"x"), 0)
        assert result.error is ErrorCode.KAFKA_STORAGE_ERROR
        self.do_all()
        self.files.fault = self._note

    def _note(self, operation: str, path: str) -> None:
        self.used.append((operation, path))
        for (refused, part), code in self.refused.items():
            if operation == refused and part in path:
                raise OSError(code, os.strerror(code), path)

    def turn(self) -> None:
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()

    def do_all(self) -> None:
        self.worker.do_all()
        self.turn()

    @property
    def returned(self) -> list[TopicPartition]:
        return [tp for tp in TPS if self.manager.get_log(tp) is not None]


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr(full_disks, "RETURNED_PER_STEP", 2)
    loop = asyncio.new_event_loop()
    made = Stage(LogConfig(segment_bytes=400), loop)
    made.start()
    made.fill()
    yield made
    made.manager.abandon()
    loop.close()


def check_log(log: Log) -> None:
    """The log that was half-written has its records, and can be written again."""
    assert [value for _, value in read_values(log)] == [b"0", b"1", b"2"]
    assert append(log, batch(b"3", producer=(7, 0, 3))).base_offset == 4


def test_the_loop_uses_no_file_and_returns_few_logs_per_turn(stage: Stage) -> None:
    manager = stage.manager
    assert manager.passes.revival() == 1
    stage.worker.do_all()
    assert any(operation == "pread" and "t-0" in path for operation, path in stage.used), "the log is recovered"
    assert stage.returned == [] and all(manager.is_offline(tp) for tp in TPS)
    stage.used.clear()
    for count in (2, 4, 5):
        assert manager.dirs.failures and not stage.revived
        stage.turn()
        assert stage.returned == TPS[:count]
        assert [tp for tp in TPS if manager.is_offline(tp)] == TPS[count:]
        if count < 5:
            with pytest.raises(LogDirError):
                manager.get_or_create_log(TPS[4], is_new=True)
    stage.turn()
    assert stage.revived == [DIR] and not manager.dirs.failures
    assert not stage.used and manager.passes.revival() == 0
    assert manager.logs[FULL].high_watermark == 4 and manager.logs[TPS[1]].log_start_offset == 2
    check_log(manager.logs[FULL])


def return_all(stage: Stage) -> None:
    assert stage.manager.passes.revival() == 1
    stage.worker.do_all()
    for _ in range(4):
        stage.turn()
    assert stage.returned == TPS and not stage.manager.dirs.failures


def test_a_late_batch_of_an_aborted_transaction_stays_late(stage: Stage) -> None:
    """Connections outlive the failure, and the files do not contain after which one the transaction was aborted."""
    return_all(stage)
    producers = stage.manager.logs[FULL].producers
    assert producers.is_late(7, 0, YOUNGEST) and not producers.is_late(7, 0, YOUNGEST + 1)


def test_a_log_that_was_truncated_is_read_with_its_own_indexes() -> None:
    """Another log fills the disk. The index files of the truncated one still have entries of the cut batches."""
    bench = Bench(LogConfig(index_interval_bytes=200))
    manager = bench.manager()
    cut, full = (manager.get_or_create_log(tp, is_new=True) for tp in TPS[:2])
    for _ in range(50):
        append(cut, batch(b"v" * 100))
    cut.flush()
    assert cut.truncate_to(25) is ErrorCode.NONE
    for _ in range(75):
        append(cut, batch(b"w" * 90))
    bench.files.fault = lambda operation, path: 20 if operation == "pwrite" and path.endswith(".log") else None
    assert append_as_leader(full, batch(b"x"), 0).error is ErrorCode.KAFKA_STORAGE_ERROR
    bench.files.fault = None
    assert manager.passes.revival() == 1
    for _ in range(2):
        log = manager.logs[TPS[0]]
        for offset in range(log.log_end_offset):
            assert read_batches(log, offset, max_bytes=1)[0].base_offset == offset
        for _ in range(10):
            append(log, batch(b"z" * 90))
        manager.shutdown()
        manager = bench.manager()
    manager.shutdown()


def test_recovered_logs_return_without_another_recovery() -> None:
    """Recovery has written their indexes. To check them again would read all of their active segments."""
    bench = Bench(LogConfig(index_interval_bytes=200))
    manager = bench.manager()
    for tp in TPS[:2]:
        for _ in range(50):
            append(manager.get_or_create_log(tp, is_new=True), batch(b"v" * 100))
    manager.abandon()
    manager = bench.manager()
    recovered = manager.logs[TPS[0]]
    assert recovered.log_end_offset == 50 and recovered.flusher.has_unflushed_files
    manager.failed(DIR, OSError(errno.ENOSPC, "No space left on device"), "testing")
    assert manager.passes.revival() == 1
    assert manager.logs[TPS[0]] is recovered
    assert read_batches(recovered, 40, max_bytes=1)[0].base_offset == 40
    manager.shutdown()


def test_flush_ms_applies_to_logs_that_return() -> None:
    """Their flush was due while they were offline."""
    bench = Bench(LogConfig(flush_ms=1_000, flush_messages=2))
    manager = bench.manager()
    log = manager.get_or_create_log(FULL, is_new=True)
    for _ in range(2):
        append(log, batch())
    assert log.recovery_point == 2
    manager.failed(DIR, OSError(errno.ENOSPC, "No space left on device"), "testing")
    manager.passes.flush(elapsed_ms(bench.clock) + 2_000)
    assert manager.passes.revival() == 1
    assert manager.logs[FULL] is log
    append(log, batch())
    manager.passes.flush(elapsed_ms(bench.clock) + 4_000)
    assert log.recovery_point == 3
    manager.shutdown()


def test_flush_ms_applies_to_a_copy_that_replaced_its_log() -> None:
    """The flush of the copy was due before."""
    bench = Bench(LogConfig(flush_ms=1_000, flush_messages=2))
    manager = bench.manager((DIR, "/other"))
    current = manager.get_or_create_log(FULL, is_new=True)
    copy = manager.futures.create(current, manager.dirs.live[1])
    for log in (current, copy):
        for _ in range(2):
            append(log, batch())
    manager.passes.flush(elapsed_ms(bench.clock) + 2_000)
    assert manager.swap_with_future(FULL) is copy
    append(copy, batch())
    manager.passes.flush(elapsed_ms(bench.clock) + 4_000)
    assert copy.recovery_point == 3
    manager.shutdown()


def test_logs_return_with_the_configuration_of_their_topic() -> None:
    """It was changed while they were offline."""
    configs: dict[str, LogConfig] = {}
    bench = Bench()
    manager = LogManager(
        (DIR,), clock=bench.clock, rng=Random(0), files=bench.files, topic_config=lambda topic: configs[topic]
    )
    manager.load_logs()
    configs["t"] = LogConfig(retention_ms=1_000)
    intact, full = (manager.get_or_create_log(tp, is_new=True) for tp in TPS[:2])
    bench.files.fault = lambda operation, path: 20 if operation == "pwrite" and path.endswith(".log") else None
    assert append_as_leader(full, batch(b"x"), 0).error is ErrorCode.KAFKA_STORAGE_ERROR
    bench.files.fault = None
    configs["t"] = LogConfig(retention_ms=5, min_insync_replicas=2, segment_bytes=300)
    change_config(manager, "t", configs["t"])
    assert manager.passes.revival() == 1
    assert manager.logs[TPS[0]] is intact and manager.logs[TPS[1]] is not full
    manager.get_or_create_log(TPS[2], is_new=True)
    for log in manager.logs.values():
        assert log.config == configs["t"]
        for _ in range(2):
            append(log, batch(b"v" * 200))
        assert len(log.segments) == 2
    manager.shutdown()


def test_a_new_log_does_not_get_the_configuration_of_logs_on_a_failed_disk() -> None:
    """They are closed in steps, and a change meanwhile does not reach them."""
    configs = {"t": LogConfig(retention_ms=1_000)}
    loop = asyncio.new_event_loop()
    manager = LogManager(
        (DIR, "/other"),
        clock=SystemClock(),
        rng=Random(0),
        files=MemoryFiles(),
        topic_config=lambda topic: configs[topic],
    )
    manager.load_logs()
    manager.start_background(loop, Worker())
    tps = [TopicPartition("t", index) for index in range(full_disks.RELEASED_PER_SLICE + 3)]
    for tp in tps[:-1]:
        manager.preferred_dirs[tp] = DIR if tp != tps[-2] else "/other"
        manager.get_or_create_log(tp, is_new=True)
    manager.failed(DIR, OSError(errno.ENOSPC, "No space left on device"), "testing")
    configs["t"] = LogConfig(retention_ms=5)
    change_config(manager, "t", configs["t"])
    assert manager.get_or_create_log(tps[-1], is_new=True).config == configs["t"]
    manager.abandon()
    loop.close()


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_a_disk_that_is_full_again_while_its_logs_return(stage: Stage, turns: int) -> None:
    manager = stage.manager
    manager.passes.revival()
    stage.worker.do_all()
    for _ in range(turns):
        stage.turn()
    assert stage.returned
    manager.failed(DIR, OSError(errno.ENOSPC, "No space left on device"), "testing")
    assert stage.returned == [] and all(manager.is_offline(tp) for tp in TPS)
    for _ in range(4):
        stage.turn()
    assert not stage.revived and manager.dirs.failures
    return_all(stage)
    assert stage.revived == [DIR]
    check_log(manager.logs[FULL])


def test_a_disk_that_breaks_while_its_logs_return_stays_offline(stage: Stage) -> None:
    manager = stage.manager
    manager.passes.revival()
    stage.do_all()
    assert stage.returned
    manager.failed(DIR, OSError(errno.EIO, "Input/output error"), "testing")
    for _ in range(4):
        stage.turn()
    assert manager.passes.revival() == 0
    assert stage.returned == [] and not stage.revived and manager.dirs.failures


def test_a_log_that_cannot_be_loaded_again_stays_offline(stage: Stage) -> None:
    stage.refused = {("pread", "t-0"): errno.EIO}
    assert stage.manager.passes.revival() == 1
    stage.do_all()
    stage.refused = {}
    assert stage.manager.passes.revival() == 0
    assert stage.returned == [] and stage.manager.dirs.failures


def test_a_disk_without_room_for_the_recovery_is_tried_again(stage: Stage) -> None:
    stage.refused = {("pwrite", "t-0"): errno.ENOSPC}
    assert stage.manager.passes.revival() == 1
    stage.do_all()
    assert stage.returned == [] and stage.manager.dirs.failures
    stage.refused = {}
    return_all(stage)
    check_log(stage.manager.logs[FULL])


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_stop_while_logs_return_loses_nothing(stage: Stage, is_killed: bool) -> None:
    manager = stage.manager
    manager.passes.revival()
    stage.do_all()
    assert stage.returned == TPS[:2]
    for _ in manager.checkpoints.log_start_offset_pass():
        stage.worker.do_all()
    if is_killed:
        manager.abandon()
    else:
        manager.shutdown()
    for _ in range(4):
        stage.turn()
    assert not stage.revived
    assert b"t 1 2" in stage.files.read_bytes(f"{DIR}/{LOG_START_OFFSET_CHECKPOINT}")
    again = stage.start()
    assert not again.had_clean_shutdown and set(again.logs) == set(TPS)
    assert again.logs[TPS[1]].log_start_offset == 2
    check_log(again.logs[FULL])
