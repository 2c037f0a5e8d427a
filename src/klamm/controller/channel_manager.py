"""ControllerChannelManager: one queue and one RequestSender task per broker, so that a slow broker delays no other.

A sender has one request in flight and repeats it until it is answered or the broker is removed. This keeps the order,
and epochs make repeats harmless. Waiting requests are merged. Answers become events of the controller. A request that
cannot be encoded, or whose answer cannot be decoded, counts as answered with UNKNOWN_SERVER_ERROR: later requests must
not wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from klamm.client.asyncio_connection import BrokerConnection
from klamm.client.connection_totals import GAUGES, forget_outgoing, outgoing_totals
from klamm.client.patience import CONTROL_REQUEST
from klamm.clock import Clock
from klamm.controller.config import ControllerConfig
from klamm.controller.control_wire import Encoded, decode_response, encode_in_steps
from klamm.controller.events import ControllerEvent
from klamm.controller.journal import ControllerJournal, Sending
from klamm.controller.log_end_query import ask_log_ends
from klamm.controller.requests import ControlRequest
from klamm.controller.responses import ControlResponse, response_event
from klamm.controller.send_queue import QueueItem, SendQueue
from klamm.errors import ErrorCode
from klamm.metadata.update import SLICING_CLIENT
from klamm.metrics import MetricsRegistry
from klamm.model import BrokerEndPoints, TopicPartition

log = logging.getLogger(__name__)

_GROUP, _OWN_GROUP, _TYPE = "kafka.controller", "klamm.controller", "ControllerChannelManager"

_CHANNEL = "controller"


class RequestSender:
    """The task that sends to one broker: Kafka's RequestSendThread, and named like it."""

    def __init__(
        self,
        broker: BrokerEndPoints,
        config: ControllerConfig,
        *,
        clock: Clock,
        metrics: MetricsRegistry,
        on_event: Callable[[ControllerEvent], object],
        journal: ControllerJournal,
        first_correlation_id: int = 0,
    ) -> None:
        self._broker = broker
        self._journal = journal
        self._put_count = self._send_count = 0
        self._config = config
        self._clock = clock
        self._on_event = on_event
        self._queue = SendQueue(stop_flags=config.inter_broker_protocol.stop_replica_version >= 3)
        self._sending: QueueItem | None = None
        self._wake = asyncio.Event()
        self._connection: BrokerConnection | None = None
        self._totals = totals = outgoing_totals(metrics, _CHANNEL, broker.id)
        self._failures = 0
        self._sent_s = 0.0
        self._correlation_id = first_correlation_id - 1
        """Correlation id of the last attempt. It keeps counting over new connections and incarnations of the broker, so
        it identifies a request at both ends.
        """
        tags = {"broker-id": str(broker.id)}
        self._timer = metrics.timer(_GROUP, _TYPE, "RequestRateAndQueueTimeMs", tags)
        metrics.gauge(_GROUP, _TYPE, "QueueSize", lambda: self.queue_size, tags)
        self._queue_peak = metrics.peak("control", _OWN_GROUP, _TYPE, "QueueSizeMax", lambda: self.queue_size, tags)
        metrics.gauge(_GROUP, _TYPE, "OldestItemAgeMs", self.oldest_item_age_ms, tags)
        metrics.gauge(_GROUP, _TYPE, "CoalescedRequestCount", lambda: self._queue.coalesced, tags)
        metrics.gauge(_OWN_GROUP, _TYPE, "LastQueuedRequest", lambda: self._put_count, tags)
        metrics.gauge(_OWN_GROUP, _TYPE, "LastAcknowledgedRequest", lambda: self.last_acknowledged, tags)
        metrics.gauge(_OWN_GROUP, _TYPE, "MetadataLag", lambda: self._put_count - self.last_acknowledged, tags)
        for gauge, value in GAUGES.items():  # as in Kafka, also in a group of the controller's channels
            metrics.gauge("kafka.server", "controller-channel-metrics", gauge, partial(value, totals), tags)
        name = f"Controller-{config.broker_id}-to-broker-{broker.id}-send-thread"
        self._task = asyncio.get_running_loop().create_task(self._run(), name=name)

    @property
    def queue_size(self) -> int:
        return len(self._queue)

    @property
    def next_correlation_id(self) -> int:
        return self._correlation_id + 1

    @property
    def last_acknowledged(self) -> int:
        """The highest request number up to which the broker has answered every request."""
        sending = self._sending
        oldest = self._queue.oldest_number if sending is None else sending.number
        return self._put_count if oldest is None else oldest - 1

    def oldest_item_age_ms(self) -> float:
        """The age of the oldest unanswered request: how far the broker's knowledge lags behind."""
        sending = self._sending
        oldest = self._queue.oldest_s if sending is None else sending.enqueue_s
        return 0.0 if oldest is None else (self._clock.monotonic() - oldest) * 1000

    def put(self, request: ControlRequest) -> None:
        coalesced = self._queue.coalesced
        self._queue.put(request, self._clock.monotonic(), self._journal.decision)
        self._queue_peak.highest = max(self._queue_peak.highest, len(self._queue))
        self._wake.set()
        self._put_count += 1
        is_coalesced = self._queue.coalesced > coalesced
        self._journal.request_queued(self._broker.id, request, self._put_count, len(self._queue), is_coalesced)

    def update_broker(self, broker: BrokerEndPoints) -> None:
        """New addresses: the next attempt uses them."""
        if broker.endpoints != self._broker.endpoints:
            self._disconnect()
        self._broker = broker

    def close(self) -> None:
        self._queue.clear()
        self._task.cancel()
        self._disconnect()

    async def wait_closed(self) -> None:
        """Wait until the task has ended after `close`."""
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    # --- the task ----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Send for ever: if one request fails, the broker must still receive the following ones."""
        while True:
            while not self._queue:
                self._wake.clear()
                await self._wake.wait()
            try:
                await self._send_next()
            except Exception:
                log.exception("sending to broker %d failed; retrying with the next queued request", self._broker.id)
                await asyncio.sleep(CONTROL_REQUEST.pause_s())

    async def _send_next(self) -> None:
        self._sending = item = self._queue.take()
        try:
            response = await self._deliver(item)
        except Exception:
            kind = type(item.request).__name__
            log.exception("giving up a %s for broker %d: it would fail again", kind, self._broker.id)
            self._disconnect()
            response = ControlResponse(ErrorCode.UNKNOWN_SERVER_ERROR)
        finally:
            self._sending = None
        event = response_event(self._broker.id, item.request, response)
        if event is not None:
            self._on_event(event)

    async def _deliver(self, item: QueueItem) -> ControlResponse:
        queue_ms = (self._clock.monotonic() - item.enqueue_s) * 1000
        self._timer.update(queue_ms)
        message = await self._send_until_answered(item, queue_ms)
        response = decode_response(item.request, message)
        sent_ms = (self._clock.monotonic() - self._sent_s) * 1000
        self._journal.request_acknowledged(self._attempt(item), response, sent_ms)
        return response

    def _attempt(self, item: QueueItem) -> Sending:
        return Sending(self._broker.id, item.request, self._send_count, self._correlation_id, item.decisions)

    async def _send_until_answered(self, item: QueueItem, queue_ms: float) -> Any:
        request = item.request
        api_key, version, body = await self._encode(request)
        self._send_count += 1
        while True:
            try:
                connection = await self._connected()
                await connection.ready()
                self._sent_s = self._clock.monotonic()
                self._correlation_id = connection.next_correlation_id
                self._journal.request_sent(self._attempt(item), self._failures + 1, queue_ms)
                answer = await connection.send_encoded(api_key, version, body)
            except OSError as error:
                self._on_failure(request, error)
                await asyncio.sleep(CONTROL_REQUEST.pause_s())
            else:
                self._failures = 0
                return answer

    async def _encode(self, request: ControlRequest) -> Encoded:
        """Encode a request; the control loop does other work between the steps of a large one."""
        steps = encode_in_steps(request, self._config.inter_broker_protocol)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                encoded: Encoded = done.value
                return encoded
            await asyncio.sleep(0)

    async def _connected(self) -> BrokerConnection:
        if self._connection is None or self._connection.is_closed:
            endpoint = self._broker.endpoint(self._config.controller_listener)
            if endpoint is None:
                raise ConnectionError(f"it has no listener named {self._config.controller_listener}")
            self._connection = await BrokerConnection.connect(
                endpoint.host,
                endpoint.port,
                timeout_ms=self._config.socket_timeout_ms,
                client_id=f"{SLICING_CLIENT}{self._config.broker_id}",
                request_timeout_ms=self._config.request_timeout_ms,
                first_correlation_id=self.next_correlation_id,
                totals=self._totals,
                security=self._config.outgoing.of(self._config.controller_listener),
            )
        return self._connection

    def _on_failure(self, request: ControlRequest, error: Exception) -> None:
        """Log attempts 1, 2, 4, 8 and so on, without the whole request."""
        self._disconnect()
        self._failures += 1
        if self._failures.bit_count() == 1:
            kind = type(request).__name__
            log.warning("sending %s to broker %d failed (attempt %d): %s", kind, self._broker.id, self._failures, error)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class ControllerChannelManager:
    """Owner of all senders; lives on the control loop."""

    def __init__(
        self,
        config: ControllerConfig,
        *,
        clock: Clock,
        metrics: MetricsRegistry,
        on_event: Callable[[ControllerEvent], object],
        journal: ControllerJournal | None = None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._metrics = metrics
        self._on_event = on_event
        self._journal = journal or ControllerJournal()
        self._senders: dict[int, RequestSender] = {}
        self._next_correlation_ids: dict[int, int] = {}
        """Of brokers whose sender was removed; the next sender continues them."""
        self._queries: dict[int, dict[asyncio.Task[None], None]] = {}
        """By broker, in start order: a set would cancel them in the order of memory addresses."""
        metrics.gauge(_GROUP, _TYPE, "TotalQueueSize", lambda: sum(s.queue_size for s in list(self._senders.values())))

    def add_broker(self, broker: BrokerEndPoints) -> None:
        sender = self._senders.get(broker.id)
        if sender is not None:
            sender.update_broker(broker)
            return
        self._senders[broker.id] = RequestSender(
            broker,
            self._config,
            clock=self._clock,
            metrics=self._metrics,
            on_event=self._on_event,
            journal=self._journal,
            first_correlation_id=self._next_correlation_ids.pop(broker.id, 0),
        )

    def remove_broker(self, broker_id: int) -> None:
        """Drop queued requests: the broker is gone, or will receive the whole metadata again."""
        for query in self._queries.pop(broker_id, ()):
            query.cancel()
        sender = self._senders.pop(broker_id, None)
        if sender is not None:
            sender.close()
            self._next_correlation_ids[broker_id] = sender.next_correlation_id
            self._metrics.remove_tagged("broker-id", str(broker_id))
            forget_outgoing(self._metrics, _CHANNEL, broker_id)

    def remove_all(self) -> None:
        for broker_id in dict.fromkeys([*self._senders, *self._queries]):
            self.remove_broker(broker_id)

    def send_request(self, broker_id: int, request: ControlRequest) -> None:
        sender = self._senders.get(broker_id)
        if sender is None:
            log.warning("dropping a %s for broker %d: the broker is offline", type(request).__name__, broker_id)
        else:
            sender.put(request)

    def ask_log_ends(self, broker: BrokerEndPoints, partitions: tuple[tuple[TopicPartition, int], ...]) -> None:
        """Uses its own connection, because a starting broker answers control requests first."""
        asking = ask_log_ends(broker, partitions, self._config, self._on_event)
        task = asyncio.get_running_loop().create_task(asking, name=f"log-ends-of-broker-{broker.id}")
        queries = self._queries.setdefault(broker.id, {})
        queries[task] = None
        task.add_done_callback(queries.pop)

    async def shutdown(self) -> None:
        senders = list(self._senders.values())
        queries = [query for queries in self._queries.values() for query in queries]
        self.remove_all()
        for sender in senders:
            await sender.wait_closed()
        for query in queries:
            with contextlib.suppress(asyncio.CancelledError):
                await query
