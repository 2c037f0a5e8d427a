"""LoopMeter on both kinds of loops: a loop that is held lags, a loop that waits is idle, a turn has its length."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from klamm.clock import SystemClock
from klamm.metrics import Gauge, Histogram, LoopMeter, MetricsRegistry
from klamm.metrics.instruments import PEAK_PERIODS
from tests.unit.network.harness import both_loops, until

Run = Callable[[Coroutine[Any, Any, None]], None]


def histogram(registry: MetricsRegistry, name: str) -> Histogram:
    found = registry.find("klamm.server", "EventLoop", name, {"loop": "broker"})
    assert isinstance(found, Histogram)
    return found


def gauge(registry: MetricsRegistry, name: str) -> float:
    found = registry.find("klamm.server", "EventLoop", name, {"loop": "broker"})
    assert isinstance(found, Gauge) and isinstance(found.value, int | float)
    return found.value


def hold(seconds: float) -> None:
    time.sleep(seconds)


def work(seconds: float) -> None:
    """Use CPU time, however slow the machine is."""
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


@both_loops
def test_a_held_loop_lags(run: Run) -> None:
    async def scenario() -> None:
        registry = MetricsRegistry(SystemClock())
        meter = LoopMeter.started("broker", registry, 0.1)
        lags = histogram(registry, "LagMs")
        await until(lambda: lags.count >= 1)
        count = lags.count
        hold(0.4)  # over the time of the next sample, which is due 0.1 s after the last
        await until(lambda: lags.count > count)
        assert max(lags.samples) >= 290
        assert gauge(registry, "LagMsMax") == max(lags.samples)
        meter.stop()

    run(scenario())


@both_loops
def test_a_turn_has_the_length_of_its_callbacks(run: Run) -> None:
    async def scenario() -> None:
        registry = MetricsRegistry(SystemClock())
        meter = LoopMeter.started("broker", registry, 0.1)
        turns = histogram(registry, "TurnTimeMs")
        await until(lambda: turns.count >= 5)
        assert min(turns.samples) < 100, "the wait for the next sample is not a part of the turn"
        is_busy = True

        async def be_busy() -> None:
            while is_busy:
                work(0.02)
                await asyncio.sleep(0)

        task = asyncio.ensure_future(be_busy())
        count = turns.count
        await until(lambda: turns.count >= count + 3)
        is_busy = False
        await task
        assert sorted(list(turns.samples)[count:])[-1] >= 19
        meter.stop()

    run(scenario())


def test_the_idle_share_is_that_of_the_thread() -> None:
    async def scenario() -> None:
        registry = MetricsRegistry(SystemClock())
        meter = LoopMeter.started("broker", registry, 0.1)
        turns = histogram(registry, "TurnTimeMs")
        count = turns.count
        await until(lambda: turns.count >= count + 5)
        idle = meter._idle.count_ns
        assert idle > 0.3e9
        work(0.5)
        count = turns.count
        await until(lambda: turns.count > count)
        assert meter._idle.busy_seconds >= 0.5
        assert 0.0 <= gauge(registry, "IdlePercent") <= 1.0
        meter.stop()
        await asyncio.sleep(0)
        count = turns.count
        await asyncio.sleep(0.25)
        assert turns.count <= count + 1, "a stopped meter takes no more samples"

    asyncio.run(scenario())


def test_a_peak_stays_for_a_minute_and_readers_do_not_change_it() -> None:
    registry = MetricsRegistry(SystemClock())
    peak = registry.peak("broker", "klamm.network", "RequestChannel", "RequestQueueSizeMax", lambda: 3)
    other = registry.peak("control", "klamm.controller", "ControllerEventManager", "EventQueueSizeMax", lambda: 0)
    values = [peak.value]
    peak.highest, other.highest = 40, 7
    for _ in range(PEAK_PERIODS):
        values.append(peak.value)
        registry.rotate_peaks("broker")
    peak.highest = 5
    values.append(peak.value)
    registry.rotate_peaks("broker")
    values.append(peak.value)
    assert values == [3, *[40] * PEAK_PERIODS, 40, 5] and other.value == 7
    registry.remove("klamm.network", "RequestChannel", "RequestQueueSizeMax")
    peak.highest = 9
    registry.rotate_peaks("broker")
    assert peak.highest == 9, "a removed peak is forgotten"


def test_the_meter_rotates_the_peaks_of_its_loop() -> None:
    async def scenario() -> None:
        registry = MetricsRegistry(SystemClock())
        peak = registry.peak("broker", "g", "t", "n", lambda: 0)
        peak.highest = 12
        meter = LoopMeter.started("broker", registry, 0.1)
        await until(lambda: peak.highest == 0)
        assert peak.value == 12
        meter.stop()

    asyncio.run(scenario())
