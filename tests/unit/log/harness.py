"""A log or a log manager on files in memory, with a clock that stands still."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from klamm.clock import elapsed_ms
from klamm.errors import ErrorCode
from klamm.log import AppendOrigin, AppendResult, Log, LogConfig, LogManager, ReadResult, append_as_leader
from klamm.log.end_markers import marker_record_fields
from klamm.log.files import Files
from klamm.log.jobs import Flushable, Job, fsync_job
from klamm.log.loader import LastRun, LogLoader
from klamm.log.log_environment import LogEnvironment
from klamm.log.memory_files import MemoryFiles
from klamm.model import ConnectionOrder, TopicPartition
from klamm.protocol.record_batch import Record, RecordBatch, batches, build_batch, records

TP = TopicPartition("orders", 0)
DIR = "/data"
NOW = 1_700_000_000_000


class ManualClock:
    def __init__(self, now_ms: int = NOW) -> None:
        self.ms = now_ms
        self.corrected_ms = 0
        """How far the wall clock was moved."""

    def now_ms(self) -> int:
        return self.ms + self.corrected_ms

    def monotonic(self) -> float:
        return self.ms / 1000


ELAPSED = elapsed_ms(ManualClock())
"""The time by which flushes and removals are due, when the wall clock shows NOW."""


class InlineHost:
    """A LogHost that does everything at once, without a loop."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.youngest_connection: Callable[[], ConnectionOrder] = lambda: 0
        self.failures: list[tuple[str, OSError, str]] = []

    def submit(self, job: Job) -> None:
        job.work()
        job.commit()

    def sync_soon(self, log_dir: str, *paths: str) -> None:
        self.submit(fsync_job(self._files, log_dir, paths))

    def delete_later(self, log_dir: str, paths: Sequence[str], delay_ms: int) -> None:
        for path in paths:
            self._files.unlink(path)

    def failed(self, log_dir: str, error: OSError, doing: str) -> None:
        self.failures.append((log_dir, error, doing))

    def flushed(self, tp: TopicPartition, recovery_point: int) -> None:
        pass

    def unflushed(self, log: Flushable) -> None:
        pass


class Bench:
    """Opens logs on one set of files, again and again."""

    def __init__(self, config: LogConfig | None = None, files: MemoryFiles | None = None) -> None:
        self.files = files or MemoryFiles()
        self.clock = ManualClock()
        self.host = InlineHost(self.files)
        self.config = config or LogConfig()

    def open(
        self,
        *,
        clean: bool = False,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        high_watermark: int | None = None,
    ) -> Log:
        env = LogEnvironment(self.files, self.clock, Random(0), self.host)
        last_run = LastRun(log_start_offset, recovery_point, clean, high_watermark=high_watermark)
        return LogLoader(env, TP, DIR, self.config, last_run).load()

    def manager(self, log_dirs: Sequence[str] = (DIR,)) -> LogManager:
        manager = LogManager(log_dirs, clock=self.clock, rng=Random(0), default_config=self.config, files=self.files)
        manager.load_logs()
        return manager

    def names(self, directory: str = f"{DIR}/orders-0") -> list[str]:
        return [i.name for i in self.files.list_dir(directory)]


def batch(
    *values: bytes,
    key: bytes | None = b"k",
    timestamp: int = NOW,
    producer: tuple[int, int, int] | None = None,
    transactional: bool = False,
    compression: int = 0,
) -> bytes:
    """`producer` is (id, epoch, sequence)."""
    producer_id, epoch, sequence = producer or (-1, -1, -1)
    rows = [Record(timestamp=timestamp + i, key=key, value=v) for i, v in enumerate(values or (b"v",))]
    return build_batch(
        rows,
        compression=compression,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=transactional,
    )


def append(log: Log, data: bytes, epoch: int = 0, origin: AppendOrigin = AppendOrigin.CLIENT) -> AppendResult:
    result = append_as_leader(log, data, epoch, origin=origin)
    assert result.error == ErrorCode.NONE, result
    return result


def close(log: Log) -> None:
    """Complete all files of the log and force them to the disk."""
    log.finish_close(log.prepare_close())


def marker(producer_id: int, epoch: int, *, abort: bool, coordinator_epoch: int = 0) -> bytes:
    key, value = marker_record_fields(abort, coordinator_epoch)
    row = Record(timestamp=NOW, key=key, value=value)
    return build_batch([row], producer_id=producer_id, producer_epoch=epoch, is_control=True, is_transactional=True)


def end_txn(log: Log, producer_id: int, epoch: int = 0, *, abort: bool, coordinator_epoch: int = 0) -> AppendResult:
    data = marker(producer_id, epoch, abort=abort, coordinator_epoch=coordinator_epoch)
    return append(log, data, origin=AppendOrigin.COORDINATOR)


def read_batches(log: Log, offset: int | None = None, max_bytes: int = 1 << 30) -> list[RecordBatch]:
    """Everything from `offset` to the end, read in steps of `max_bytes`."""
    found: list[RecordBatch] = []
    at = log.log_start_offset if offset is None else offset
    while True:
        result = log.read(at, max_bytes, max_offset=log.log_end_offset)
        assert isinstance(result, ReadResult), result
        step = list(batches(bytes(result.records)))
        if not step:
            return found
        found += step
        at = step[-1].next_offset


def read_values(log: Log, offset: int | None = None) -> list[tuple[int, bytes | None]]:
    return [(r.offset, r.value) for b in read_batches(log, offset) if not b.is_control for r in records(b)]
