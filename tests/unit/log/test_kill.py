"""A process that appends is killed with SIGKILL; what it acknowledged is there when the log is opened again."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from klamm.clock import SystemClock
from klamm.log import LogConfig, LogManager
from klamm.protocol.record_batch import batches, records
from tests.unit.log.harness import TP, append, batch, read_batches

CONFIG = LogConfig(segment_bytes=20_000, index_interval_bytes=500)
WRITER = """
import sys
from random import Random
from klamm.clock import SystemClock
from klamm.log import LogConfig, LogManager, append_as_leader
from tests.unit.log.harness import TP, batch
config = LogConfig(segment_bytes=20_000, index_interval_bytes=500)
manager = LogManager([sys.argv[1]], clock=SystemClock(), rng=Random(0), default_config=config)
manager.load_logs()
log = manager.get_or_create_log(TP)
sequence = log.log_end_offset
while True:
    result = append_as_leader(log, batch(b"%d" % sequence, producer=(7, 0, sequence)), 0)
    assert result.error == 0 and result.base_offset == sequence, result
    sequence += 1
    print(sequence, flush=True)
    if sequence % 100 == 0:
        manager.checkpoints.write_recovery_points()
"""


@pytest.mark.parametrize("seed", range(3))
def test_acknowledged_records_survive_sigkill(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    root = Path(__file__).parents[3]
    acknowledged = 0
    for _ in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=root
        )
        assert writer.stdout is not None
        for _ in range(rng.randint(1, 700)):
            acknowledged = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.read().splitlines(keepends=True)
        acknowledged = max([acknowledged, *(int(line) for line in rest if line.endswith("\n"))])
        writer.wait()
        writer.stdout.close()
    manager = LogManager([str(tmp_path)], clock=SystemClock(), rng=Random(0), default_config=CONFIG)
    manager.load_logs()
    log = manager.logs[TP]
    assert log.log_end_offset >= acknowledged
    values = [r.value for b in read_batches(log) for r in records(b)]
    assert values == [b"%d" % i for i in range(log.log_end_offset)]
    assert log.producers.entries[7].last_sequence == log.log_end_offset - 1
    last = log.log_end_offset - 1
    assert append(log, batch(b"%d" % last, producer=(7, 0, last))).is_duplicate
    manager.shutdown()
    assert all(b.is_valid() for b in batches((tmp_path / "orders-0" / "00000000000000000000.log").read_bytes()))
