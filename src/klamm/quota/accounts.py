"""The accounts of one quota: the recent use of each client. Idle accounts expire, and their number is bounded.

A client chooses its client id, so a hostile one can open an account with every request. Beyond `MAX_ACCOUNTS` the least
recently used account is closed. If its client returns, it begins with an empty account: this can only allow more than
the quota, never less.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from klamm.config.client_quotas import QuotaEntity
from klamm.metrics import GaugeTable, MetricsRegistry
from klamm.quota.windowed_rate import WindowedRate, Windows
from klamm.zk.model.paths import sanitize

MAX_ACCOUNTS: Final = 4096
IDLE_MS: Final = 3600 * 1000
"""Kafka's sensors of a client expire after the same time."""
_METRIC_WINDOWS: Final = Windows(2, 30_000)
"""Kafka's windows of metrics that are not quotas."""
_MAX_COUNTED: Final = 100_000
"""Throttled requests that `queue-size` counts. A closed connection counts until its throttle time has passed."""
GROUP: Final = "kafka.server"


class Account:
    """The use of one quota by one user, client id or pair of both."""

    __slots__ = ("_throttle_count", "_throttle_sum", "used_at_ms")

    def __init__(self) -> None:
        self.used_at_ms = 0.0
        self._throttle_sum: WindowedRate | None = None
        self._throttle_count: WindowedRate | None = None

    def note_throttle(self, throttle_time_ms: int, now_ms: float) -> None:
        if self._throttle_sum is None or self._throttle_count is None:
            self._throttle_sum = WindowedRate(_METRIC_WINDOWS)
            self._throttle_count = WindowedRate(_METRIC_WINDOWS)
        self._throttle_sum.record(throttle_time_ms, now_ms)
        self._throttle_count.record(1, now_ms)

    def average_throttle_time_ms(self, now_ms: float) -> float:
        if self._throttle_sum is None or self._throttle_count is None:
            return math.nan
        count = self._throttle_count.total(now_ms)
        return self._throttle_sum.total(now_ms) / count if count else math.nan


A = TypeVar("A", bound=Account)


class Accounts(Generic[A]):
    """The accounts of one quota, longest unused first. `type_` is Kafka's name of the quota in metrics."""

    def __init__(
        self, type_: str, metrics: MetricsRegistry, now_ms: Callable[[], float], max_accounts: int = MAX_ACCOUNTS
    ) -> None:
        self._type = type_
        self._metrics = metrics
        self._now_ms = now_ms
        self._max = max_accounts
        self._by_entity: OrderedDict[QuotaEntity, A] = OrderedDict()
        self._throttled_until: list[float] = []
        """A heap of the times at which throttled connections resume."""
        self.add_gauges("throttle-time", lambda account: account.average_throttle_time_ms(now_ms()))
        metrics.gauge(GROUP, type_, "queue-size", lambda: self._count_throttled(now_ms()))

    def __len__(self) -> int:
        return len(self._by_entity)

    def add_gauges(self, name: str, value: Callable[[A], object]) -> None:
        """Register a gauge for each account, with the labels `user` and `client-id`."""
        self._metrics.gauge_table(GROUP, self._type, name, GaugeTable(self._by_entity, _tags, value))

    def find(self, entity: QuotaEntity, now_ms: float, make: Callable[[], A]) -> A:
        """Return the account of an entity, opened with `make` if there is none."""
        by_entity = self._by_entity
        account = by_entity.get(entity)
        if account is None:
            account = by_entity[entity] = make()
            if len(by_entity) > self._max:
                by_entity.popitem(last=False)
        else:
            by_entity.move_to_end(entity)
        account.used_at_ms = now_ms
        return account

    def expire(self, now_ms: float) -> None:
        """Close the accounts that were not used for an hour."""
        by_entity = self._by_entity
        while by_entity:
            entity, account = next(iter(by_entity.items()))
            if now_ms - account.used_at_ms < IDLE_MS:
                return
            del by_entity[entity]

    def note_throttle(self, account: A, throttle_time_ms: int, now_ms: float) -> None:
        account.note_throttle(throttle_time_ms, now_ms)
        if self._count_throttled(now_ms) < _MAX_COUNTED:
            heapq.heappush(self._throttled_until, now_ms + throttle_time_ms)

    def _count_throttled(self, now_ms: float) -> int:
        until = self._throttled_until
        while until and until[0] <= now_ms:
            heapq.heappop(until)
        return len(until)


def _tags(entity: QuotaEntity) -> dict[str, str]:
    return {"user": sanitize(entity.user or ""), "client-id": entity.client_id or ""}
