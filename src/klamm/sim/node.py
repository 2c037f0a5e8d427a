"""One broker process: its controller core with the queue in front of it, its session, its senders, its broker model.

Production drives the same core in `controller/event_manager.py`; here every wait is an entry in the heap, a crash is
"do not resume", and a pause defers everything the process would do.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from random import Random
from typing import Any, Protocol
from uuid import UUID

from klamm.controller.config import ControllerConfig
from klamm.controller.controller import KafkaController
from klamm.controller.effects import (
    ActiveControllerChanged,
    AddChannel,
    AskLogEnds,
    AskSessionId,
    BrokerRegistered,
    CancelScheduled,
    CloseAllChannels,
    CloseChannel,
    Effect,
    Enqueue,
    Pause,
    Reply,
    Schedule,
    Send,
    Steps,
    ZkMulti,
    ZkRead,
)
from klamm.controller.events import (
    ControllerEvent,
    Expire,
    LogEndsReceived,
    RegisterBrokerAndReelect,
    ShutdownEventThread,
    Startup,
)
from klamm.controller.replies import BrokerRegistration, EventReply
from klamm.controller.requests import ControlRequest, LeaderAndIsrPartition
from klamm.controller.watches import event_of
from klamm.errors import ErrorCode
from klamm.metadata.read_steps import Answers
from klamm.model import UNKNOWN_BROKER_EPOCH, BrokerEndPoints, TopicPartition
from klamm.sim.broker_model import BrokerModel, Disk
from klamm.sim.broker_rules import BrokerRules
from klamm.sim.channels import RETRY_MS, Channel, ChannelWorld
from klamm.sim.recording import ChannelJournal, NodeJournal, Recording
from klamm.sim.transcript import show_effect, show_value
from klamm.sim.virtual_time import Scheduler
from klamm.sim.zookeeper import ClientSession, SimulatedZooKeeper
from klamm.zk.model import paths
from klamm.zk.model.ops import ReadOp, SessionExpired, WatchEvent

OnReply = Callable[[EventReply], None]


class NodeChecks(Protocol):
    """`klamm.sim.checkers.Checkers`, as far as nodes use it."""

    def on_controller(self, broker: int, epoch: int) -> None: ...

    def on_leader(self, broker: int, state: LeaderAndIsrPartition, topic_id: UUID) -> None: ...

    def on_send(self, controller: int, channel: Channel, request: ControlRequest) -> None: ...

    def after_event(self, node: Node, event: ControllerEvent) -> None: ...


class TailChecks(Protocol):
    """`klamm.sim.tails.Tails`, as far as nodes use it."""

    def on_log_ends_reported(self, node: Node, asked: Iterable[tuple[TopicPartition, int]]) -> None: ...


class NodeWorld(ChannelWorld, Protocol):
    """`klamm.sim.world.World`, as far as nodes use it."""

    steps: int
    tracing: bool
    recording: Recording | None
    faults: Counter[str]
    zookeeper: SimulatedZooKeeper

    @property
    def nodes(self) -> Mapping[int, Node]: ...

    @property
    def checkers(self) -> NodeChecks: ...

    @property
    def tails(self) -> TailChecks: ...

    def trace(self, who: int | str, text: str) -> None: ...

    def on_session_opened(self, broker: int, session: ClientSession) -> None: ...

    def later(self, delay_ms: int, call: Callable[[], None]) -> None: ...


class NodeClock:
    """A process's clock: its wall clock may jump, its monotonic clock does not."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.offset_ms = 0

    def now_ms(self) -> int:
        return self._scheduler.time_ms + self.offset_ms

    def monotonic(self) -> float:
        return self._scheduler.monotonic()


class Node:
    def __init__(self, world: NodeWorld, config: ControllerConfig) -> None:
        self.world = world
        self.config = config
        self.disk = Disk()
        self.clock = NodeClock(world.scheduler)
        self.generation = 0
        self.alive = False
        self.paused_until_ms = 0
        self.session: ClientSession | None = None
        self.boot()

    @property
    def id(self) -> int:
        return self.config.broker_id

    def boot(self) -> None:
        """Start a new process: empty memory, the old disk, failed directories repaired."""
        self.generation += 1
        self.alive = True
        self.paused_until_ms = 0
        world = self.world
        seed = world.scheduler.rng.getrandbits(32)
        self.was_unclean = not self.disk.is_marked_clean
        self.disk.is_marked_clean = False
        config = replace(self.config, unclean_shutdown=self.was_unclean)
        self.controller = KafkaController(config, self.clock, Random(seed))
        self.disk.broken.clear()
        has_stop_epochs = world.protocol.stop_replica_version >= 3
        self.broker = BrokerModel(
            self.id,
            self.disk,
            world.checkers.on_leader,
            stop_epochs=has_stop_epochs,
            registered_epoch=self._registered_epoch,
        )
        self.rules = BrokerRules(self.broker, self)
        self.queue: deque[tuple[ControllerEvent, OnReply | None]] = deque()
        self.channels: dict[int, Channel] = {}
        self.asking = 0
        self.running: Steps[None] | None = None
        self.current: tuple[ControllerEvent, OnReply | None] | None = None
        self.replied = False
        self._after_shutdown: Callable[[], None] | None = None
        self.timers = 0
        self.scheduled: list[ControllerEvent] = []
        self.journal = NodeJournal(world.recording, self.id, world.scheduler)
        self._open_session()
        self.put(Startup())

    def _registered_epoch(self) -> int:
        znode = self.world.zookeeper.tree.nodes.get(paths.broker_path(self.id))
        is_own = znode is not None and self.session is not None and znode.ephemeral_owner == self.session.id
        return znode.czxid if znode is not None and is_own else UNKNOWN_BROKER_EPOCH

    def _open_session(self) -> None:
        generation = self.generation
        self.session = self.world.zookeeper.open_session(lambda event: self._on_watch(generation, event))
        self.world.on_session_opened(self.id, self.session)

    def crash(self) -> None:
        self.alive = False
        for channel in self.channels.values():
            channel.close()
        self.running = None

    # --- queue -------------------------------------------------------------------------------------------------------

    def put(self, event: ControllerEvent, on_reply: OnReply | None = None, cause: str = "") -> None:
        if self.alive:
            self.queue.append((event, on_reply))
            self.journal.queued(event, cause or ("this broker" if on_reply is None else "request"))
            self._pump()

    def _on_watch(self, generation: int, watch: WatchEvent) -> None:
        event = event_of(watch)
        if event is not None and generation == self.generation:
            if self.world.recording is not None and self.alive:
                self.world.recording.add("watch", self.id, path=watch.path, change=watch.type.name.lower())
            self.when_awake(lambda: self.put(event, cause="watch"))

    def when_awake(self, call: Callable[[], None]) -> None:
        """Run `call` now, or when the process resumes, unless it has died by then."""
        generation, scheduler = self.generation, self.world.scheduler

        def attempt() -> None:
            if self.alive and self.generation == generation:
                if self.paused_until_ms > scheduler.time_ms:
                    scheduler.at(self.paused_until_ms - scheduler.time_ms, attempt)
                else:
                    call()

        attempt()

    # --- for the rules of the broker ---------------------------------------------------------------------------------

    def read(self, ops: tuple[ReadOp, ...], then: Callable[[Answers], None]) -> None:
        """Read in the current session. An error, or the end of the process, ends the rule."""
        generation = self.generation

        def answer(value: Any, error: Exception | None) -> None:
            if error is None and generation == self.generation:
                self.when_awake(lambda: then(value))

        if self.session is not None:
            self.world.zookeeper.request(self.session, ZkRead(ops), answer)

    def pause(self, seconds: float, then: Callable[[], None]) -> None:
        generation = self.generation

        def go_on() -> None:
            if generation == self.generation:
                self.when_awake(then)

        self.world.later(int(seconds * 1000), go_on)

    def on_stray_deleted(self, tp: TopicPartition) -> None:
        self.world.trace(self.id, f"deletes {tp}, which was moved away")
        self.world.faults["replicas moved away unnoticed"] += 1

    def discover_expiry(self, session: ClientSession) -> None:
        """The client library notices the session's expiry: queued requests are refused, then a new session begins."""
        if self.session is session and self.alive:
            self.session = None
            self.clear_and_put(Expire())

    def clear_and_put(self, event: ControllerEvent) -> None:
        dropped, self.queue = self.queue, deque()
        self.journal.cleared()
        for waiting, on_reply in dropped:
            if on_reply is not None:
                on_reply(waiting.refusal())
        self.put(event)

    @property
    def is_stopping(self) -> bool:
        return self._after_shutdown is not None

    def shut_down(self, then: Callable[[], None]) -> None:
        """Refuse queued events, finish the current one, resign; then call `then`."""
        self._after_shutdown = then
        self.clear_and_put(ShutdownEventThread())

    def _pump(self) -> None:
        if self.running is None and self.queue and self.alive:
            self.current = self.queue.popleft()
            self.journal.started()
            self.replied = False
            if self.world.tracing:
                self.world.trace(self.id, f"> {show_value(self.current[0])}")
            self.running = self.controller.process(self.current[0])
            if isinstance(self.current[0], Expire):
                self.world.scheduler.at(self.world.scheduler.rng.randint(1, 20), self._new_session, self.generation)
            self._advance(self.running, None, None)

    def _new_session(self, generation: int) -> None:
        if generation == self.generation and self.alive and self.session is None:
            self._open_session()
            self.rules.on_new_session()
            self.put(RegisterBrokerAndReelect())

    # --- driver ------------------------------------------------------------------------------------------------------

    def _advance(self, running: Steps[None], value: Any, error: Exception | None) -> None:
        while self.running is running and self.alive:
            self.world.steps += 1
            try:
                effect = running.throw(error) if error is not None else running.send(value)
            except StopIteration:
                self.running = None
                self._on_processed()
                return
            value = error = None
            self.journal.on_effect(effect)
            if self.world.tracing:
                self.world.trace(self.id, f"  {show_effect(effect)}")
            if isinstance(effect, ZkRead | ZkMulti):
                self._ask_zookeeper(running, effect)
                return
            if isinstance(effect, Pause):
                self.world.scheduler.at(1, self.when_awake, lambda: self._advance(running, None, None))
                return
            if isinstance(effect, AskSessionId):
                value = -1 if self.session is None else self.session.id
            self._carry_out(effect)

    def _on_processed(self) -> None:
        assert self.current is not None
        event = self.current[0]
        self.journal.done()
        self.world.checkers.after_event(self, event)
        if isinstance(event, ShutdownEventThread):
            assert self._after_shutdown is not None
            self._after_shutdown()
        else:
            self._pump()

    def _ask_zookeeper(self, running: Steps[None], effect: ZkRead | ZkMulti) -> None:
        session, journal, asked_ms = self.session, self.journal, self.world.scheduler.time_ms

        def answer(value: Any, error: Exception | None) -> None:
            journal.on_zookeeper_answered(effect, asked_ms, error)
            if error is not None:
                self.world.trace(self.id, f"  ! {error!r}")
            self.when_awake(lambda: self._advance(running, value, error))

        def ask() -> None:
            if session is None or not self.world.zookeeper.is_alive(session):
                self.world.scheduler.at(1, answer, None, SessionExpired())
            else:
                self.world.zookeeper.request(session, effect, answer)

        self.when_awake(ask)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send(broker_id, request):
                channel = self.channels.get(broker_id)
                if channel is not None:
                    self.world.checkers.on_send(self.id, channel, request)
                    channel.send(request)
            case AskLogEnds(broker, partitions):
                self._ask_log_ends(self.channels.get(broker.id), broker, partitions)
            case AddChannel(broker):
                if broker.id not in self.channels:
                    self.channels[broker.id] = self._channel(broker)
                self.channels[broker.id].endpoints = broker.endpoints
            case CloseChannel() | CloseAllChannels():
                self._close_channels([effect.broker_id] if isinstance(effect, CloseChannel) else list(self.channels))
            case Reply(value):
                self._reply(value)
            case Enqueue(event):
                self.put(event, cause=self.journal.cause)
            case Schedule(delay_ms, event):
                self.scheduled.append(event)
                cause = f"timer of {self.journal.cause}"
                self.world.scheduler.at(delay_ms, self._fire, self.generation, self.timers, event, cause)
            case CancelScheduled():
                self.timers += 1
                self.scheduled.clear()
            case BrokerRegistered(epoch):
                self.broker.broker_epoch = epoch
            case ActiveControllerChanged(controller_id, epoch):
                if controller_id == self.id:
                    self.world.checkers.on_controller(self.id, epoch)
            case _:
                pass

    def _ask_log_ends(
        self, channel: Channel | None, broker: BrokerEndPoints, partitions: tuple[tuple[TopicPartition, int], ...]
    ) -> None:
        """Repeat until it is answered or the channel is closed; any incarnation answers."""
        world, target, generation = self.world, self.world.nodes[broker.id], self.generation
        if channel is None:
            return
        self.asking += 1
        left = dict(partitions)

        def arrive() -> None:
            if generation != self.generation:
                return
            if channel.closed or not self.alive:
                self.asking -= 1
                return
            serves = target.alive and target.broker.broker_epoch >= 0 and target.broker.controller_id >= 0
            is_awake = target.paused_until_ms <= world.scheduler.time_ms
            if not (serves and is_awake) or world.is_cut(self.id, target.id) or world.answer_is_lost():
                world.later(RETRY_MS, arrive)
                return
            ends = target.broker.log_ends(left.items())
            world.tails.on_log_ends_reported(target, [(tp, left[tp]) for tp in ends])
            for tp in ends:
                del left[tp]
            if ends:
                answer = LogEndsReceived(broker.id, broker.epoch, tuple(ends.items()))
                self.asking += 1
                world.later(world.network_delay_ms("late replies"), lambda: self.when_awake(lambda: receive(answer)))
            if left:
                world.later(RETRY_MS, arrive)
            else:
                self.asking -= 1

        def receive(answer: LogEndsReceived) -> None:
            self.asking -= 1
            if not channel.closed:
                self.put(answer, cause="response")

        world.later(world.network_delay_ms(), arrive)

    def _close_channels(self, targets: list[int]) -> None:
        for channel in [self.channels.pop(target) for target in targets if target in self.channels]:
            channel.close()

    def _channel(self, target: BrokerEndPoints) -> Channel:
        generation = self.generation

        def on_event(event: ControllerEvent) -> None:
            if generation == self.generation:
                self.when_awake(lambda: self.put(event, cause="response"))

        recording = self.world.recording
        recorder = None if recording is None else ChannelJournal(recording, self.journal, self.id, target.id)
        return Channel(self.world, self.id, target.id, target.endpoints, on_event, recorder)

    def _fire(self, generation: int, timers: int, event: ControllerEvent, cause: str) -> None:
        if (generation, timers) == (self.generation, self.timers):
            self.scheduled.remove(event)
            self.when_awake(lambda: self.put(event, cause=cause))

    def _reply(self, value: EventReply) -> None:
        """Only the first answer counts."""
        assert self.current is not None
        if self.replied:
            return
        self.replied = True
        event, on_reply = self.current
        self.journal.on_replied(event, value)
        if isinstance(value, BrokerRegistration) and value.error is ErrorCode.DUPLICATE_BROKER_REGISTRATION:
            self.world.scheduler.at(50, self._retry_registration, self.session, event)
        if on_reply is not None:
            on_reply(value)

    def _retry_registration(self, session: ClientSession, event: ControllerEvent) -> None:
        if self.session is session:
            self.when_awake(lambda: self.put(event))
