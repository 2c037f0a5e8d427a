"""A session ends when a loop of its process stands still, and the next begins when the loop turns again."""

from __future__ import annotations

import asyncio
from pathlib import Path

from klamm.zk.client.loop_pulse import SHORTEST_LIMIT_S, LoopPulse, StallWatch
from klamm.zk.client.zk_session import SessionListener
from klamm.zk.model.ops import Create, Exists
from tests.support.waiting import until
from tests.unit.zk.test_session import run, server_and_session

LIMIT_S = 60.0
TICK_S = LIMIT_S / 20


class Silent(LoopPulse):
    """Beats when the test says so."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self.name, self.limit_s, self.beats, self.is_stopped = "silent", limit_s, 0, False


class Observed(Silent):
    """Counts how often it is looked at."""

    looks = 0
    _is_stopped = False

    @property
    def is_stopped(self) -> bool:
        self.looks += 1
        return self._is_stopped

    @is_stopped.setter
    def is_stopped(self, value: bool) -> None:
        self._is_stopped = value


def looks_until_stalled(watch: StallWatch, pulses: list[LoopPulse], start_s: float, most: int = 100) -> int | None:
    """How many looks it takes, one per tick; None: more than `most`."""
    for look in range(most):
        if watch.stalled(pulses, start_s + look * TICK_S) is not None:
            return look
    return None


def test_a_loop_that_beats_is_not_stalled() -> None:
    watch, pulse = StallWatch(), Silent()
    for look in range(1_000):
        pulse.beats += look % 15 == 0
        assert watch.stalled([pulse], look * TICK_S) is None


def test_a_loop_that_stands_still_is_found_after_its_limit() -> None:
    assert looks_until_stalled(StallWatch(), [Silent()], 0.0) == 21


def test_each_loop_has_its_own_limit() -> None:
    watch, quick, slow = StallWatch(), Silent(), Silent(3 * LIMIT_S)
    for look in range(60):
        quick.beats += 1
        assert watch.stalled([quick, slow], look * TICK_S) is None
    assert watch.stalled([quick, slow], 61 * TICK_S) is slow


def test_a_process_that_could_not_run_is_not_blamed() -> None:
    """SIGSTOP, or a machine that slept: the session may be over, but that is for ZooKeeper to say."""
    watch, pulse = StallWatch(), Silent()
    assert watch.stalled([pulse], 0.0) is None
    assert watch.stalled([pulse], 1_000 * LIMIT_S) is None
    pulse.beats += 1
    assert watch.stalled([pulse], 1_000 * LIMIT_S + TICK_S) is None


def test_a_loop_that_is_stopped_is_not_looked_at() -> None:
    pulse = Silent()
    pulse.is_stopped = True
    assert looks_until_stalled(StallWatch(), [pulse], 0.0) is None


def test_a_short_session_timeout_does_not_shorten_the_limit_of_a_loop() -> None:
    async def main() -> None:
        pulse = LoopPulse.started("broker", 0.5)
        assert pulse.limit_s == SHORTEST_LIMIT_S and pulse.beats == 1
        pulse.stop()

    asyncio.run(main())


def test_the_session_is_given_up_and_the_next_waits_for_the_loop(tmp_path: Path) -> None:
    async def test() -> None:
        async with server_and_session(tmp_path, timeout_ms=1_500) as (server, session):
            expired, renewed = asyncio.Event(), asyncio.Event()
            session.add_listener(SessionListener(before_new_session=expired.set, after_new_session=renewed.set))
            await session.create(Create("/mine", b"", ephemeral=True))
            first, pulse = session.session_id, Observed(0.1)
            session.watch_loop(pulse)
            await expired.wait()
            assert session.previous_session_id == first and first not in server.tree.sessions
            assert "/mine" not in server.tree.nodes
            looks = pulse.looks
            await until(lambda: pulse.looks > looks + 10)
            assert not renewed.is_set() and session.session_id == 0
            pulse.beats += 1
            pulse.is_stopped = True
            await renewed.wait()
            assert session.session_id not in (0, first)
            assert (await session.read(Exists("/mine"))).stat is None

    run(test)


def test_a_session_that_could_not_be_ended_is_ended_over_the_next_connection(tmp_path: Path) -> None:
    async def test() -> None:
        async with server_and_session(tmp_path, timeout_ms=5_000) as (server, session):
            expired = asyncio.Event()
            session.add_listener(SessionListener(before_new_session=expired.set))
            first, pulse = session.session_id, Silent(0.1)
            session.watch_loop(pulse)
            for _ in range(3):
                session.drop_connection()
                await asyncio.sleep(0)
            await expired.wait()
            assert first not in server.tree.sessions
            pulse.is_stopped = True

    run(test)
