"""The request on whose behalf code runs, and the waits of traced requests.

A context variable follows a request through the futures, tasks and timers that its handler starts. It is set for traced
requests, and for all others while a traced request waits. A request that is complete is not a cause any longer: tasks
that outlive it act for the broker.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final, Protocol

from klamm.request_log.trace_records import MAX_CHARS, MAX_LISTED, Cause, Wait


class HandledRequest(Protocol):
    """A request, as far as others can be completed by it."""

    @property
    def correlation_id(self) -> int: ...
    @property
    def client_id(self) -> str | None: ...
    @property
    def is_complete(self) -> bool: ...
    @property
    def trace(self) -> RequestWaits | None: ...
    @property
    def api_name(self) -> str: ...
    @property
    def connection_id(self) -> str: ...
    @property
    def peer_broker_id(self) -> int | None: ...


HANDLED: Final[ContextVar[HandledRequest | None]] = ContextVar("handled_request", default=None)


def cause_now() -> Cause | None:
    """Return the request that is being handled; None if the broker acts by itself."""
    handled = HANDLED.get()
    if handled is None or handled.is_complete:
        return None
    return Cause(
        handled.api_name,
        cut(handled.client_id),
        handled.connection_id,
        handled.correlation_id,
        handled.peer_broker_id,
    )


def begin_wait(purgatory: str) -> WaitTrace | None:
    """Note that the request that is being handled begins to wait; returns None if it is not traced."""
    handled = HANDLED.get()
    if handled is None or handled.trace is None or handled.is_complete:
        return None
    return handled.trace.begin_wait(purgatory)


def cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= MAX_CHARS else text[:MAX_CHARS]


class WaitTrace:
    """One wait of a traced request. It ends once."""

    __slots__ = ("_monotonic", "began_at", "by", "ended_at", "key", "outcome", "purgatory")

    def __init__(self, purgatory: str, monotonic: Callable[[], float]) -> None:
        self.purgatory = purgatory
        self._monotonic = monotonic
        self.began_at = monotonic()
        self.ended_at: float | None = None
        self.outcome = "waiting"
        self.key: str | None = None
        self.by: Cause | None = None

    def complete(self, key: object) -> None:
        """A change of `key` completed the operation; the cause is the request that is being handled now."""
        self._end("completed")
        self.key = cut(str(key))
        self.by = cause_now()

    def expire(self) -> None:
        self._end("expired")

    def fail(self) -> None:
        self._end("failed")

    def _end(self, outcome: str) -> None:
        self.outcome = outcome
        self.ended_at = self._monotonic()

    def frozen(self, received_at: float, request_ended_at: float) -> Wait:
        ended_at = request_ended_at if self.ended_at is None else self.ended_at
        start_ms, duration_ms = (self.began_at - received_at) * 1000, (ended_at - self.began_at) * 1000
        return Wait(self.purgatory, start_ms, duration_ms, self.outcome, self.key, self.by)


class RequestWaits:
    """The waits of one traced request, in their order; a bounded number of them."""

    __slots__ = ("_monotonic", "waits")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self.waits: list[WaitTrace] = []

    def begin_wait(self, purgatory: str) -> WaitTrace:
        wait = WaitTrace(purgatory, self._monotonic)
        if len(self.waits) < MAX_LISTED:
            self.waits.append(wait)
        return wait
