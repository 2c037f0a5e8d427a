"""The cost of appending to a log, compared with the same bytes checked and written with nothing around them.

Run: python bench/log_append.py [batches]. Prints microseconds of CPU time per batch for several batch sizes.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from random import Random

import crc32c

from klamm.clock import SystemClock
from klamm.log import LogManager, append_as_leader
from klamm.model import TopicPartition
from klamm.protocol.record_batch import Record, build_batch


def bare(directory: str, batch: bytes, count: int) -> float:
    """Checksum and write only."""
    fd = os.open(f"{directory}/bare", os.O_RDWR | os.O_CREAT)
    view = memoryview(batch)
    position = 0
    start = time.process_time()
    for _ in range(count):
        crc32c.crc32c(view[21:])
        position += os.pwrite(fd, view, position)
    elapsed = time.process_time() - start
    os.close(fd)
    return elapsed / count * 1e6


def through_log(directory: str, batch: bytes, count: int, producer_id: int = -1) -> float:
    manager = LogManager([directory], clock=SystemClock(), rng=Random(0))
    manager.load_logs()
    log = manager.get_or_create_log(TopicPartition(f"bench{producer_id}", 0))
    sent = [batch] * count
    if producer_id >= 0:
        rows = [Record(key=None, value=b"x" * (len(batch) - 80))]
        sent = [
            build_batch(rows, producer_id=producer_id, producer_epoch=0, base_sequence=i)
            for i in range(min(count, 2000))
        ]
    views = [memoryview(b) for b in sent]
    start = time.process_time()
    for view in views:
        append_as_leader(log, view, 0)
    elapsed = time.process_time() - start
    assert log.log_end_offset == len(views)
    manager.shutdown()
    return elapsed / len(views) * 1e6


def rounds(batch: bytes, count: int) -> tuple[float, float, float]:
    """The best of five rounds each, in turn: the first pages of a machine's memory are dear."""
    results = []
    for _ in range(5):
        directory = tempfile.mkdtemp(prefix="klamm-bench-")
        try:
            plain, log = bare(directory, batch, count), through_log(directory, batch, count)
            results.append((plain, log, through_log(directory, batch, count, producer_id=7)))
        finally:
            shutil.rmtree(directory)
    plain, log, idempotent = (min(column) for column in zip(*results, strict=True))
    return plain, log, idempotent


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000
    print(f"{'batch bytes':>12} {'bare us':>9} {'log us':>9} {'idempotent us':>14} {'around it us':>13}")
    for size in (1024, 16 * 1024, 256 * 1024):
        batch = build_batch([Record(key=None, value=b"x" * (size - 80))])
        plain, log, idempotent = rounds(batch, min(count, (32 << 20) // size))
        print(f"{size:>12} {plain:>9.1f} {log:>9.1f} {idempotent:>14.1f} {log - plain:>13.1f}")


if __name__ == "__main__":
    main()
