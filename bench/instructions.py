"""Counts the instructions of a broker with callgrind: they do not depend on the load of the machine.

Only instructions in user mode are counted. The kernel's share of a request is not, so a difference in percent of these
counts is an upper bound of the difference in CPU time if the kernel does the same work in both cases.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from unittest import mock

from klamm.testing import LocalCluster

PATIENCE_S: Final = 600.0
_TOTALS: Final = re.compile(r"^totals: (\d+)", re.MULTILINE)
_SETTINGS: Final[Mapping[str, object]] = {"zookeeper.session.timeout.ms": 600_000, "replica.lag.time.max.ms": 600_000}
_WRAPPER: Final = """#!/bin/sh
case "$*" in
*klamm.server*broker-{broker_id}*)
    exec valgrind --tool=callgrind --callgrind-out-file={folder}/counts {python} "$@" ;;
esac
exec {python} "$@"
"""


class InstructionCounter:
    """The instructions of a process that runs under callgrind."""

    def __init__(self, pid: int, folder: Path) -> None:
        self._pid, self._folder = pid, folder
        self._dumps = 0
        self._total = 0

    def total(self) -> int:
        """Return the instructions since the start of the process. The process stands still meanwhile."""
        subprocess.run(["callgrind_control", "-d", str(self._pid)], check=True, capture_output=True)
        self._dumps += 1
        file = self._folder / f"counts.{self._dumps}"
        found = _TOTALS.search(file.read_text())
        assert found is not None, f"{file} has no totals"
        file.unlink()
        self._total += int(found[1])  # of this dump: callgrind counts from 0 after each
        return self._total


@contextmanager
def counted_cluster(
    brokers: int, configs: Mapping[str, object] | None = None, data_dir: str | None = None
) -> Iterator[tuple[LocalCluster, InstructionCounter]]:
    """Start a cluster whose broker 1 runs under callgrind, about 50 times slower."""
    for program in ("valgrind", "callgrind_control"):
        assert shutil.which(program) is not None, f"{program} is missing: apt-get install valgrind"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wrapper = folder / "python"
        wrapper.write_text(_WRAPPER.format(broker_id=1, folder=folder, python=sys.executable))
        wrapper.chmod(0o700)
        cluster = LocalCluster(
            brokers=brokers,
            broker_configs={**_SETTINGS, **(configs or {})},
            data_dir=data_dir,
            start_timeout_s=PATIENCE_S,
            stop_timeout_s=PATIENCE_S,
        )
        with mock.patch.object(sys, "executable", str(wrapper)), cluster:
            yield cluster, InstructionCounter(cluster.pid(1), folder)
