"""Reads and changes of ZooKeeper by handlers. A handler does not wait for them for ever: its request has no timeout."""

from __future__ import annotations

import logging
from asyncio import Future
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from klamm.apis.api_declaration import Broker
from klamm.errors import ErrorCode
from klamm.waiting import after
from klamm.zk.model.ops import ZkError

READ_WAIT_MS: Final = 1_000
CHANGE_WAIT_MS: Final = 5_000
"""Maximum wait for ZooKeeper. Clients give up after 30 s."""

Outcome = tuple[ErrorCode, str | None]
NO_ERROR: Final[Outcome] = (ErrorCode.NONE, None)
NOT_TRIED: Final[Outcome] = (ErrorCode.REQUEST_TIMED_OUT, "Not tried: ZooKeeper does not answer.")
_LATE: Final[Outcome] = (ErrorCode.REQUEST_TIMED_OUT, "ZooKeeper does not answer; the change may still take effect.")

A = TypeVar("A")
B = TypeVar("B")
log = logging.getLogger(__name__)


class ApiError(Exception):
    """Refusal of one resource of a request; never leaves the handler."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def change_in_time(
    broker: Broker,
    change: Coroutine[Any, Any, A],
    apply: Callable[[A], object],
    refuse: Callable[[BaseException], Outcome],
) -> Future[Outcome]:
    """Make a change, pass its result to `apply`, and return how both ended.

    A change that takes too long continues by itself: a write to ZooKeeper cannot be undone. `refuse` turns a failure
    into an outcome, or raises it.
    """

    def applied(result: A) -> Outcome:
        apply(result)
        return NO_ERROR

    changing = broker.loop.create_task(change, name="zookeeper-change")
    done: Future[Outcome] = after(changing, applied, on_failure=refuse)
    return after(done, _same, timeout_ms=CHANGE_WAIT_MS, on_timeout=lambda: _LATE)


def refusal(what: str) -> Callable[[BaseException], Outcome]:
    """Return the usual outcome of a failed change of `what`."""

    def refuse(failure: BaseException) -> Outcome:
        match failure:
            case ApiError():
                return failure.code, failure.message
            case ZkError():
                log.warning("changing %s failed: %s", what, failure)
                return ErrorCode.UNKNOWN_SERVER_ERROR, f"ZooKeeper did not accept the change: {failure}"
        raise failure

    return refuse


def read_in_time(
    broker: Broker, read: Coroutine[Any, Any, A], timeout_ms: int, otherwise: Callable[[ErrorCode], B]
) -> Future[A | B]:
    """Return the result of `read`; if ZooKeeper fails or does not answer in time, that of `otherwise`."""
    reading = broker.loop.create_task(read, name="zookeeper-read")

    def on_failure(failure: BaseException) -> A | B:
        if isinstance(failure, ZkError):
            return otherwise(ErrorCode.UNKNOWN_SERVER_ERROR)
        raise failure

    def on_timeout() -> A | B:
        reading.cancel()
        return otherwise(ErrorCode.REQUEST_TIMED_OUT)

    return after(reading, _same, on_failure=on_failure, timeout_ms=timeout_ms, on_timeout=on_timeout)


def _same(result: A) -> A:
    return result
