"""Charging: requests that are complete are counted by the client quotas, which may throttle their connection."""

from __future__ import annotations

from copy import copy
from typing import Any, Final, Protocol

from klamm.network.request import Request
from klamm.protocol.wire import Message


class RequestQuotas(Protocol):
    """The client quotas as the network layer needs them."""

    @property
    def is_enabled(self) -> bool:
        """Whether anybody has a quota. If not, nothing is charged."""

    def charge(self, request: Request, *, is_answered: bool) -> None:
        """Count a request, and throttle it if a quota is exceeded."""


class _NoQuotas:
    is_enabled = False

    def charge(self, request: Request, *, is_answered: bool) -> None:
        raise AssertionError("there are no quotas")


NO_QUOTAS: Final = _NoQuotas()


def charge(quotas: RequestQuotas, request: Request, response: Message | None) -> Message | None:
    """Charge a complete request. Return its response with the throttle time, which the handler may have set."""
    quotas.charge(request, is_answered=response is not None)
    if not request.throttle_time_ms or response is None or not hasattr(response, "throttle_time_ms"):
        return response
    throttled: Any = copy(response)  # a handler may have answered with a value that it shares
    throttled.throttle_time_ms = request.throttle_time_ms
    result: Message = throttled
    return result
