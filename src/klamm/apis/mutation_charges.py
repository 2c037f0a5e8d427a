"""Charges of a request that creates or deletes topics or partitions to the controller mutation quota (KIP-599).

A topic is charged before the controller is asked for it. The charges of topics that it refuses are given back.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Final, Generic, TypeVar

from klamm.apis.api_declaration import Broker, RequestContext
from klamm.controller.replies import TopicResult, TopicResults
from klamm.errors import ErrorCode
from klamm.quota.controller_mutation_quota import NO_QUOTA
from klamm.waiting import Steps

K = TypeVar("K", bound=Hashable)
_SLICE: Final = 1000
QUOTA_EXCEEDED: Final = (
    "The quota on created and deleted partitions is used up: wait for the throttle time, then retry."
)


class MutationCharges(Generic[K]):
    """The topics that one request was charged for, by name or id."""

    def __init__(self, broker: Broker, ctx: RequestContext, *, strict_since: int, is_dry: bool = False) -> None:
        """Only the controller charges: another broker refuses the request. A dry run changes nothing."""
        is_charged = broker.controller.is_active and not is_dry
        self._quota = broker.quotas.mutation_quota(ctx, strict_since) if is_charged else NO_QUOTA
        self._ctx = ctx
        self._charged: dict[K, int] = {}
        self.is_limited: Final = self._quota.is_limited

    def charge(self, key: K, name: str, partitions: int) -> TopicResult | None:
        """Count the partitions of a topic; return its refusal if the quota is used up."""
        if not self.is_limited or partitions <= 0:
            return None
        if not self._quota.record(partitions):
            return TopicResult(name, ErrorCode.THROTTLING_QUOTA_EXCEEDED, QUOTA_EXCEEDED)
        self._charged[key] = partitions
        return None

    def settle(self, keys: Iterable[K], reply: TopicResults) -> Steps[None]:
        """Refund the charges of topics that failed, then throttle the client if it has to wait.

        `keys` are those of the reply's topics, in their order: all of the request, or a part of them. An error of the
        whole request refunds the topics that are not settled.
        """
        if not self.is_limited:
            return
        charged = self._charged
        if reply.error != ErrorCode.NONE:
            self._quota.give_back(sum(charged.values()))
            charged.clear()
        else:
            for index, (key, result) in enumerate(zip(keys, reply.topics, strict=True), 1):
                partitions = charged.pop(key, 0)
                if result.error != ErrorCode.NONE and partitions:
                    self._quota.give_back(partitions)
                if not index % _SLICE:
                    yield
        self._ctx.throttle(self._quota.throttle_time_ms())


def partition_count(broker: Broker, topic: str) -> int:
    """Return how many partitions an existing topic has; 0 if it does not exist."""
    state = broker.metadata.snapshot.topics.get(topic)
    return 0 if state is None else len(state.partitions)
