"""Errors of transactional requests as clients of each version understand them."""

from __future__ import annotations

from typing import TypeVar

from klamm.apis.api_declaration import RequestContext
from klamm.coordinator.transaction.transaction_coordinator import GIVEN_UP
from klamm.errors import ErrorCode
from klamm.protocol.wire import Message

R = TypeVar("R", bound=Message)


def error_for_client(error: ErrorCode, ctx: RequestContext, *, fenced_since: int) -> ErrorCode:
    """PRODUCER_FENCED is INVALID_PRODUCER_EPOCH for clients before version `fenced_since` of the API (KIP-588)."""
    if error is ErrorCode.PRODUCER_FENCED and ctx.api_version < fenced_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


def unless_given_up(ctx: RequestContext, error: ErrorCode, response: R) -> R | None:
    """Return the response, or None after closing a connection that its client has given up."""
    if error is not GIVEN_UP:
        return response
    ctx.close_connection()
    return None
