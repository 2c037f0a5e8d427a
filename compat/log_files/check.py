"""Compares what Kafka's DumpLogSegments reads in log files with what klamm knows.

`before` writes a log with transactions and all codecs without a broker; `after` uses the files of a running cluster.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Final

from compat.log_files import running_broker
from compat.log_files.dumps import check

from klamm.errors import ErrorCode, KlammError
from klamm.log import AppendOrigin, Log, LogConfig, LogManager, append_as_leader
from klamm.log.end_markers import marker_record_fields
from klamm.model import TopicPartition
from klamm.protocol.record_batch import Record, build_batch

TP: Final = TopicPartition("orders", 0)
NOW: Final = 1_700_000_000_000
RETENTION_MS: Final = 1_000
CONFIG: Final = LogConfig(
    segment_bytes=4_000,
    index_interval_bytes=300,
    cleanup_policy=frozenset({"compact"}),
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=RETENTION_MS,
)


class Clock:
    def __init__(self) -> None:
        self.ms = NOW

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


class Writer:
    """Random producers: plain, idempotent and transactional ones, whose transactions overlap."""

    def __init__(self, rng: Random, log: Log) -> None:
        self.rng = rng
        self.log = log
        self.sequences: dict[int, int] = {}
        self.epochs: dict[int, int] = {}
        self.open: dict[int, None] = {}

    def write(self) -> None:
        producer_id = self.rng.choice((-1, 100, 1, 2, 3))
        if producer_id in self.open and self.rng.random() < 0.4:
            self.end(producer_id)
            return
        keys = [b"key-%d" % self.rng.randrange(40) for _ in range(self.rng.randint(1, 5))]
        rows = [Record(timestamp=NOW, key=key, value=self._value()) for key in keys]
        is_transactional = producer_id in (1, 2, 3)
        sequence = self.sequences.get(producer_id, 0)
        if producer_id >= 0:
            self.sequences[producer_id] = sequence + len(rows)
        if is_transactional:
            self.open[producer_id] = None
        self._append(
            build_batch(
                rows,
                compression=self.rng.randrange(5),
                producer_id=producer_id,
                producer_epoch=self.epochs.get(producer_id, 0) if producer_id >= 0 else -1,
                base_sequence=sequence if producer_id >= 0 else -1,
                is_transactional=is_transactional,
            )
        )

    def end(self, producer_id: int) -> None:
        """Producer 3 has the bumped epochs of `transaction.version` 2, whose sequences start again."""
        del self.open[producer_id]
        if producer_id == 3:
            self.epochs[3] = self.epochs.get(3, 0) + 1
            self.sequences[3] = 0
        key, value = marker_record_fields(
            self.rng.random() < 0.5, self.rng.randrange(3) + 3 * (self.log.log_end_offset)
        )
        marker = build_batch(
            [Record(timestamp=NOW, key=key, value=value)],
            producer_id=producer_id,
            producer_epoch=self.epochs.get(producer_id, 0),
            is_control=True,
            is_transactional=True,
        )
        self._append(marker, AppendOrigin.COORDINATOR)

    def _value(self) -> bytes | None:
        return None if self.rng.random() < 0.1 else self.rng.randbytes(self.rng.randrange(60))

    def _append(self, data: bytes, origin: AppendOrigin = AppendOrigin.CLIENT) -> None:
        result = append_as_leader(self.log, data, 0, origin=origin)
        if result.error != ErrorCode.NONE:
            raise KlammError(f"the log refuses its own test: {result}")


def check_log() -> bool:
    with tempfile.TemporaryDirectory(prefix="klamm-log-files-") as folder:
        clock = Clock()
        manager = LogManager([folder], clock=clock, rng=Random(0), default_config=CONFIG)
        manager.load_logs()
        log = manager.get_or_create_log(TP)
        directory = Path(log.dir)
        writer = Writer(Random(12), log)
        for _ in range(400):
            writer.write()
        log.flush()
        results = [check("before compaction", directory)]
        for producer_id in list(writer.open):
            writer.end(producer_id)
        log.roll()
        writer.write()
        log.update_high_watermark(log.log_end_offset)
        any(manager.passes.compaction(clock.ms))
        log.flush()
        results.append(check("after compaction", directory))
        clock.ms += RETENTION_MS + 1
        for _ in range(60):
            writer.write()
        log.roll()
        log.update_high_watermark(log.log_end_offset)
        any(manager.passes.compaction(clock.ms))
        log.flush()
        results.append(check("after the delete horizon", directory))
        manager.abandon()
        again = LogManager([folder], clock=clock, rng=Random(0), default_config=CONFIG)
        again.load_logs()
        again.logs[TP].open()
        results.append(check("after a recovery", directory))
        again.shutdown()
        results.append(check("after a clean shutdown", directory))
    return all(results)


if __name__ == "__main__":
    sys.exit(0 if (check_log() if sys.argv[1] == "before" else running_broker.run()) else 1)
