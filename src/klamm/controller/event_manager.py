"""ControllerEventManager: one queue of events, one consumer, on the control loop.

It drives `KafkaController.process` with `await`, a session, senders and timers, where the simulator uses a heap. If an
event is cleared or preempted, or fails, its caller receives a refusal.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, Protocol

from klamm.clock import Clock
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
    LeadershipChanged,
    MultiResults,
    Note,
    Pause,
    ReadResults,
    RegistrationsChanged,
    Reply,
    Schedule,
    Send,
    Steps,
    ZkMulti,
    ZkRead,
)
from klamm.controller.events import ControllerEvent, ShutdownEventThread
from klamm.controller.journal import ControllerJournal
from klamm.controller.metrics import ControllerMetrics
from klamm.controller.replies import EventReply
from klamm.controller.requests import ControlRequest
from klamm.controller.states import ControllerState
from klamm.errors import ErrorCode
from klamm.model import BrokerEndPoints, TopicPartition
from klamm.zk.model.ops import ReadOp, WriteOp, ZkError

_log = logging.getLogger(__name__)
_state_change_log = logging.getLogger("klamm.state_change")

QUEUE_TIME_RESET_S = 300.0
MAX_QUEUED_EVENTS = 10_000
WARNING_INTERVAL_S = 60.0
MAX_WARNINGS = 1_000
COLLECTOR_OFF_S = 10.0
"""Maximum time that an event may run without the garbage collector."""
OnReply = Callable[[EventReply], object]


class _Prefixed(logging.LoggerAdapter[logging.Logger]):
    """Begins every line with Kafka's identification of the controller's thread."""

    def __init__(self, logger: logging.Logger, controller_id: int) -> None:
        super().__init__(logger)
        self._prefix = f"[ControllerEventThread controllerId={controller_id}] "

    def process(self, msg: object, kwargs: MutableMapping[str, Any]) -> tuple[str, MutableMapping[str, Any]]:
        return f"{self._prefix}{msg}", kwargs


class Coordination(Protocol):
    """ZooKeeper, as far as the manager uses it."""

    async def read(self, ops: tuple[ReadOp, ...]) -> ReadResults: ...

    async def multi(self, ops: tuple[WriteOp, ...]) -> MultiResults: ...

    @property
    def session_id(self) -> int: ...


class Channels(Protocol):
    """The ControllerChannelManager, as far as the manager uses it."""

    def add_broker(self, broker: BrokerEndPoints) -> None: ...

    def remove_broker(self, broker_id: int) -> None: ...

    def remove_all(self) -> None: ...

    def send_request(self, broker_id: int, request: ControlRequest) -> None: ...

    def ask_log_ends(self, broker: BrokerEndPoints, partitions: tuple[tuple[TopicPartition, int], ...]) -> None: ...


class QueuedEvent:
    """A queued event. It is processed or preempted, never both, and answered once."""

    __slots__ = ("_on_reply", "_started", "enqueue_s", "event", "number", "spent")

    def __init__(self, event: ControllerEvent, enqueue_s: float, on_reply: OnReply | None, number: int = 0) -> None:
        self.event = event
        self.number = number
        self.enqueue_s = enqueue_s
        self.spent = False
        self._on_reply = on_reply
        self._started: asyncio.Event | None = None

    def spend(self) -> bool:
        """Return False if it was taken already."""
        was_spent, self.spent = self.spent, True
        if self._started is not None:
            self._started.set()
        return not was_spent

    def preempt(self, error: ErrorCode = ErrorCode.NOT_CONTROLLER) -> None:
        if self.spend():
            self.reply(self.event.refusal(error))

    def reply(self, value: EventReply) -> None:
        """Only the first answer counts."""
        on_reply, self._on_reply = self._on_reply, None
        if on_reply is not None:
            on_reply(value)

    async def await_processing(self) -> None:
        """Return when its processing has begun, or never will."""
        if not self.spent:
            if self._started is None:
                self._started = asyncio.Event()
            await self._started.wait()


@contextmanager
def _without_collector(is_needed: bool) -> Iterator[None]:
    """Failover allocates long-lived objects; collecting garbage meanwhile only wastes time.

    Serving clients meanwhile makes garbage. If the event takes long, for example because ZooKeeper is unreachable, the
    collector is switched on again.
    """
    if not (is_needed and gc.isenabled()):
        yield
        return
    gc.disable()
    limit = asyncio.get_running_loop().call_later(COLLECTOR_OFF_S, gc.enable)
    try:
        yield
    finally:
        limit.cancel()
        gc.enable()


class ControllerEventManager:
    def __init__(
        self,
        controller: KafkaController,
        coordination: Coordination,
        channels: Channels,
        *,
        clock: Clock,
        metrics: ControllerMetrics,
        on_registered: Callable[[int], None] = lambda _: None,
        on_controller: Callable[[int, int], None] = lambda *_: None,
        journal: ControllerJournal | None = None,
    ) -> None:
        self._controller = controller
        self._coordination = coordination
        self._channels = channels
        self._clock = clock
        self._metrics = metrics
        self._on_registered = on_registered
        self._on_controller = on_controller
        self._journal = journal or ControllerJournal()
        self._log = _Prefixed(_log, controller.broker_id)
        self._state_change_log = _Prefixed(_state_change_log, controller.broker_id)
        self._events = 0
        self._queue: deque[QueuedEvent] = deque()
        self._wake = asyncio.Event()
        self._timers: set[asyncio.TimerHandle] = set()
        self._silent_until: dict[str, float] = {}
        self._closing = False
        self.state = ControllerState.IDLE
        metrics.watch_queue(lambda: len(self._queue), lambda: self.state)

    # --- queue -------------------------------------------------------------------------------------------------------

    def put(
        self, event: ControllerEvent, on_reply: OnReply | None = None, *, cause: str = "this broker"
    ) -> QueuedEvent:
        """Queue an event. Beyond the limit, callers get an error that they may retry; own events are always queued.

        `cause` is for the control log.
        """
        self._events += 1
        queued = QueuedEvent(event, self._clock.monotonic(), on_reply, self._events)
        if self._closing and not isinstance(event, ShutdownEventThread):
            queued.preempt()
            return queued
        self._journal.event_queued(event, queued.number, cause, len(self._queue))
        if on_reply is not None and len(self._queue) >= MAX_QUEUED_EVENTS:
            self._refuse(queued, ErrorCode.REQUEST_TIMED_OUT)
            return queued
        self._queue.append(queued)
        self._metrics.on_queued(len(self._queue))
        self._wake.set()
        return queued

    def clear_and_put(self, event: ControllerEvent) -> QueuedEvent:
        """Refuse all queued events, and queue `event`."""
        dropped, self._queue = self._queue, deque()
        for queued in dropped:
            self._refuse(queued)
        return self.put(event)

    def _refuse(self, queued: QueuedEvent, error: ErrorCode = ErrorCode.NOT_CONTROLLER) -> None:
        self._journal.refused(queued.event, queued.number, error)
        queued.preempt(error)
        waited_ms = (self._clock.monotonic() - queued.enqueue_s) * 1000
        self._journal.event_done(queued.event, queued.number, waited_ms, "refused")

    @property
    def is_closing(self) -> bool:
        return self._closing

    async def run(self) -> None:
        """The one consumer. Ends after `close`."""
        while True:
            queued = await self._take()
            if not queued.spend():
                continue
            await self._process(queued)
            if isinstance(queued.event, ShutdownEventThread):
                return

    def close(self) -> None:
        """Refuse all queued events and let `run` end after the event that is being processed."""
        self._closing = True
        self.clear_and_put(ShutdownEventThread())

    async def _take(self) -> QueuedEvent:
        while not self._queue:
            self._wake.clear()
            try:
                async with asyncio.timeout(QUEUE_TIME_RESET_S):
                    await self._wake.wait()
            except TimeoutError:
                self._metrics.reset_queue_time()
        return self._queue.popleft()

    # --- processing --------------------------------------------------------------------------------------------------

    async def _process(self, queued: QueuedEvent) -> None:
        event = queued.event
        started = self._clock.monotonic()
        self.state = event.STATE
        self._metrics.on_dequeued((started - queued.enqueue_s) * 1000)
        self._journal.event_started(event, queued.number, (started - queued.enqueue_s) * 1000)
        outcome = "done"
        try:
            with _without_collector(event.STATE is ControllerState.CONTROLLER_CHANGE):
                await self._drive(self._controller.process(event), queued)
        except Exception as failure:
            outcome = "failed"
            if self._closing and isinstance(failure, ZkError):
                self._log.warning(
                    "%s was abandoned: the broker stops and ZooKeeper is unreachable", type(event).__name__
                )
            else:
                self._log.exception("%s failed: giving up the role of controller", type(event).__name__)
            await self._abandon(queued)
        finally:
            queued.reply(event.refusal(ErrorCode.UNKNOWN_SERVER_ERROR))
            duration_ms = (self._clock.monotonic() - started) * 1000
            self._metrics.on_processed(event.STATE, duration_ms)
            self._journal.event_done(event, queued.number, duration_ms, outcome)
            self.state = ControllerState.IDLE

    async def _abandon(self, queued: QueuedEvent) -> None:
        try:
            await self._drive(self._controller.abandon(queued.event), queued)
        except Exception:
            self._log.exception("giving up the role of controller failed")

    async def _drive(self, steps: Steps[None], queued: QueuedEvent) -> None:
        """Carry out effects until the event is done; errors of ZooKeeper are thrown into the core."""
        value: Any = None
        error: ZkError | None = None
        while True:
            try:
                effect = steps.throw(error) if error is not None else steps.send(value)
            except StopIteration:
                return
            value = error = None
            try:
                if isinstance(effect, ZkRead):
                    value = await self._coordination.read(effect.ops)
                elif isinstance(effect, ZkMulti):
                    value = await self._write(effect)
                elif isinstance(effect, AskSessionId):
                    value = self._coordination.session_id
                elif isinstance(effect, Pause):
                    await asyncio.sleep(0)
                else:
                    self._carry_out(effect, queued)
            except ZkError as caught:
                error = caught

    async def _write(self, effect: ZkMulti) -> Any:
        asked_s = self._clock.monotonic()
        try:
            results = await self._coordination.multi(effect.ops)
        except ZkError as error:
            self._journal.znodes_written(effect.ops, error, (self._clock.monotonic() - asked_s) * 1000)
            raise
        self._journal.znodes_written(effect.ops, None, (self._clock.monotonic() - asked_s) * 1000)
        return results

    def _carry_out(self, effect: Effect, queued: QueuedEvent) -> None:
        match effect:
            case Send() | AskLogEnds() | AddChannel() | CloseChannel() | CloseAllChannels():
                self._use_channels(effect)
            case Reply(value):
                self._journal.replied(queued.event, queued.number, value)
                queued.reply(value)
            case Enqueue(event):
                self.put(event, cause=f"event {queued.number}")
            case Schedule(delay_ms, event):
                self._schedule(delay_ms, event, f"timer of event {queued.number}")
            case CancelScheduled():
                self._cancel_timers()
            case BrokerRegistered(epoch):
                self._on_registered(epoch)
            case ActiveControllerChanged(controller_id, epoch):
                self._journal.controller_changed(controller_id, epoch)
                self._on_controller(controller_id, epoch)
            case LeadershipChanged(changes):
                self._journal.leadership_changed(changes)
            case RegistrationsChanged(gone, registered):
                self._journal.registrations_changed(gone, registered)
            case Note(text, is_warning):
                self._note(text, is_warning)
            case ZkRead() | ZkMulti() | AskSessionId() | Pause():
                raise AssertionError(f"{effect} is awaited elsewhere")

    def _use_channels(self, effect: Send | AskLogEnds | AddChannel | CloseChannel | CloseAllChannels) -> None:
        match effect:
            case Send(broker_id, request):
                self._channels.send_request(broker_id, request)
            case AskLogEnds(broker, partitions):
                self._channels.ask_log_ends(broker, partitions)
            case AddChannel(broker):
                self._channels.add_broker(broker)
            case CloseChannel(broker_id):
                self._channels.remove_broker(broker_id)
            case CloseAllChannels():
                self._channels.remove_all()

    def _note(self, text: str, is_warning: bool) -> None:
        if not is_warning:
            self._state_change_log.info("%s", text)
            return
        now = self._clock.monotonic()
        if now >= self._silent_until.get(text, now):
            if len(self._silent_until) >= MAX_WARNINGS:
                self._silent_until.clear()
            self._silent_until[text] = now + WARNING_INTERVAL_S
            self._state_change_log.warning("%s", text)

    def _schedule(self, delay_ms: int, event: ControllerEvent, cause: str) -> None:
        def fire() -> None:
            self._timers.discard(handle)
            self.put(event, cause=cause)

        handle = asyncio.get_running_loop().call_later(delay_ms / 1000, fire)
        self._timers.add(handle)

    def _cancel_timers(self) -> None:
        for handle in self._timers:
            handle.cancel()
        self._timers.clear()
