"""QuotaManagers: the client quotas of a broker, and how the requests of clients are charged to them."""

from __future__ import annotations

from typing import Final

from klamm.clock import Clock
from klamm.config import KafkaConfig
from klamm.config.client_quotas import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    ClientQuotas,
)
from klamm.metrics import MetricsRegistry
from klamm.network.request import Request
from klamm.network.request_context import RequestContext
from klamm.quota.client_quota_manager import NOT_THROTTLED, UNLIMITED, ClientQuotaManager, ClientRequestQuotaManager
from klamm.quota.controller_mutation_quota import NO_QUOTA, ControllerMutationQuota, ControllerMutationQuotaManager
from klamm.quota.windowed_rate import Windows

_PRODUCE: Final = 0
_ADD_PARTITIONS_TO_TXN: Final = 24
_FIRST_FROM_BROKERS: Final = 4
_CLUSTER_ACTIONS: Final = frozenset({4, 5, 6, 7, 27, 56, 67})
"""LeaderAndIsr, StopReplica, UpdateMetadata, ControlledShutdown, WriteTxnMarkers, AlterPartition, AllocateProducerIds.

Brokers send them. Throttling them would harm all clients.
"""
_FOLLOWER: Final = "FetchFollower"


class QuotaManagers:
    """The four kinds of client quotas. Owner: the broker loop. `is_enabled` is False while nobody has a quota."""

    def __init__(self, quotas: ClientQuotas, config: KafkaConfig, clock: Clock, metrics: MetricsRegistry) -> None:
        def now_ms() -> float:
            return clock.monotonic() * 1000

        windows = Windows(config.quota_window_num, config.quota_window_size_seconds * 1000)
        controller_windows = Windows(
            config.controller_quota_window_num, config.controller_quota_window_size_seconds * 1000
        )
        limits = quotas.limits
        self._now_ms = now_ms
        self._limits = limits
        self.is_enabled = False
        self.produce: Final = ClientQuotaManager("Produce", limits[PRODUCER_BYTE_RATE], windows, metrics, now_ms)
        self.fetch: Final = ClientQuotaManager("Fetch", limits[CONSUMER_BYTE_RATE], windows, metrics, now_ms)
        self.request: Final = ClientRequestQuotaManager(limits[REQUEST_PERCENTAGE], windows, metrics, now_ms)
        self.mutations: Final = ControllerMutationQuotaManager(
            limits[CONTROLLER_MUTATION_RATE], controller_windows, metrics, now_ms
        )
        quotas.on_change(self._on_change)
        self._on_change()

    def _on_change(self) -> None:
        self.produce.is_enabled = bool(self._limits[PRODUCER_BYTE_RATE])
        self.fetch.is_enabled = bool(self._limits[CONSUMER_BYTE_RATE])
        self.request.is_enabled = bool(self._limits[REQUEST_PERCENTAGE])
        self.mutations.is_enabled = bool(self._limits[CONTROLLER_MUTATION_RATE])
        self.is_enabled = any(map(bool, self._limits.values()))

    def charge(self, request: Request, *, is_answered: bool) -> None:
        """Count a request when it is complete. If a quota is exceeded, the request gets its throttle time.

        The longest time counts if several quotas are exceeded.
        """
        now_ms = self._now_ms()
        verdict, payer = NOT_THROTTLED, self.produce
        if self.produce.is_enabled and request.api_key == _PRODUCE:
            verdict = self.produce.record(user_of(request), request.client_id or "", request.size_bytes, now_ms)
        if self.request.is_enabled:
            percent = request.handler_seconds * 100
            if not is_answered or _is_exempt(request):
                self.request.record_exempt(percent, now_ms)
            else:
                spent = self.request.record(user_of(request), request.client_id or "", percent, now_ms)
                if spent.throttle_time_ms >= verdict.throttle_time_ms:
                    verdict, payer = spent, self.request
        if verdict.throttle_time_ms:
            payer.note_throttle(verdict, now_ms)
            request.throttle(verdict.throttle_time_ms)

    def fetch_limit(self, ctx: RequestContext) -> int:
        """Return how many bytes a Fetch of a consumer may return: more would be withheld anyway."""
        if not self.fetch.is_enabled:
            return UNLIMITED
        return self.fetch.max_in_windows(user_of(ctx), ctx.client_id or "")

    def withholds(self, ctx: RequestContext, size_bytes: int) -> bool:
        """Count the bytes of a response to a consumer; return whether the response must be empty because of the quota.
        The throttle time is set in both cases.
        """
        if not self.fetch.is_enabled:
            return False
        now_ms = self._now_ms()
        verdict, is_withheld = self.fetch.record_if_within(user_of(ctx), ctx.client_id or "", size_bytes, now_ms)
        if verdict.throttle_time_ms:
            self.fetch.note_throttle(verdict, now_ms)
            ctx.throttle(verdict.throttle_time_ms)
        return is_withheld

    def mutation_quota(self, ctx: RequestContext, strict_since: int | None = None) -> ControllerMutationQuota:
        """Return the quota on changes of topics for one request; strict from a version on, or never."""
        if not self.mutations.is_enabled:
            return NO_QUOTA
        is_strict = strict_since is not None and ctx.api_version >= strict_since
        return self.mutations.quota_for(user_of(ctx), ctx.client_id or "", is_strict=is_strict)

    def expire(self) -> None:
        """Forget clients that were idle for an hour."""
        now_ms = self._now_ms()
        for manager in (self.produce, self.fetch, self.request, self.mutations):
            manager.accounts.expire(now_ms)


def user_of(ctx: RequestContext) -> str:
    """Return the name of the principal, `ANONYMOUS` of `User:ANONYMOUS`."""
    return ctx.channel.principal.partition(":")[2]


def _is_exempt(request: Request) -> bool:
    key = request.api_key
    if key == _ADD_PARTITIONS_TO_TXN:
        return request.api_version >= _FIRST_FROM_BROKERS
    return key in _CLUSTER_ACTIONS or request.split_name == _FOLLOWER
