"""A cluster in one process and virtual time: brokers with their controllers, ZooKeeper, a network, faults and work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from klamm.controller.config import ControllerConfig, InterBrokerProtocol
from klamm.controller.requests import ControlRequest, StopReplicaRequest
from klamm.controller.responses import ControlResponse
from klamm.model import EndPoint
from klamm.sim.broker_model import LOG_DIRS
from klamm.sim.chances import Chances
from klamm.sim.checkers import Checkers
from klamm.sim.node import Node
from klamm.sim.recording import Recording
from klamm.sim.tails import Tails
from klamm.sim.transcript import show_request
from klamm.sim.virtual_time import Scheduler
from klamm.sim.zookeeper import ClientSession, SimulatedZooKeeper

SESSION_TIMEOUT_MS = 60
UNCLEAN_REPLICA_WAIT_MS = 500
"""Longer than most restarts, but not all."""
PROTOCOLS = {4: "2.7-IV1", 6: "3.0", 9: "2.5"}
"""By the last digit of the seed, where it is not the newest. Before 2.7-IV2 leaders write ISRs themselves, before 2.8
topics have no ids, before 2.6 a StopReplica has no leader epochs, before 3.2 nobody recovers."""


class World:
    def __init__(
        self,
        seed: int,
        brokers: int = 3,
        *,
        tracing: bool = False,
        recording: bool = False,
        chances: Chances | None = None,
    ) -> None:
        self.seed = seed
        self.scheduler = Scheduler(seed)
        self.tracing = tracing
        self.recording = Recording(self.scheduler) if recording else None
        self.chances = chances or Chances()
        self.lines: list[str] = []
        self.steps = 0
        self.calm = False
        self.notes_due = 0
        """Notifications for the controller that are about to be created in ZooKeeper."""
        self.faults: Counter[str] = Counter()
        """Number of faults and deliberate actions by kind."""
        self.tails = Tails(self)
        self.checkers = Checkers(self._writer, self.tails)
        self.zookeeper = SimulatedZooKeeper(self.scheduler, self.checkers.on_written)
        self.zookeeper.on_session_ended = self._on_session_ended
        self._session_brokers: dict[int, int] = {}
        self._cut: set[tuple[int, int]] = set()
        self.protocol = InterBrokerProtocol.parse(PROTOCOLS.get(seed % 10, "3.9"))
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
            unclean_replica_wait_ms=UNCLEAN_REPLICA_WAIT_MS,
        )

    # --- trace -------------------------------------------------------------------------------------------------------

    def trace(self, who: int | str, text: str) -> None:
        if self.tracing:
            self.lines.append(f"{self.scheduler.time_ms:6d} {who}: {text}")

    def note_fault(
        self, who: int | str, name: str, text: str, duration_ms: int = 0, link: tuple[int, int] | None = None
    ) -> None:
        self.trace(who, text)
        if self.recording is not None:
            broker = who if isinstance(who, int) else -1
            fields = {"place": str(who), "name": name, "text": text.lower(), "duration_ms": duration_ms, "link": link}
            self.recording.add("fault", broker, **fields)

    def on_session_opened(self, broker: int, session: ClientSession) -> None:
        if self.recording is not None:
            self._session_brokers[session.id] = broker
            self.recording.add("session", broker, state="opened", session_id=session.id)

    def _on_session_ended(self, session: ClientSession) -> None:
        broker = self._session_brokers.pop(session.id, None)
        if self.recording is not None and broker is not None:
            self.recording.add("session", broker, state="ended", session_id=session.id)

    # --- network -----------------------------------------------------------------------------------------------------

    def network_delay_ms(self, kind: str = "late requests") -> int:
        rng = self.scheduler.rng
        slow = not self.calm and rng.random() < self.chances.slow_message
        if slow:
            self.faults[kind] += 1
        return rng.randint(20, 300) if slow else rng.randint(1, 20)

    def answer_is_lost(self) -> bool:
        lost = not self.calm and self.scheduler.rng.random() < self.chances.lost_reply
        self.faults["lost replies"] += lost
        return lost

    def is_held_up(self) -> bool:
        """A request whose sender has given up: it may arrive much later."""
        held_up = not self.calm and self.scheduler.rng.random() < self.chances.late_after_close
        self.faults["requests of a closed channel that come late"] += held_up
        return held_up

    def is_overtaken(self) -> bool:
        """A request that is delayed so long that its sender repeats it over another connection."""
        overtaken = not self.calm and self.scheduler.rng.random() < self.chances.overtaken
        self.faults["requests overtaken by what followed them"] += overtaken
        return overtaken

    def is_cut(self, source: int, target: int) -> bool:
        return (source, target) in self._cut

    def cut(self, source: int, target: int, duration_ms: int) -> None:
        self.note_fault("net", "cut", f"CUT {source} -> {target} for {duration_ms} ms", duration_ms, (source, target))
        self._cut.add((source, target))
        self.scheduler.at(duration_ms, self._cut.discard, (source, target))

    def deliver(self, source: int, target: int, request: ControlRequest) -> ControlResponse:
        node = self.nodes[target]
        if isinstance(request, StopReplicaRequest):
            hosted = dict(node.broker.hosted)
            response = node.broker.handle(request)
            self.checkers.on_stopped(node, request, hosted)
        else:
            response = node.broker.handle(request)
        if self.tracing:
            outcome = response.error.name if response.error else self._errors(response)
            self.trace(target, f"< {source} {show_request(request)} -> {outcome}")
        self.checkers.on_delivered(node, request.head, response.error)
        return response

    @staticmethod
    def _errors(response: ControlResponse) -> str:
        return ", ".join(f"{tp}:{error.name}" for tp, error in response.partition_errors if error) or "NONE"

    def _writer(self, session_id: int) -> Node | None:
        """Return the process of a session; None for tools and ended processes."""
        nodes = self.nodes.values()
        return next((node for node in nodes if node.session is not None and node.session.id == session_id), None)

    # --- brokers -----------------------------------------------------------------------------------------------------

    def active(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.alive and node.controller.is_active]

    def crash(self, node: Node, expire_in_ms: int, restart_in_ms: int | None) -> None:
        """The process ends at once. It starts again after `restart_in_ms`; None leaves it down."""
        self.note_fault(node.id, "crash", "CRASH")
        session = node.session
        node.crash()
        if session is not None:
            self.scheduler.at(expire_in_ms, self.zookeeper.end_session, session)
        if restart_in_ms is not None:
            self.scheduler.at(restart_in_ms, self.restart, node, node.generation)

    def stop(self, node: Node, restart_in_ms: int | None) -> None:
        """A clean stop: queued events are refused, the session is closed at once."""
        self.note_fault(node.id, "stop", "STOP")
        is_clean = not node.was_unclean or node.broker.is_tail_settled

        def end() -> None:
            self.crash(node, 0, restart_in_ms)
            node.disk.flush()
            node.disk.is_marked_clean = is_clean

        node.shut_down(end)

    def lose_power(self, node: Node, expire_in_ms: int, restart_in_ms: int | None) -> None:
        self.note_fault(node.id, "power", "LOSES POWER")
        self.crash(node, expire_in_ms, restart_in_ms)
        node.disk.lose_power(self.scheduler.rng)

    def fail_log_dir(self, node: Node, log_dir: int) -> bool:
        """Returns False if it was the last one, which ends the process."""
        self.note_fault(node.id, "disk", f"LOG DIRECTORY {log_dir} FAILS")
        node.broker.fail_log_dir(log_dir)
        return len(node.disk.broken) < LOG_DIRS

    def move(self, node: Node, *, in_place: bool) -> None:
        """New addresses, for a process that starts or one that rewrites its registration."""
        port = 9092 + self.scheduler.rng.randint(1, 1000)
        listeners = ("PLAINTEXT", "OTHER")[: self.scheduler.rng.randint(1, 2)]
        endpoints = tuple(EndPoint(name, f"host{node.id}", port + i) for i, name in enumerate(listeners))
        shown = ", ".join(f"{e.listener}://{e.host}:{e.port}" for e in endpoints)
        self.note_fault(node.id, "address", f"NEW ADDRESS {shown}")
        node.config = replace(node.config, endpoints=endpoints)
        if in_place:
            context = node.controller.context
            context.set_config(replace(context.config, endpoints=endpoints))

    def restart(self, node: Node, generation: int) -> None:
        """Start the process again, unless another one was started since."""
        if node.generation == generation and not node.alive:
            self.note_fault(node.id, "restart", "RESTART")
            node.boot()

    def pause(self, node: Node, duration_ms: int) -> None:
        self.note_fault(node.id, "pause", f"PAUSE {duration_ms} ms", duration_ms)
        node.paused_until_ms = self.scheduler.time_ms + duration_ms
        if duration_ms > SESSION_TIMEOUT_MS:
            self.scheduler.at(SESSION_TIMEOUT_MS, self.expire, node)

    def expire(self, node: Node) -> None:
        session = node.session
        if session is None or not node.alive:
            return
        self.note_fault(node.id, "expire", "SESSION EXPIRES")
        self.faults["sessions expired"] += 1
        self.zookeeper.end_session(session)
        delay = max(0, node.paused_until_ms - self.scheduler.time_ms) + self.scheduler.rng.randint(1, 40)
        self.scheduler.at(delay, node.discover_expiry, session)

    def resume_all(self) -> None:
        """End all faults: all brokers run, every link works."""
        self.calm = True
        self.zookeeper.loss_rate = 0.0
        self.zookeeper.away_until_ms = min(self.zookeeper.away_until_ms, self.scheduler.time_ms)
        self._cut.clear()
        for node in self.nodes.values():
            node.paused_until_ms = min(node.paused_until_ms, self.scheduler.time_ms)

    def mend_log_dirs(self) -> None:
        """Restart brokers with a failed directory, with working ones."""
        for node in self.nodes.values():
            if node.alive and node.disk.broken:
                self.crash(node, self.scheduler.rng.randint(5, 80), self.scheduler.rng.randint(5, 250))

    def all_faults(self) -> Counter[str]:
        counted = self.faults.copy()
        counted["lost answers of ZooKeeper"] = self.zookeeper.lost_answers
        counted["unclean elections"] = self.checkers.unclean.elections
        counted["changes of the controller"] = max(0, len(self.checkers.controllers) - 1)
        return counted

    def is_settled(self) -> bool:
        """Whether the cluster is idle: no event is processed or queued, no request is in flight."""
        return not self.notes_due and all(
            node.running is None
            and not node.queue
            and not node.asking
            and all(channel.is_idle for channel in node.channels.values())
            for node in self.nodes.values()
        )

    def later(self, delay_ms: int, call: Callable[[], None]) -> None:
        self.scheduler.at(delay_ms, call)
