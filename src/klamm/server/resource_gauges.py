"""Gauges of the resources that a broker uses: CPU and memory of its process, and the disks of its log directories."""

from __future__ import annotations

import time
from functools import partial
from typing import Final

from klamm.log import LogManager
from klamm.metrics import MetricsRegistry
from klamm.server.collector import resident_bytes

_PROCESS: Final = ("klamm.server", "Process")


def register(metrics: MetricsRegistry, logs: LogManager) -> None:
    """Several brokers in one process, as in tests, report the same CPU and memory."""
    metrics.counter(*_PROCESS, "CpuMsPerSec", lambda: time.process_time_ns() // 1_000_000)
    metrics.gauge(*_PROCESS, "ResidentBytes", resident_bytes)
    dirs = logs.dirs
    metrics.gauge("kafka.log", "LogManager", "OfflineLogDirectoryCount", lambda: len(dirs.failures))
    for path in dirs.paths:
        tags = {"logDirectory": path}
        metrics.gauge("kafka.log", "LogManager", "LogDirectoryOffline", partial(_is_offline, logs, path), tags)
        metrics.gauge("klamm.log", "LogManager", "DiskTotalBytes", partial(_usage, logs, path, 0), tags)
        metrics.gauge("klamm.log", "LogManager", "DiskUsableBytes", partial(_usage, logs, path, 1), tags)


def _is_offline(logs: LogManager, path: str) -> int:
    return int(path in logs.dirs.failures)


def _usage(logs: LogManager, path: str, position: int) -> int:
    return logs.dirs.usage(path)[position]
