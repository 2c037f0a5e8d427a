"""ClientQuotaManager: a quota on a rate, for bytes of producers and consumers and for the time of requests."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final, NamedTuple

from klamm.config.client_quotas import QuotaLimits
from klamm.metrics import MetricsRegistry
from klamm.quota.accounts import GROUP, Account, Accounts
from klamm.quota.windowed_rate import WindowedRate, Windows

UNLIMITED: Final = sys.maxsize


class Verdict(NamedTuple):
    """The throttle time of a request, and the account that pays it."""

    throttle_time_ms: int
    account: RateAccount | None


NOT_THROTTLED: Final = Verdict(0, None)


class RateAccount(Account):
    __slots__ = ("rate",)

    def __init__(self, windows: Windows) -> None:
        super().__init__()
        self.rate = WindowedRate(windows)


class ClientQuotaManager:
    """`type_` is Kafka's name of the quota, `rate_name` that of its rate. Owner: the broker loop.

    `max_throttle_ms` bounds a throttle time. A longer wait could not make up for the time that was used.
    """

    def __init__(
        self,
        type_: str,
        limits: QuotaLimits,
        windows: Windows,
        metrics: MetricsRegistry,
        now_ms: Callable[[], float],
        *,
        rate_name: str = "byte-rate",
        max_throttle_ms: int | None = None,
    ) -> None:
        self.is_enabled = False
        """Whether any client has this quota. The owner of the quotas sets it."""
        self._limits = limits
        self._windows = windows
        self._max_throttle_ms = max_throttle_ms
        self.accounts: Final = Accounts[RateAccount](type_, metrics, now_ms)
        self.accounts.add_gauges(rate_name, lambda account: account.rate.per_second(now_ms()))

    def record(self, user: str, client_id: str, value: float, now_ms: float) -> Verdict:
        """Count a value, and return how long the client has to wait for it."""
        found = self._limits.match(user, client_id)
        if found is None:
            return NOT_THROTTLED
        entity, limit = found
        account = self.accounts.find(entity, now_ms, self._open)
        account.rate.record(value, now_ms)
        return Verdict(self._bounded(account.rate.throttle_time_ms(limit, now_ms)), account)

    def record_if_within(self, user: str, client_id: str, value: float, now_ms: float) -> tuple[Verdict, bool]:
        """Count a value that can be withheld; return also whether it must be. A withheld value is not counted.

        If the windows hold nothing yet, the value is not withheld: a batch that alone exceeds all windows would
        otherwise never be sent.
        """
        found = self._limits.match(user, client_id)
        if found is None:
            return NOT_THROTTLED, False
        entity, limit = found
        account = self.accounts.find(entity, now_ms, self._open)
        rate = account.rate
        was_empty = rate.total(now_ms) <= 0
        rate.record(value, now_ms)
        throttle_time_ms = self._bounded(rate.throttle_time_ms(limit, now_ms))
        is_withheld = throttle_time_ms > 0 and not was_empty
        if is_withheld:
            rate.record(-value, now_ms)
        return Verdict(throttle_time_ms, account), is_withheld

    def max_in_windows(self, user: str, client_id: str) -> int:
        """Return the largest value that an idle client can record without a throttle time."""
        found = self._limits.match(user, client_id)
        if found is None:
            return UNLIMITED
        return int(max(found[1], 0) * (self._windows.num - 1) * self._windows.size_ms / 1000)

    def note_throttle(self, verdict: Verdict, now_ms: float) -> None:
        """Record in the metrics a throttle time that takes effect."""
        if verdict.account is not None:
            self.accounts.note_throttle(verdict.account, verdict.throttle_time_ms, now_ms)

    def _open(self) -> RateAccount:
        return RateAccount(self._windows)

    def _bounded(self, throttle_time_ms: int) -> int:
        return throttle_time_ms if self._max_throttle_ms is None else min(throttle_time_ms, self._max_throttle_ms)


class ClientRequestQuotaManager(ClientQuotaManager):
    """The share of the broker loop's time that the requests of a client take, in percent (KIP-124)."""

    def __init__(
        self, limits: QuotaLimits, windows: Windows, metrics: MetricsRegistry, now_ms: Callable[[], float]
    ) -> None:
        super().__init__(
            "Request",
            limits,
            windows,
            metrics,
            now_ms,
            rate_name="request-time",
            max_throttle_ms=windows.size_ms,
        )
        self._exempt = WindowedRate(windows)
        metrics.gauge(GROUP, "Request", "exempt-request-time", lambda: self._exempt.per_second(now_ms()))

    def record_exempt(self, percent: float, now_ms: float) -> None:
        """Count the time of requests that are never throttled: those of brokers, and Produce with acks=0."""
        self._exempt.record(percent, now_ms)
