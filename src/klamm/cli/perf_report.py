"""Results of `klamm perf`: latencies in bounded memory, and the report as text or JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from klamm.cli.output import say

PERCENTILES: Final = {"p50": 0.50, "p95": 0.95, "p99": 0.99, "p99_9": 0.999}
MIB: Final = 1 << 20
_SUBBUCKETS: Final = 64
"""Buckets per power of two: a percentile is at most 1.6 % too high."""


class Latencies:
    """Counts latencies in buckets of microseconds, so a run of any length needs a few kilobytes."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._total_us = 0
        self._highest_us = 0
        self.count = 0

    def add(self, seconds: float) -> None:
        micros = max(0, round(seconds * 1e6))
        bucket = _bucket(micros)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self._total_us += micros
        self._highest_us = max(self._highest_us, micros)
        self.count += 1

    def percentile_ms(self, share: float) -> float | None:
        """Return the latency that this share of the records did not exceed; None without records."""
        wanted, seen = share * self.count, 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= wanted:
                return min(_upper_us(bucket), self._highest_us) / 1000
        return None

    def summary(self) -> dict[str, float | None]:
        """Return the percentiles, mean and maximum in milliseconds."""
        found: dict[str, float | None] = {name: self.percentile_ms(share) for name, share in PERCENTILES.items()}
        found["mean"] = round(self._total_us / self.count / 1000, 3) if self.count else None
        found["max"] = self._highest_us / 1000 if self.count else None
        return found


def _bucket(micros: int) -> int:
    if micros < _SUBBUCKETS:
        return micros
    shift = micros.bit_length() - _SUBBUCKETS.bit_length()
    return (shift + 1) * _SUBBUCKETS + (micros >> shift) - _SUBBUCKETS


def _upper_us(bucket: int) -> int:
    """Return the largest number of the bucket."""
    if bucket < _SUBBUCKETS:
        return bucket
    shift = bucket // _SUBBUCKETS - 1
    return ((bucket % _SUBBUCKETS + _SUBBUCKETS + 1) << shift) - 1


@dataclass
class Report:
    """`records` and `size_bytes` count what was acknowledged or received; `failed` what was not."""

    command: str
    topic: str
    records: int = 0
    size_bytes: int = 0
    failed: int = 0
    seconds: float = 0.0
    is_interrupted: bool = False
    problem: str | None = None
    latencies: Mapping[str, Latencies] = field(default_factory=dict)
    """By name, such as `latency`: each is a line of the report."""
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def records_per_second(self) -> float:
        return self.records / self.seconds if self.seconds > 0 else 0.0

    def as_json(self) -> dict[str, Any]:
        rate = self.records_per_second
        return {
            "command": self.command,
            "topic": self.topic,
            "records": self.records,
            "bytes": self.size_bytes,
            "failed": self.failed,
            "seconds": round(self.seconds, 3),
            "records_per_second": round(rate, 1),
            "mib_per_second": round(self.size_bytes / MIB / self.seconds, 3) if self.seconds > 0 else 0.0,
            "interrupted": self.is_interrupted,
            "problem": self.problem,
            **{f"{name}_ms": latencies.summary() for name, latencies in self.latencies.items()},
            **self.details,
        }

    def show(self, *, as_json: bool) -> None:
        found = self.as_json()
        if as_json:
            say(json.dumps(found, indent=2))
            return
        verb = "acknowledged" if self.command == "produce" else "received"
        state = ", interrupted" if self.is_interrupted else ""
        say(f"{self.records:,} records {verb} in {self.seconds:.2f} s{state}, {self.failed:,} failed")
        say(f"{found['records_per_second']:,.1f} records/s, {found['mib_per_second']:,.2f} MiB/s")
        for name, latencies in self.latencies.items():
            cells = ", ".join(f"{key.replace('_', '.')} {_ms(value)}" for key, value in latencies.summary().items())
            say(f"{name.replace('_', ' ')}: {cells}")
        for name, value in self.details.items():
            say(f"{name.replace('_', ' ')}: {'-' if value is None else value}")
        if self.problem is not None:
            say(f"problem: {self.problem}")


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} ms"
