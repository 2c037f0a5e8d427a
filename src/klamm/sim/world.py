"""A cluster in one process and virtual time: brokers with their controllers, ZooKeeper, a network, faults and work."""

from __future__ import annotations

from collections.abc import Callable

from klamm.controller.config import ControllerConfig, InterBrokerProtocol
from klamm.controller.requests import ControlRequest
from klamm.controller.responses import ControlResponse
from klamm.model import EndPoint
from klamm.sim.checkers import Checkers
from klamm.sim.node import Node
from klamm.sim.scheduler import Scheduler
from klamm.sim.transcript import show_request
from klamm.sim.zookeeper import SimulatedZooKeeper

SESSION_TIMEOUT_MS = 60


class World:
    """Every fifth seed runs under an old inter-broker protocol: leaders write ISRs themselves, topics have no ids."""

    def __init__(self, seed: int, brokers: int = 3, *, tracing: bool = False) -> None:
        self.seed = seed
        self.scheduler = Scheduler(seed)
        self.tracing = tracing
        self.lines: list[str] = []
        self.steps = 0
        self.calm = False
        self.checkers = Checkers()
        self.zookeeper = SimulatedZooKeeper(self.scheduler, self.checkers.on_written)
        self._cut: set[tuple[int, int]] = set()
        self.protocol = InterBrokerProtocol.parse("2.7-IV1" if seed % 5 == 4 else "3.9")
        self.nodes = {i: Node(self, self._config(i, self.protocol)) for i in range(1, brokers + 1)}

    @staticmethod
    def _config(broker: int, protocol: InterBrokerProtocol) -> ControllerConfig:
        return ControllerConfig(
            broker,
            endpoints=(EndPoint("PLAINTEXT", f"host{broker}", 9092),),
            rack="ab"[broker % 2],
            inter_broker_protocol=protocol,
            num_partitions=2,
            default_replication_factor=2,
            leader_imbalance_check_interval_seconds=1,
        )

    # --- trace -------------------------------------------------------------------------------------------------------

    def trace(self, who: int | str, text: str) -> None:
        if self.tracing:
            self.lines.append(f"{self.scheduler.time_ms:6d} {who}: {text}")

    # --- network -----------------------------------------------------------------------------------------------------

    def network_delay_ms(self) -> int:
        rng = self.scheduler.rng
        slow = not self.calm and rng.random() < 0.1
        return rng.randint(20, 300) if slow else rng.randint(1, 20)

    def answer_is_lost(self) -> bool:
        return not self.calm and self.scheduler.rng.random() < 0.05

    def is_cut(self, source: int, target: int) -> bool:
        return (source, target) in self._cut

    def cut(self, source: int, target: int, duration_ms: int) -> None:
        self._cut.add((source, target))
        self.scheduler.at(duration_ms, self._cut.discard, (source, target))

    def deliver(self, source: int, target: int, request: ControlRequest) -> ControlResponse:
        response = self.nodes[target].broker.handle(request)
        if self.tracing:
            outcome = response.error.name if response.error else self._errors(response)
            self.trace(target, f"< {source} {show_request(request)} -> {outcome}")
        return response

    @staticmethod
    def _errors(response: ControlResponse) -> str:
        return ", ".join(f"{tp}:{error.name}" for tp, error in response.partition_errors if error) or "NONE"

    # --- brokers -----------------------------------------------------------------------------------------------------

    def active(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.alive and node.controller.is_active]

    def crash(self, node: Node, expire_in_ms: int, restart_in_ms: int) -> None:
        self.trace(node.id, "CRASH")
        session = node.session
        node.crash()
        if session is not None:
            self.scheduler.at(expire_in_ms, self.zookeeper.end_session, session)
        self.scheduler.at(restart_in_ms, self._restart, node, node.generation)

    def stop(self, node: Node, restart_in_ms: int) -> None:
        """A clean stop: the session is closed at once."""
        self.crash(node, 0, restart_in_ms)

    def _restart(self, node: Node, generation: int) -> None:
        if node.generation == generation:
            self.trace(node.id, "RESTART")
            node.boot()

    def pause(self, node: Node, duration_ms: int) -> None:
        self.trace(node.id, f"PAUSE {duration_ms} ms")
        node.paused_until_ms = self.scheduler.time_ms + duration_ms
        if duration_ms > SESSION_TIMEOUT_MS:
            self.scheduler.at(SESSION_TIMEOUT_MS, self.expire, node)

    def expire(self, node: Node) -> None:
        session = node.session
        if session is None or not node.alive:
            return
        self.trace(node.id, "SESSION EXPIRES")
        self.zookeeper.end_session(session)
        delay = max(0, node.paused_until_ms - self.scheduler.time_ms) + self.scheduler.rng.randint(1, 40)
        self.scheduler.at(delay, node.discover_expiry, session)

    def resume_all(self) -> None:
        """The end of all faults: everybody runs, every link works."""
        self.calm = True
        self.zookeeper.loss_rate = 0.0
        self._cut.clear()
        for node in self.nodes.values():
            node.paused_until_ms = min(node.paused_until_ms, self.scheduler.time_ms)

    def is_settled(self) -> bool:
        """Nobody is in the middle of something: no event is processed or waits, no request is on its way."""
        return all(
            node.running is None and not node.queue and all(channel.is_idle for channel in node.channels.values())
            for node in self.nodes.values()
        )

    def later(self, delay_ms: int, call: Callable[[], None]) -> None:
        self.scheduler.at(delay_ms, call)
