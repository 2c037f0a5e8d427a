"""The common part of the control APIs: they fence the sender, and they always answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol, TypeVar

from klamm.apis.api_declaration import Broker, RequestContext
from klamm.errors import ErrorCode
from klamm.model import UNKNOWN_BROKER_EPOCH
from klamm.replica.controller_guard import Claim
from klamm.waiting import after

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


def from_controller(
    broker: Broker,
    ctx: RequestContext,
    req: ControlHead,
    *,
    first_with_broker_epoch: int,
    handle: Callable[[], R | asyncio.Future[R]],
    refuse: Callable[[ErrorCode], R],
) -> R | asyncio.Future[R]:
    """Run `handle` if the request comes from the controller that ZooKeeper names, else `refuse` with the reason.

    A controller repeats a request until it is answered and sends nothing else meanwhile. So a request that fails
    unexpectedly, or that is given up because the broker stops, is answered with UNKNOWN_SERVER_ERROR. Controllers
    before Kafka 2.2 send no broker epoch.
    """

    def obey(error: ErrorCode) -> R | asyncio.Future[R]:
        return handle() if error is ErrorCode.NONE else refuse(error)

    def on_failure(failure: BaseException) -> R:
        api = type(req).__name__
        if isinstance(failure, asyncio.CancelledError):
            log.info("%s of controller %d is not completed: the broker stops", api, req.controller_id)
        else:
            log.error("%s of controller %d failed", api, req.controller_id, exc_info=failure)
        return refuse(ErrorCode.UNKNOWN_SERVER_ERROR)

    has_broker_epoch = ctx.api_version >= first_with_broker_epoch
    claim = Claim(req.controller_id, req.controller_epoch, req.broker_epoch if has_broker_epoch else None)
    return after(broker.controller_guard.check(claim), obey, on_failure=on_failure)


def check_broker_epoch(broker: Broker, broker_epoch: int) -> ErrorCode:
    """Return STALE_BROKER_EPOCH if the broker has registered again while the request waited.

    A newer epoch than ours was confirmed: the controller may know of a registration before the broker does.
    """
    if broker_epoch == UNKNOWN_BROKER_EPOCH or broker_epoch >= broker.broker_epoch:
        return ErrorCode.NONE
    return ErrorCode.STALE_BROKER_EPOCH
