"""A run of level 1 that a user directs: a seed, and actions at given times. The same plan gives the same run.

Without chaos nothing happens to messages by chance. With chaos the run is that of `klamm simulate --seed`, and actions
come in addition. A run is cheap, so a changed plan is run again from its beginning.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from klamm.controller.events import (
    ApiPartitionReassignment,
    ControlledShutdown,
    ControllerEvent,
    CreatablePartitions,
    CreatableTopic,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    ElectionType,
    ReplicaLeaderElection,
)
from klamm.controller.replies import ControlledShutdownResult, EventReply
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.sim.chances import Chances
from klamm.sim.leaders import Leaders
from klamm.sim.node import Node
from klamm.sim.runner import run_phases
from klamm.sim.violation import Violation
from klamm.sim.workload import Workload
from klamm.sim.world import SESSION_TIMEOUT_MS, World
from klamm.zk.model import paths
from klamm.zk.model.ops import Create, Delete
from klamm.zk.model.znodes import encode_log_dir_event

CALM: Final = Chances(0.0, 0.0, 0.0, 0.0, 0.0, lagging_member=0.1, partial_fetches=False)
MAX_MS: Final = 60_000
MAX_BROKERS: Final = 9
MAX_ACTIONS: Final = 200


class PlanError(ValueError):
    """The plan is not one that can be run."""


@dataclass(frozen=True, slots=True)
class Action:
    """`name` with its arguments, at a time of the run: `kill 2`, `cut 1 3 400`, `create orders 2 3`."""

    at_ms: int
    name: str
    arguments: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Action:
        """Parse the form of addresses: `1200.kill.2`."""
        at, *words = text.split(".")
        if not at.isdigit() or not words:
            raise PlanError(f"an action has the form time.name.argument, such as 1200.kill.2; this is {text!r}")
        return cls(int(at), words[0], tuple(words[1:]))


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int = 1
    brokers: int = 3
    end_ms: int = 3_000
    chaos: bool = False
    """Random work and random faults, as in `klamm simulate --seed`."""
    actions: tuple[Action, ...] = field(default=())
    late_messages: bool = False
    """Whether requests of a closed channel may still arrive."""

    def __post_init__(self) -> None:
        if not 1 <= self.brokers <= MAX_BROKERS:
            raise PlanError(f"a run has 1 to {MAX_BROKERS} brokers, not {self.brokers}")
        if not 0 < self.end_ms <= MAX_MS:
            raise PlanError(f"a run lasts up to {MAX_MS} ms, not {self.end_ms}")
        if len(self.actions) > MAX_ACTIONS:
            raise PlanError(f"a run has at most {MAX_ACTIONS} actions, not {len(self.actions)}")


class ScriptedRun:
    """One run of a plan. `records` are the lines of its recording, `error` the violated invariant."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        chances = None if plan.chaos else replace(CALM, late_after_close=0.5 if plan.late_messages else 0.0)
        self.world = World(plan.seed, plan.brokers, tracing=True, recording=True, chances=chances)
        self.work = Workload(self.world)
        self.error: str | None = None
        assert self.world.recording is not None
        self.recording = self.world.recording
        self._actions: dict[str, Callable[..., None]] = {
            "create": self._create,
            "grow": self._grow,
            "delete": self._delete,
            "elect": self._elect,
            "move": self._move,
            "kill": self._kill,
            "bounce": self._bounce,
            "power": self._power,
            "stop": self._stop,
            "start": self._start,
            "pause": self._pause,
            "slow": self._slow,
            "cut": self._cut,
            "expire": self._expire,
            "resign": self._resign,
            "disk": self._fail_disk,
            "zk": self._zookeeper_away,
        }
        for action in plan.actions:
            self.world.scheduler.at(action.at_ms, self._carry_out, action)

    def run(self) -> None:
        scheduler = self.world.scheduler
        try:
            if self.plan.chaos:
                for until_ms in run_phases(self.world, self.work):
                    scheduler.run_until(until_ms)
            else:
                self.world.later(30, Leaders(self.work).tick)
                scheduler.run_until(self.plan.end_ms)
        except Violation as violation:
            self.error = str(violation)

    def _carry_out(self, action: Action) -> None:
        act = self._actions.get(action.name)
        if act is None:
            raise PlanError(f"there is no action {action.name!r}; there are {', '.join(self._actions)}")
        self.recording.add("action", -1, name=action.name, arguments=list(action.arguments))
        try:
            act(*action.arguments)
        except (TypeError, KeyError) as error:
            raise PlanError(f"action {action.name} {' '.join(action.arguments)}: {error}") from error

    # --- requests ----------------------------------------------------------------------------------------------------

    def _ask(self, event: ControllerEvent, on_reply: Callable[[EventReply], None] = lambda reply: None) -> None:
        """Ask the controller; if there is none, ask again a little later, as a client does."""
        active = self.world.active()
        if active and active[0].paused_until_ms <= self.world.scheduler.time_ms:
            self.work.ask(event, on_reply, active[0])
        else:
            self.world.later(20, partial(self._ask, event, on_reply))

    def _create(self, name: str, partitions: str = "1", *replicas: str) -> None:
        """`create orders 2` with replicas on all brokers, or `create orders 1 1 2 3` with the given ones."""
        brokers = tuple(map(int, replicas)) or tuple(self.world.nodes)
        turns = [brokers[i % len(brokers) :] + brokers[: i % len(brokers)] for i in range(int(partitions))]
        assignments = tuple(enumerate(turns))
        self._ask(CreateTopics((CreatableTopic(name, assignments=assignments),)))

    def _grow(self, name: str, count: str) -> None:
        self._ask(CreatePartitions((CreatablePartitions(name, int(count)),)))

    def _delete(self, name: str) -> None:
        self._ask(DeleteTopics((name,)))

    def _elect(self) -> None:
        self._ask(ReplicaLeaderElection(None, ElectionType.PREFERRED))

    def _move(self, topic: str, partition: str, *replicas: str) -> None:
        target = tuple(map(int, replicas))
        self._ask(ApiPartitionReassignment(((TopicPartition(topic, int(partition)), target),)))

    # --- faults ------------------------------------------------------------------------------------------------------

    def _node(self, broker: str) -> Node:
        """A broker by its id, or `c` for the controller."""
        if broker == "c":
            active = self.world.active()
            return active[-1] if active else next(iter(self.world.nodes.values()))
        return self.world.nodes[int(broker)]

    def _kill(self, broker: str) -> None:
        if (node := self._node(broker)).alive:
            self.world.crash(node, SESSION_TIMEOUT_MS, None)

    def _bounce(self, broker: str, down_ms: str = "5") -> None:
        """The process ends and starts at once: its old session ends when the new process registers, or by timeout."""
        if (node := self._node(broker)).alive:
            self.world.crash(node, min(int(down_ms), SESSION_TIMEOUT_MS), int(down_ms))

    def _power(self, broker: str) -> None:
        if (node := self._node(broker)).alive:
            self.world.lose_power(node, SESSION_TIMEOUT_MS, None)

    def _start(self, broker: str) -> None:
        node = self._node(broker)
        if not node.alive:
            self.world.restart(node, node.generation)

    def _stop(self, broker: str) -> None:
        """A controlled shutdown: the broker asks the controller to move its leaders, then stops."""
        node = self._node(broker)
        generation = node.generation

        def stop() -> None:
            if node.generation == generation and node.alive and not node.is_stopping:
                self.world.stop(node, None)

        def on_reply(reply: EventReply) -> None:
            assert isinstance(reply, ControlledShutdownResult)
            if reply.error is ErrorCode.NONE and not reply.remaining:
                self.world.later(20, stop)

        if node.alive:
            self._ask(ControlledShutdown(node.id, node.broker.broker_epoch), on_reply)
            self.world.later(500, stop)

    def _pause(self, broker: str, duration_ms: str = "300") -> None:
        if (node := self._node(broker)).alive:
            self.world.pause(node, int(duration_ms))

    def _slow(self, broker: str, duration_ms: str = "800") -> None:
        """The broker answers no control request for a while; its session lives."""
        for source in self.world.nodes:
            self.world.cut(source, int(broker), int(duration_ms))

    def _cut(self, source: str, target: str, duration_ms: str = "500") -> None:
        self.world.cut(int(source), int(target), int(duration_ms))

    def _expire(self, broker: str) -> None:
        self.world.expire(self._node(broker))

    def _resign(self) -> None:
        """An operator deletes /controller: the brokers elect another controller."""
        self.work.tool("deletes /controller", Delete(paths.CONTROLLER))

    def _fail_disk(self, broker: str, log_dir: str = "0") -> None:
        """A log directory fails, and the broker reports it through ZooKeeper."""
        node = self._node(broker)
        if node.alive and self.world.fail_log_dir(node, int(log_dir)):
            note = Create(paths.log_dir_event_path(), encode_log_dir_event(node.id), sequential=True)
            self.world.notes_due += 1
            self.work.leave_note(f"broker {node.id} notes a failed log directory", note)

    def _zookeeper_away(self, duration_ms: str = "200") -> None:
        duration = int(duration_ms)
        self.world.note_fault("zk", "away", f"AWAY FOR {duration} ms", duration)
        self.world.zookeeper.away_until_ms = self.world.scheduler.time_ms + duration


def plan_of(fields: dict[str, Any]) -> Plan:
    """Return the plan of a JSON object, as the viewer sends it."""
    known = {"seed", "brokers", "end_ms", "chaos", "late_messages"}
    values = {name: fields[name] for name in known if name in fields}
    return Plan(**values, actions=tuple(Action.parse(text) for text in fields.get("actions", ())))


def play(plan: str) -> str:
    """Run a plan that is given as JSON; returns a JSON object with its records, for the viewer."""
    try:
        run = ScriptedRun(plan_of(json.loads(plan)))
        run.run()
    except (PlanError, ValueError) as error:
        return json.dumps({"problem": str(error)})
    fields = {"brokers": list(run.world.nodes), "end_ms": run.world.scheduler.time_ms, "error": run.error}
    text = json.dumps({**fields, "steps": run.world.steps, "transcript_lines": len(run.world.lines)})
    return f'{text[:-1]}, "records": [{",".join(run.recording.lines)}]}}'
