"""What the control APIs share: fencing of the sender, and an answer in any case."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol, TypeVar

from klamm.apis.registry import Broker, then
from klamm.errors import ErrorCode
from klamm.model import UNKNOWN_BROKER_EPOCH
from klamm.replica.controller_guard import Claim

R = TypeVar("R")
log = logging.getLogger(__name__)


class ControlHead(Protocol):
    """The fields in which a control request names its sender and the registration it is meant for."""

    @property
    def controller_id(self) -> int: ...
    @property
    def controller_epoch(self) -> int: ...
    @property
    def broker_epoch(self) -> int: ...


def confirmed(
    broker: Broker,
    req: ControlHead,
    has_broker_epoch: bool,
    handle: Callable[[], R | asyncio.Future[R]],
    refuse: Callable[[ErrorCode], R],
) -> R | asyncio.Future[R]:
    """Runs `handle` if the request comes from the controller that ZooKeeper names, else `refuse` with the reason.

    `has_broker_epoch` says whether this version of the request carries a broker epoch; controllers before Kafka 2.2
    send none.
    """
    claim = Claim(req.controller_id, req.controller_epoch, req.broker_epoch if has_broker_epoch else None)
    verdict = broker.controller_guard.check(claim)

    def go_on(error: ErrorCode) -> R | asyncio.Future[R]:
        return handle() if error is ErrorCode.NONE else refuse(error)

    return then(verdict, go_on) if isinstance(verdict, asyncio.Future) else go_on(verdict)


def check_broker_epoch(broker: Broker, broker_epoch: int) -> ErrorCode:
    """STALE_BROKER_EPOCH if the broker has registered again while the request waited.

    A newer epoch than ours was confirmed: the controller may know of a registration before the broker does.
    """
    if broker_epoch == UNKNOWN_BROKER_EPOCH or broker_epoch >= broker.broker_epoch:
        return ErrorCode.NONE
    return ErrorCode.STALE_BROKER_EPOCH


def answered(
    api: str, handle: Callable[[], R | asyncio.Future[R]], refuse: Callable[[ErrorCode], R]
) -> R | asyncio.Future[R]:
    """What `handle` answers, or `refuse(UNKNOWN_SERVER_ERROR)` when it fails unexpectedly or the broker stops.

    A controller repeats a request until it is answered, and sends nothing else meanwhile: it must not wait for ever
    for one that can never be handled.
    """
    try:
        result = handle()
    except Exception:
        log.exception("%s failed", api)
        return refuse(ErrorCode.UNKNOWN_SERVER_ERROR)
    if not isinstance(result, asyncio.Future):
        return result
    outer: asyncio.Future[R] = result.get_loop().create_future()

    def settle(done: asyncio.Future[R]) -> None:
        if outer.done():
            return
        if done.cancelled():
            log.info("%s is given up: the broker stops", api)
            outer.set_result(refuse(ErrorCode.UNKNOWN_SERVER_ERROR))
        elif (failure := done.exception()) is not None:
            log.error("%s failed", api, exc_info=failure)
            outer.set_result(refuse(ErrorCode.UNKNOWN_SERVER_ERROR))
        else:
            outer.set_result(done.result())

    result.add_done_callback(settle)
    return outer
