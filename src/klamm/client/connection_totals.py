"""Totals of a broker's outgoing connections, by channel and destination, and their metrics."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from klamm.clock import SystemClock
from klamm.metrics import MetricsRegistry

LATENCIES: Final = 256
"""Number of latencies that are kept, the newest ones."""


class ConnectionTotals:
    """Totals of one connection, or of several that follow each other. Written by the loop of the connections."""

    __slots__ = (
        "closed",
        "created",
        "failed_connections",
        "failed_requests",
        "incoming_bytes",
        "latencies_ms",
        "monotonic",
        "outgoing_bytes",
        "requests",
        "responses",
    )

    def __init__(self, monotonic: Callable[[], float] = SystemClock.monotonic) -> None:
        """`monotonic` is the clock of the latencies: the time of uvloop has a resolution of a millisecond."""
        self.monotonic = monotonic
        self.created = self.closed = self.failed_connections = 0
        self.requests = self.responses = self.failed_requests = 0
        self.incoming_bytes = self.outgoing_bytes = 0
        self.latencies_ms: deque[float] = deque(maxlen=LATENCIES)

    @property
    def in_flight(self) -> int:
        return self.requests - self.responses - self.failed_requests

    @property
    def average_latency_ms(self) -> float:
        latencies = self.latencies_ms.copy()  # another loop may append
        return sum(latencies) / len(latencies) if latencies else 0.0

    @property
    def highest_latency_ms(self) -> float:
        return max(self.latencies_ms.copy(), default=0.0)


GAUGES: Final[Mapping[str, Callable[[ConnectionTotals], object]]] = {
    "connection-count": lambda totals: totals.created - totals.closed,
    "connection-creation-total": lambda totals: totals.created,
    "connection-close-total": lambda totals: totals.closed,
    "connection-failure-total": lambda totals: totals.failed_connections,
    "request-total": lambda totals: totals.requests,
    "response-total": lambda totals: totals.responses,
    "request-failure-total": lambda totals: totals.failed_requests,
    "requests-in-flight": lambda totals: totals.in_flight,
    "outgoing-byte-total": lambda totals: totals.outgoing_bytes,
    "incoming-byte-total": lambda totals: totals.incoming_bytes,
    "request-latency-avg": lambda totals: totals.average_latency_ms,
    "request-latency-max": lambda totals: totals.highest_latency_ms,
}
"""The metrics of outgoing connections, with the names of Kafka's clients where it has them."""


def outgoing_totals(metrics: MetricsRegistry, channel: str, broker_id: int) -> ConnectionTotals:
    """Return the registered totals of the connections of one channel to one broker."""
    rows, key = _rows(metrics), (channel, broker_id)
    found = rows.get(key)
    return found if found is not None else rows.setdefault(key, ConnectionTotals(metrics.clock.monotonic))


def forget_outgoing(metrics: MetricsRegistry, channel: str, broker_id: int) -> None:
    """Remove the totals of a broker that left the cluster."""
    _rows(metrics).pop((channel, broker_id), None)


def _rows(metrics: MetricsRegistry) -> dict[tuple[str, int], ConnectionTotals]:
    return metrics.rows("klamm.server", "outgoing-connection-metrics", GAUGES, _tags)


def _tags(key: tuple[str, int]) -> Mapping[str, str]:
    channel, broker_id = key
    return {"channel": channel, "broker-id": str(broker_id)}
