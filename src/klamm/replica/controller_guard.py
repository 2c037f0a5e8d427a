"""Decides which controller this broker obeys: the one that ZooKeeper names, not the one with the highest claimed epoch.

A control request of the confirmed controller costs two comparisons. A request with a higher controller epoch, another
controller id or a broker epoch that this broker does not know yet waits until ZooKeeper has confirmed or refuted it.
One read answers all requests that wait, so a failover costs every broker one read, and forged requests cost at most one
read at a time. Requests of the confirmed controller do not wait behind them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from klamm.errors import ErrorCode
from klamm.lazy_dataclass import lazy_dataclass
from klamm.model import NO_CONTROLLER, NO_EPOCH, UNKNOWN_BROKER_EPOCH
from klamm.zk.model import paths
from klamm.zk.model.ops import ZkError
from klamm.zk.model.znodes import ZnodeFormatError, decode_controller, decode_controller_epoch

if TYPE_CHECKING:
    from klamm.zk.client.zk_session import ZkSession

log = logging.getLogger(__name__)

RETRY_S: Final = 1.0
"""Pause before a znode that cannot be decoded is read again."""
REMINDER_S: Final = 60.0


@lazy_dataclass(frozen=True, slots=True)
class Claim:
    """The sender that a control request claims. `broker_epoch` is None in versions that do not carry it."""

    controller_id: int
    controller_epoch: int
    broker_epoch: int | None = None


@lazy_dataclass(frozen=True, slots=True)
class ControlState:
    """The state in ZooKeeper: the controller, its epoch, and the epoch of this broker's own registration."""

    controller_id: int
    controller_epoch: int
    broker_epoch: int = UNKNOWN_BROKER_EPOCH


def judge(claim: Claim, state: ControlState, own_epoch: int) -> ErrorCode:
    """Return the decision on a claim after a read of ZooKeeper."""
    if claim.broker_epoch is not None and claim.broker_epoch not in (own_epoch, state.broker_epoch):
        return ErrorCode.STALE_BROKER_EPOCH
    is_named = (claim.controller_id, claim.controller_epoch) == (state.controller_id, state.controller_epoch)
    return ErrorCode.NONE if is_named and state.controller_id != NO_CONTROLLER else ErrorCode.STALE_CONTROLLER_EPOCH


async def read_control_state(zk: ZkSession, broker_id: int) -> ControlState:
    """Raises ZnodeFormatError for a znode that cannot be decoded.

    The epoch is read before `/controller`. If ZooKeeper has no multiRead and an election happens in between, the new
    controller is seen with the old epoch, which no controller claims.
    """
    own_path = paths.broker_path(broker_id)
    epoch, controller, own = await zk.read_latest([paths.CONTROLLER_EPOCH, paths.CONTROLLER, own_path])
    is_ours = own is not None and own[1].ephemeral_owner == zk.session_id
    return ControlState(
        NO_CONTROLLER if controller is None else decode_controller(controller[0]).broker_id,
        NO_EPOCH if epoch is None else decode_controller_epoch(epoch[0]),
        own[1].czxid if own is not None and is_ours else UNKNOWN_BROKER_EPOCH,
    )


class ControllerGuard:
    """Owner of the confirmed controller's id and epoch. Lives on the broker loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        read: Callable[[], Awaitable[ControlState]],
        own_epoch: Callable[[], int],
    ) -> None:
        """`own_epoch` is the epoch of this broker's registration that the broker knows."""
        self._loop = loop
        self._read = read
        self._own_epoch = own_epoch
        self._confirmed_id = NO_CONTROLLER
        self._confirmed_epoch = NO_EPOCH
        self._waiting: list[tuple[Claim, asyncio.Future[ErrorCode]]] = []
        self._reading: asyncio.Task[None] | None = None
        self._silent_until_s = float("-inf")

    def confirm(self, controller_id: int, controller_epoch: int) -> None:
        """Record a controller that this broker has read from, or written to, ZooKeeper."""
        if controller_epoch >= self._confirmed_epoch:
            self._confirmed_id, self._confirmed_epoch = controller_id, controller_epoch

    def check(self, claim: Claim) -> ErrorCode | asyncio.Future[ErrorCode]:
        """Return NONE if the request may be obeyed; a future if ZooKeeper must be asked first."""
        broker_epoch, own_epoch = claim.broker_epoch, self._own_epoch()
        if broker_epoch is not None and broker_epoch < own_epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        if claim.controller_epoch < self._confirmed_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        is_confirmed = claim.controller_epoch == self._confirmed_epoch and claim.controller_id == self._confirmed_id
        if is_confirmed and (broker_epoch is None or broker_epoch == own_epoch):
            return ErrorCode.NONE
        verdict: asyncio.Future[ErrorCode] = self._loop.create_future()
        self._waiting.append((claim, verdict))
        if self._reading is None:
            self._reading = self._loop.create_task(self._ask(), name="controller-guard")
        return verdict

    def shutdown(self) -> None:
        """Refuse waiting requests."""
        if self._reading is not None:
            self._reading.cancel()
        self._answer(self._take_waiting(), lambda _: ErrorCode.STALE_CONTROLLER_EPOCH)

    # --- asking ------------------------------------------------------------------------------------------------------

    async def _ask(self) -> None:
        """Read until no request waits. Requests that arrive during a read wait for the next one."""
        waiting: list[tuple[Claim, asyncio.Future[ErrorCode]]] = []
        try:
            while self._waiting:
                waiting = self._take_waiting()
                try:
                    state = await self._read()
                except ZnodeFormatError as error:
                    self._warn_of_znode(error)
                    self._waiting = waiting + self._waiting
                    await asyncio.sleep(RETRY_S)
                except ZkError as error:
                    # Without a session this broker is not registered: a new registration brings all requests again.
                    log.warning("refusing %d control requests: ZooKeeper cannot confirm them: %s", len(waiting), error)
                    self._answer(waiting, lambda _: ErrorCode.STALE_BROKER_EPOCH)
                else:
                    self._settle(waiting, state)
        except asyncio.CancelledError:
            self._answer(waiting, lambda _: ErrorCode.STALE_CONTROLLER_EPOCH)
            raise
        except Exception:
            # A bug: the controller must get an answer anyway, or its queue for this broker stalls.
            log.exception("confirming control requests failed")
            self._answer(waiting + self._take_waiting(), lambda _: ErrorCode.UNKNOWN_SERVER_ERROR)
        finally:
            self._reading = None

    def _take_waiting(self) -> list[tuple[Claim, asyncio.Future[ErrorCode]]]:
        waiting, self._waiting = self._waiting, []
        return waiting

    def _settle(self, waiting: list[tuple[Claim, asyncio.Future[ErrorCode]]], state: ControlState) -> None:
        own_epoch = self._own_epoch()
        for claim, _ in waiting:
            if error := judge(claim, state, own_epoch):
                self._report(claim, state, error)
        self._answer(waiting, lambda claim: judge(claim, state, own_epoch))
        if state.controller_id != NO_CONTROLLER:
            # After the requests that waited: a later one must not overtake them.
            self._loop.call_soon(self.confirm, state.controller_id, state.controller_epoch)

    @staticmethod
    def _answer(waiting: list[tuple[Claim, asyncio.Future[ErrorCode]]], verdict: Callable[[Claim], ErrorCode]) -> None:
        for claim, future in waiting:
            if not future.done():
                future.set_result(verdict(claim))

    def _report(self, claim: Claim, state: ControlState, error: ErrorCode) -> None:
        """Log at most once per minute: anyone who reaches a listener can send such requests."""
        if self._loop.time() < self._silent_until_s:
            return
        self._silent_until_s = self._loop.time() + REMINDER_S
        log.warning(
            "control request refused with %s: it claims controller %d, controller epoch %d, broker epoch %s; ZooKeeper "
            "has controller %d, controller epoch %d, broker epoch %d. A deposed controller or a forged request",
            error.name,
            claim.controller_id,
            claim.controller_epoch,
            claim.broker_epoch,
            state.controller_id,
            state.controller_epoch,
            state.broker_epoch,
        )

    def _warn_of_znode(self, error: ZnodeFormatError) -> None:
        if self._loop.time() < self._silent_until_s:
            return
        self._silent_until_s = self._loop.time() + REMINDER_S
        log.error("the controller cannot be confirmed: %s. Control requests wait until the znode is repaired", error)
