"""FaultDrill: breaks a cluster that this process owns, and records what it did. It cannot reach any other cluster."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

from klamm.errors import KlammError
from klamm.local.local_cluster import LocalCluster

SLOW_DISK_S: Final = 0.05
MAX_ACTIONS: Final = 200
_ZOOKEEPER: Final = "zk"


@dataclass(frozen=True, slots=True)
class DrillAction:
    """A fault, or its end, in the form in which the chart shows faults."""

    number: int
    at_ms: int
    place: str
    broker_id: int
    name: str
    text: str
    problem: str | None = None
    kind: str = "drill"
    duration_ms: int = 0


@dataclass(frozen=True, slots=True)
class DrilledBroker:
    id: int
    state: str
    """running, paused or stopped"""
    is_cut: bool
    is_slow: bool


class FaultDrill:
    """Owner of the actions: the loop of the web server. One action runs at a time, in a thread: most of them wait."""

    def __init__(self, cluster: LocalCluster) -> None:
        if not cluster.has_drill:
            raise KlammError("The cluster has no fault drill: create it with drill=True, or with klamm up --drill.")
        self._cluster = cluster
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fault-drill")
        self._actions: deque[DrillAction] = deque(maxlen=MAX_ACTIONS)
        self._count = 0
        self._running: str | None = None
        self._is_closed = False
        self._last: dict[str, Any] = {"brokers": [], "zookeeper": "running"}

    async def state(self) -> dict[str, Any]:
        if self._running is None and not self._is_closed:
            self._last = await self._in_thread(self._look)
        return {**self._last, "running": self._running, "actions": [asdict(each) for each in self._actions]}

    async def perform(self, name: str, broker_id: int | None) -> dict[str, Any]:
        """Carry out one fault; return the state afterwards. Raises KlammError or ValueError."""
        if self._is_closed:
            raise KlammError("The cluster is being stopped.")
        action, text = self._action(name, broker_id)
        if self._running is not None:
            raise KlammError(f"Another action is in progress: {self._running}.")
        place = _ZOOKEEPER if broker_id is None else str(broker_id)
        self._running = f"{'ZooKeeper' if broker_id is None else f'broker {broker_id}'}: {text}"
        at_ms = int(time.time() * 1000)
        problem = None
        try:
            await self._in_thread(action)
        except KlammError as error:
            problem = str(error).partition("\n")[0]
        finally:
            self._running = None
        self._count += 1
        self._actions.append(
            DrillAction(
                self._count,
                at_ms,
                place,
                broker_id=-1 if broker_id is None else broker_id,
                name=name,
                text=text,
                problem=problem,
            )
        )
        if problem is not None:
            raise KlammError(problem)
        return await self.state()

    def close(self) -> None:
        """End the faults that would keep brokers from a controlled shutdown, after the action that runs.

        Pages that are still open see the last state.
        """
        self._is_closed = True
        self._thread.submit(self._restore).result()
        self._thread.shutdown()

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _action(self, name: str, broker_id: int | None) -> tuple[Callable[[], object], str]:
        cluster = self._cluster
        if broker_id is None:
            known: dict[str, tuple[Callable[[], object], str]] = {
                "restart": (cluster.restart_zookeeper, "restarted"),
                "stop": (cluster.stop_zookeeper, "stopped"),
                "start": (cluster.start_zookeeper, "started"),
            }
        else:
            if broker_id not in cluster.broker_ids:
                raise ValueError(f"there is no broker {broker_id}")
            known = {
                "kill": (partial(cluster.kill, broker_id), "killed"),
                "stop": (partial(cluster.stop, broker_id), "stopped, with a controlled shutdown"),
                "start": (partial(cluster.start, broker_id), "started"),
                "pause": (partial(cluster.pause, broker_id), "paused"),
                "resume": (partial(cluster.resume, broker_id), "resumed"),
                "cut": (partial(cluster.cut, broker_id), "cut off from the network"),
                "heal": (partial(cluster.heal, broker_id), "connected again"),
                "expire": (partial(cluster.expire_session, broker_id), "its ZooKeeper session was ended"),
                "slow": (partial(cluster.slow_disk, broker_id, SLOW_DISK_S), f"disk slow: {SLOW_DISK_S * 1000:.0f} ms"),
                "fast": (partial(cluster.slow_disk, broker_id, 0.0), "disk as fast as before"),
            }
        if name not in known:
            raise ValueError(f"there is no action {name[:40]!r}")
        return known[name]

    def _look(self) -> dict[str, Any]:
        cluster = self._cluster
        brokers = [asdict(self._broker(broker_id)) for broker_id in cluster.broker_ids]
        return {"brokers": brokers, "zookeeper": "running" if cluster.is_zookeeper_running else "stopped"}

    def _broker(self, broker_id: int) -> DrilledBroker:
        cluster = self._cluster
        state = "stopped"
        if cluster.is_running(broker_id):
            state = "paused" if cluster.is_paused(broker_id) else "running"
        return DrilledBroker(broker_id, state, cluster.is_cut(broker_id), cluster.disk_delay_s(broker_id) > 0)

    def _restore(self) -> None:
        for broker_id in self._cluster.broker_ids:
            self._cluster.slow_disk(broker_id, 0.0)
            self._cluster.heal(broker_id)
            if self._cluster.is_running(broker_id) and self._cluster.is_paused(broker_id):
                self._cluster.resume(broker_id)
        if not self._cluster.is_zookeeper_running:
            self._cluster.start_zookeeper()
