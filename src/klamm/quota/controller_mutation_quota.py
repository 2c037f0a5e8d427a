"""The quota on partitions that clients create and delete (KIP-599).

For newer request versions the quota is strict: once it is used up, further topics are refused with
THROTTLING_QUOTA_EXCEEDED. Older clients do not know that error, so their changes are made and they wait afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from klamm.config.client_quotas import QuotaLimits
from klamm.metrics import MetricsRegistry
from klamm.quota.accounts import Account, Accounts
from klamm.quota.windowed_rate import TokenBucket, WindowedRate, Windows


class MutationAccount(Account):
    __slots__ = ("bucket", "limit", "rate")

    def __init__(self, windows: Windows, limit: float, now_ms: float) -> None:
        super().__init__()
        self.bucket = TokenBucket(windows, limit, now_ms)
        self.rate = WindowedRate(windows)
        self.limit = limit


class ControllerMutationQuota:
    """The quota as one request uses it: not limited, permissive or strict."""

    __slots__ = ("_account", "_has_refused", "_is_strict", "_manager")

    def __init__(
        self,
        manager: ControllerMutationQuotaManager | None = None,
        account: MutationAccount | None = None,
        *,
        is_strict: bool = False,
    ) -> None:
        self._manager = manager
        self._account = account
        self._is_strict = is_strict
        self._has_refused = False

    @property
    def is_limited(self) -> bool:
        return self._account is not None

    def record(self, partitions: int) -> bool:
        """Count a change of this many partitions; return False if it is refused."""
        account, manager = self._account, self._manager
        if account is None or manager is None:
            return True
        now_ms = manager.now_ms()
        if self._is_strict and account.bucket.tokens(account.limit, now_ms) < 0:
            self._has_refused = True
            return False
        self._count(account, partitions, now_ms)
        return True

    def give_back(self, partitions: int) -> None:
        """Refund the charge of a change that failed."""
        if self._account is not None and self._manager is not None:
            self._count(self._account, -partitions, self._manager.now_ms())

    def throttle_time_ms(self) -> int:
        """Return how long the client has to wait now. With a strict quota, only refused clients wait."""
        account, manager = self._account, self._manager
        if account is None or manager is None or (self._is_strict and not self._has_refused):
            return 0
        now_ms = manager.now_ms()
        throttle_time_ms = account.bucket.throttle_time_ms(account.limit, now_ms)
        if throttle_time_ms:
            manager.accounts.note_throttle(account, throttle_time_ms, now_ms)
        return throttle_time_ms

    def _count(self, account: MutationAccount, partitions: int, now_ms: float) -> None:
        account.bucket.take(partitions, account.limit, now_ms)
        account.rate.record(partitions, now_ms)


NO_QUOTA: Final = ControllerMutationQuota()


class ControllerMutationQuotaManager:
    """Owner: the broker loop."""

    def __init__(
        self, limits: QuotaLimits, windows: Windows, metrics: MetricsRegistry, now_ms: Callable[[], float]
    ) -> None:
        self.is_enabled = False
        self.now_ms = now_ms
        self._limits = limits
        self._windows = windows
        self.accounts: Final = Accounts[MutationAccount]("ControllerMutation", metrics, now_ms)
        self.accounts.add_gauges("tokens", lambda account: account.bucket.tokens(account.limit, now_ms()))
        self.accounts.add_gauges("mutation-rate", lambda account: account.rate.per_second(now_ms()))

    def quota_for(self, user: str, client_id: str, *, is_strict: bool) -> ControllerMutationQuota:
        found = self._limits.match(user, client_id)
        if found is None:
            return NO_QUOTA
        entity, limit = found
        now_ms = self.now_ms()
        account = self.accounts.find(entity, now_ms, lambda: MutationAccount(self._windows, limit, now_ms))
        account.limit = limit
        return ControllerMutationQuota(self, account, is_strict=is_strict)
