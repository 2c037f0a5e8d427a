"""A control request waits for ZooKeeper only if its sender is not the confirmed controller; the order is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from klamm.errors import ErrorCode
from klamm.model import NO_CONTROLLER
from klamm.replica.controller_guard import Claim, ControllerGuard, ControlState
from klamm.zk.model.ops import SessionExpired, ZkError
from klamm.zk.model.znodes import ZnodeFormatError

NONE, STALE = ErrorCode.NONE, ErrorCode.STALE_CONTROLLER_EPOCH


class ScriptedZooKeeper:
    """Answers a read when the test says so."""

    def __init__(self) -> None:
        self.reads: list[asyncio.Future[ControlState]] = []
        self._changed = asyncio.Event()

    def read(self) -> asyncio.Future[ControlState]:
        self.reads.append(asyncio.get_running_loop().create_future())
        self._changed.set()
        return self.reads[-1]

    async def was_read(self, times: int) -> None:
        async with asyncio.timeout(60):
            while len(self.reads) < times:
                self._changed.clear()
                await self._changed.wait()


def with_guard(scenario: Callable[[ControllerGuard, ScriptedZooKeeper], object]) -> None:
    async def main() -> None:
        zk = ScriptedZooKeeper()
        guard = ControllerGuard(asyncio.get_running_loop(), zk.read, lambda: 70)
        await scenario(guard, zk)  # type: ignore[misc]
        guard.shutdown()

    asyncio.run(main())


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def waits(verdict: object) -> asyncio.Future[ErrorCode]:
    assert isinstance(verdict, asyncio.Future) and not verdict.done()
    return verdict


def test_one_read_answers_all_that_wait_and_the_confirmed_controller_never_waits() -> None:
    async def scenario(guard: ControllerGuard, zk: ScriptedZooKeeper) -> None:
        guard.confirm(1, 5)
        first, second, forged = (waits(guard.check(Claim(2, 6, 70))) for _ in range(3))
        forged = waits(guard.check(Claim(9, 99, 70)))
        await turns()
        late = waits(guard.check(Claim(2, 6, 70)))
        assert guard.check(Claim(1, 5, 70)) is NONE and guard.check(Claim(1, 4, 70)) is STALE
        assert len(zk.reads) == 1
        zk.reads[0].set_result(ControlState(2, 6, 70))
        await turns()
        assert [f.result() for f in (first, second, forged)] == [NONE, NONE, STALE]
        assert not late.done() and len(zk.reads) == 2, "it came after the first read was asked for"
        assert guard.check(Claim(2, 6, 70)) is NONE and guard.check(Claim(1, 5, 70)) is STALE
        zk.reads[1].set_result(ControlState(2, 6, 70))
        assert await late is NONE

    with_guard(scenario)


def test_no_request_overtakes_one_that_waited() -> None:
    async def scenario(guard: ControllerGuard, zk: ScriptedZooKeeper) -> None:
        carried_out: list[str] = []
        first = waits(guard.check(Claim(2, 6)))
        first.add_done_callback(lambda _: carried_out.append("first"))
        await turns()

        def come_later() -> None:
            verdict = guard.check(Claim(2, 6))
            if isinstance(verdict, asyncio.Future):
                verdict.add_done_callback(lambda _: carried_out.append("second"))
            else:
                carried_out.append("second")

        zk.reads[0].add_done_callback(lambda _: asyncio.get_running_loop().call_soon(come_later))
        zk.reads[0].set_result(ControlState(2, 6))
        await turns()
        for read in zk.reads[1:]:
            read.set_result(ControlState(2, 6))
        await turns()
        assert carried_out == ["first", "second"]

    with_guard(scenario)


def test_a_garbled_znode_is_read_again_and_requests_wait_for_its_repair() -> None:
    async def scenario(guard: ControllerGuard, zk: ScriptedZooKeeper) -> None:
        verdict = waits(guard.check(Claim(2, 6)))
        await turns()
        zk.reads[0].set_exception(ZnodeFormatError("/controller_epoch", "b'x' is not a number"))
        await zk.was_read(2)
        assert not verdict.done()
        zk.reads[1].set_result(ControlState(2, 6))
        assert await verdict is NONE

    with_guard(scenario)


def test_without_a_session_requests_are_refused() -> None:
    async def scenario(guard: ControllerGuard, zk: ScriptedZooKeeper) -> None:
        for error in (SessionExpired(), ZkError()):
            verdict = waits(guard.check(Claim(2, 6)))
            await turns()
            zk.reads[-1].set_exception(error)
            assert await verdict is ErrorCode.STALE_BROKER_EPOCH

    with_guard(scenario)


def test_without_a_controller_no_request_is_obeyed() -> None:
    async def scenario(guard: ControllerGuard, zk: ScriptedZooKeeper) -> None:
        verdict = waits(guard.check(Claim(NO_CONTROLLER, 6, 70)))
        await turns()
        zk.reads[0].set_result(ControlState(NO_CONTROLLER, 6, 70))
        assert await verdict is STALE

    with_guard(scenario)


def test_a_broker_that_stops_refuses_waiting_requests() -> None:
    async def scenario(guard: ControllerGuard, zk: ScriptedZooKeeper) -> None:
        asked = waits(guard.check(Claim(2, 6)))
        await turns()
        queued = waits(guard.check(Claim(2, 6)))
        guard.shutdown()
        await turns()
        assert [queued.result(), asked.result()] == [STALE, STALE]

    with_guard(scenario)


def test_a_failed_read_leaves_no_request_waiting() -> None:
    async def scenario(guard: ControllerGuard, zk: ScriptedZooKeeper) -> None:
        first = waits(guard.check(Claim(2, 6, 70)))
        await zk.was_read(1)
        late = waits(guard.check(Claim(2, 6, 70)))
        zk.reads[0].set_exception(RuntimeError("a bug"))
        assert await first is await late is ErrorCode.UNKNOWN_SERVER_ERROR
        again = waits(guard.check(Claim(2, 6, 70)))
        await zk.was_read(2)
        zk.reads[1].set_result(ControlState(2, 6, 70))
        assert await again is NONE

    with_guard(scenario)
