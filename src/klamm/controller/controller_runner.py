"""The control loop: a thread with its own event loop, where the controller's queue and its senders live.

The broker loop uses `ControllerHandle`: `submit` crosses threads with frozen values, and its future is resolved
on the broker loop. Session expiry is handled here: `Expire` first, then, in the new session, registration and election.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar, cast

from klamm.clock import Clock
from klamm.control_log import NO_CONTROL_LOG, ControlLog
from klamm.controller.channel_manager import ControllerChannelManager
from klamm.controller.config import ControllerConfig
from klamm.controller.controller import KafkaController
from klamm.controller.coordination import ZkCoordination
from klamm.controller.event_manager import ControllerEventManager
from klamm.controller.events import ControllerEvent, Event, Expire, RegisterBrokerAndReelect
from klamm.controller.journal import ControllerJournal
from klamm.controller.metrics import ControllerMetrics
from klamm.controller.replies import BrokerRegistration, EventReply
from klamm.errors import ErrorCode
from klamm.metrics import LoopMeter, MetricsRegistry
from klamm.model import NO_CONTROLLER, UNKNOWN_BROKER_EPOCH
from klamm.zk.client.loop_pulse import LoopPulse
from klamm.zk.client.zk_session import SessionListener, ZkSession

log = logging.getLogger(__name__)

R = TypeVar("R")
THREAD_NAME: Final = "controller-event-thread"
REGISTRATION_RETRY_S: Final = 0.1
STALL_LIMIT_S: Final = 18.0
"""Allowed stall of the control loop: events of many partitions take seconds."""
LOOP_SAMPLE_S: Final = 1.0
"""Longer than on the broker loop, because each sample wakes the mostly idle control thread."""
LONGEST_REGISTRATION_RETRY_S: Final = 5.0
MIN_TIMEOUT_MS: Final = 1_000
"""Minimum wait for the answer: with a timeout of 0, a client still receives a refusal, as from Kafka."""


class ControllerHandle:
    """The controller's interface for API handlers, on the broker loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._put: Callable[[Event[Any], Callable[[Any], object]], bool] | None = None
        self.is_active = False
        self.active_controller_id = NO_CONTROLLER
        self.broker_epoch = UNKNOWN_BROKER_EPOCH

    def open(self, put: Callable[[Event[Any], Callable[[Any], object]], bool]) -> None:
        """Accept events from now on: the control loop runs."""
        self._put = put

    def close(self) -> None:
        """Refuse events from now on."""
        self._put = None

    def submit(self, event: Event[R], timeout_ms: int | None = None) -> asyncio.Future[R]:
        """Put an event. The future is resolved on the broker loop, with a refusal if the control loop does not run.

        After `timeout_ms` the answer is REQUEST_TIMED_OUT: ZooKeeper may be unreachable while the event waits for it.
        The event may still take effect.
        """
        future: asyncio.Future[R] = self._loop.create_future()

        def resolve(value: R) -> None:
            if not future.done():
                future.set_result(value)

        if self._put is None or not self._put(event, lambda value: post(self._loop, resolve, value)):
            resolve(event.refusal())
        if timeout_ms is not None:
            # Created only if needed: it is as large as the event.
            timer = self._loop.call_later(
                max(timeout_ms, MIN_TIMEOUT_MS) / 1000, lambda: resolve(event.refusal(ErrorCode.REQUEST_TIMED_OUT))
            )
            future.add_done_callback(lambda _: timer.cancel())
        return future

    def notify(self, event: ControllerEvent) -> None:
        """Put an event without waiting for its answer, such as a change of a dynamic default."""
        if self._put is not None:
            self._put(event, lambda _: None)


def post(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *args: object) -> bool:
    """Run `call` on `loop`. Return False if the loop is closed."""
    try:
        loop.call_soon_threadsafe(call, *args)
    except RuntimeError:
        log.debug("%s arrived too late: the loop is closed", call)
        return False
    return True


def registration_pause_s(attempt: int) -> float:
    """The pause after a failed registration: exponential back-off."""
    return min(REGISTRATION_RETRY_S * (1 << min(attempt - 1, 16)), LONGEST_REGISTRATION_RETRY_S)


class ControllerRunner:
    """Starts and stops the control loop of one broker. `loop` is the broker loop; `rng` is for the core."""

    def __init__(
        self,
        *,
        zk: ZkSession,
        clock: Clock,
        rng: random.Random,
        metrics: MetricsRegistry,
        loop: asyncio.AbstractEventLoop,
        on_broker_epoch: Callable[[int], None] | None = None,
        on_claim: Callable[[int, int], None] | None = None,
        control_log: ControlLog = NO_CONTROL_LOG,
    ) -> None:
        """`on_claim` is called on the broker loop with this broker's id and the controller epoch that it won.

        `control_log` is recorded to on the control loop only.
        """
        self.handle = ControllerHandle(loop)
        self._zk = zk
        self._clock = clock
        self._rng = rng
        self._metrics = metrics
        self._broker_loop = loop
        self._on_broker_epoch = on_broker_epoch
        self._on_claim = on_claim
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._manager: ControllerEventManager | None = None
        self._journal = ControllerJournal(control_log)
        self._channels: ControllerChannelManager | None = None
        self._finished: asyncio.Future[None] | None = None
        self.on_failure: Callable[[], None] = lambda: None
        """Called on the broker loop if the control loop ends by itself: then this broker must leave the cluster."""

    def start(self, config: ControllerConfig) -> None:
        """Return when the control loop accepts events; nothing happens before the first one, `Startup`."""
        ready = threading.Event()
        self._finished = self._broker_loop.create_future()
        self._thread = threading.Thread(target=self._run_thread, args=(config, ready), name=THREAD_NAME, daemon=True)
        self._thread.start()
        ready.wait()
        self.handle.open(self._put)

    async def stop(self) -> None:
        """Refuse queued events, stop the senders, end the thread. `/controller` is deleted with the session."""
        self.handle.close()
        if self._loop is None or self._manager is None or self._finished is None or self._thread is None:
            return
        post(self._loop, self._manager.close)
        await self._finished
        self._thread.join()
        self.handle.is_active = False

    def _put(self, event: Event[Any], on_reply: Callable[[Any], object]) -> bool:
        if self._loop is None or self._manager is None:
            return False
        known = cast(ControllerEvent, event)  # the union has every event that there is
        return post(self._loop, partial(self._manager.put, known, on_reply, cause="request"))

    # --- on the control loop -----------------------------------------------------------------------------------------

    def _run_thread(self, config: ControllerConfig, ready: threading.Event) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._run(config, ready))
        except Exception:
            log.exception("the control loop ended with an error")
            post(self._broker_loop, lambda: self.on_failure())
        finally:
            ready.set()
            post(self._broker_loop, self._finish)

    def _finish(self) -> None:
        if self._finished is not None and not self._finished.done():
            self._finished.set_result(None)

    async def _run(self, config: ControllerConfig, ready: threading.Event) -> None:
        manager, channels = self._open(config)
        ready.set()
        pulse = LoopPulse.started("control", STALL_LIMIT_S)
        self._zk.watch_loop(pulse)
        meter = LoopMeter.started("control", self._metrics, LOOP_SAMPLE_S)
        try:
            await manager.run()
        finally:
            meter.stop()
            pulse.stop()
            await channels.shutdown()

    def _open(self, config: ControllerConfig) -> tuple[ControllerEventManager, ControllerChannelManager]:
        self._loop = asyncio.get_running_loop()
        journal = self._journal
        controller = KafkaController(config, self._clock, self._rng)
        self._channels = ControllerChannelManager(
            config,
            clock=self._clock,
            metrics=self._metrics,
            on_event=self._on_response,
            journal=journal,
        )
        self._manager = ControllerEventManager(
            controller,
            ZkCoordination(self._zk, self._on_watch),
            self._channels,
            clock=self._clock,
            metrics=ControllerMetrics(self._metrics, controller),
            on_registered=self._on_registered,
            on_controller=partial(self._on_controller, config.broker_id),
            journal=journal,
        )
        self._zk.add_listener(
            SessionListener(before_new_session=self._before_new_session, after_new_session=self._after_new_session)
        )
        journal.session_changed("established", self._zk.session_id)
        return self._manager, self._channels

    def _on_watch(self, event: ControllerEvent) -> None:
        if self._manager is not None:
            self._manager.put(event, cause="watch")

    def _on_response(self, event: ControllerEvent) -> None:
        if self._manager is not None:
            self._manager.put(event, cause="response")

    def _on_registered(self, broker_epoch: int) -> None:
        post(self._broker_loop, self._set_broker_epoch, broker_epoch)

    def _set_broker_epoch(self, broker_epoch: int) -> None:
        self.handle.broker_epoch = broker_epoch
        if self._on_broker_epoch is not None:
            self._on_broker_epoch(broker_epoch)

    def _on_controller(self, me: int, controller_id: int, epoch: int) -> None:
        post(self._broker_loop, self._set_controller, controller_id, epoch, controller_id == me)

    def _set_controller(self, controller_id: int, epoch: int, is_active: bool) -> None:
        self.handle.active_controller_id = controller_id
        self.handle.is_active = is_active
        if is_active and self._on_claim is not None:
            self._on_claim(controller_id, epoch)

    # --- session -----------------------------------------------------------------------------------------------------

    async def _before_new_session(self) -> None:
        """The session has expired: stop being the controller before anything else happens."""
        self._journal.session_changed("expired", self._zk.previous_session_id)
        if self._manager is not None:
            await self._manager.clear_and_put(Expire()).await_processing()

    def _after_new_session(self) -> None:
        self._journal.session_changed("established", self._zk.session_id)
        self._register(self._zk.session_id, 1)

    def _register(self, session_id: int, attempt: int) -> None:
        """Register again; retry until it succeeds or this session expires too."""
        if self._manager is None or self._zk.session_id != session_id or self._manager.is_closing:
            return

        def on_reply(reply: EventReply) -> None:
            if not isinstance(reply, BrokerRegistration) or reply.error is ErrorCode.NONE:
                return
            if attempt.bit_count() == 1:
                log.warning(
                    "registration failed (attempt %d), retrying: %s", attempt, reply.message or reply.error.name
                )
            delay_s = registration_pause_s(attempt)
            asyncio.get_running_loop().call_later(delay_s, self._register, session_id, attempt + 1)

        self._manager.put(RegisterBrokerAndReelect(), on_reply)
