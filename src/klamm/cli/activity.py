"""The activity of each broker: rates and lengths of queues, from two readings of its metrics."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from klamm.cli import broker_resources, request_activity
from klamm.cli.broker_metrics import read_metrics
from klamm.cli.broker_resources import BrokerResources, resources
from klamm.cli.cluster import first_metadata
from klamm.cli.cluster_control import Address
from klamm.cli.request_activity import Counted, RequestActivity, request_activities
from klamm.clock import Clock, SystemClock

_TOPIC: Final = "kafka_server_brokertopicmetrics_"
_RATES: Final = {
    "bytes_in": f"{_TOPIC}bytesin_total",
    "bytes_out": f"{_TOPIC}bytesout_total",
    "messages_in": f"{_TOPIC}messagesin_total",
    "requests": "kafka_network_requestmetrics_requests_total",
    "cpu_ms": broker_resources.CPU_MS,
}
"""In the order of the fields of `BrokerActivity`, as are the values below."""
_VALUES: Final = {
    "leaders": "kafka_server_replicamanager_leadercount",
    "partitions": "kafka_server_replicamanager_partitioncount",
    "under_replicated": "kafka_server_replicamanager_underreplicatedpartitions",
    "request_queue": "kafka_network_requestchannel_requestqueuesize",
    "event_queue": "kafka_controller_controllereventmanager_eventqueuesize",
    "connections": "kafka_server_socket_server_metrics_connection_count",
}
_NAMES: Final = (*_RATES.values(), *_VALUES.values(), *request_activity.NAMES, *broker_resources.NAMES)
_TOPIC_TAG: Final = re.compile(r'[{,]topic="')


@dataclass(frozen=True, slots=True)
class BrokerActivity:
    """Rates are per second since the previous reading; None at the first one, and if metrics cannot be read.

    `cpu_ms` is milliseconds of CPU per second: 1000 is one busy core.
    """

    broker_id: int
    bytes_in: float | None
    bytes_out: float | None
    messages_in: float | None
    requests: float | None
    cpu_ms: float | None
    leaders: int | None
    partitions: int | None
    under_replicated: int | None
    request_queue: int | None
    event_queue: int | None
    connections: int | None
    resources: BrokerResources = field(default_factory=BrokerResources)


class ActivityReader:
    """Keeps the last reading of each broker. For one thread."""

    def __init__(self, bootstrap: Iterable[Address], timeout_s: float, clock: Clock | None = None) -> None:
        self._bootstrap = list(bootstrap)
        self._timeout_s = timeout_s
        self._clock = clock or SystemClock()
        self._last: dict[int, tuple[float, Mapping[str, float]]] = {}
        self._counted: dict[int, Counted] = {}
        self._counted_s = 0.0
        self.requests: list[RequestActivity] = []
        """By API, since the reading before the last one."""

    def read(self) -> list[BrokerActivity] | None:
        """Return None if no broker answers."""
        first = first_metadata(self._bootstrap, self._timeout_s)
        if first is None:
            return None
        nodes = sorted(first.brokers, key=lambda node: node.node_id)
        with ThreadPoolExecutor(max_workers=max(1, len(nodes))) as pool:
            read = [pool.submit(read_metrics, node, {}, self._timeout_s, _NAMES) for node in nodes]
            found = {node.node_id: future.result() for node, future in zip(nodes, read, strict=True)}
        self._count({broker_id: request_activity.count(metrics) for broker_id, metrics in found.items()})
        return [self._activity(broker_id, metrics) for broker_id, metrics in found.items()]

    def _count(self, now: dict[int, Counted]) -> None:
        now_s = self._clock.monotonic()
        self.requests = request_activities(now, self._counted, now_s - self._counted_s)
        self._counted, self._counted_s = now, now_s

    def _activity(self, broker_id: int, metrics: Mapping[str, float]) -> BrokerActivity:
        now = totals(metrics)
        at_s = self._clock.monotonic()
        before_s, before = self._last.get(broker_id, (at_s, {}))
        self._last[broker_id] = at_s, now
        seconds = at_s - before_s
        bytes_in, bytes_out, messages_in, requests, cpu_ms = (
            _rate(now.get(name), before.get(name), seconds) for name in _RATES.values()
        )
        leaders, partitions, under_replicated, request_queue, event_queue, connections = (
            None if name not in now else int(now[name]) for name in _VALUES.values()
        )
        return BrokerActivity(
            broker_id=broker_id,
            bytes_in=bytes_in,
            bytes_out=bytes_out,
            messages_in=messages_in,
            requests=requests,
            cpu_ms=cpu_ms,
            leaders=leaders,
            partitions=partitions,
            under_replicated=under_replicated,
            request_queue=request_queue,
            event_queue=event_queue,
            connections=connections,
            resources=resources(metrics),
        )


def totals(metrics: Mapping[str, float]) -> dict[str, float]:
    """Add up the values of each name over its tags, without those per topic, whose sum is a separate value."""
    found: dict[str, float] = {}
    for name, value in metrics.items():
        if not _TOPIC_TAG.search(name):
            plain = name.partition("{")[0]
            found[plain] = found.get(plain, 0.0) + value
    return found


def _rate(now: float | None, before: float | None, seconds: float) -> float | None:
    """None without two readings; a counter that went back belongs to a restarted broker."""
    if now is None or before is None or seconds <= 0 or now < before:
        return None
    return (now - before) / seconds
