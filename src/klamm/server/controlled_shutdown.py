"""The broker's side of a controlled shutdown: ask the controller to move leaderships away before leaving."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, Final, TypeAlias

from klamm.broker import Broker
from klamm.client.asyncio_connection import BrokerConnection
from klamm.controller.events import ControlledShutdown
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.protocol.messages.controlled_shutdown import ControlledShutdownRequest
from klamm.server import inter_broker
from klamm.zk.client.zk_session import SessionListener, SessionState

log = logging.getLogger(__name__)

Answer: TypeAlias = tuple[ErrorCode, tuple[TopicPartition, ...]]

_WITHOUT_ZOOKEEPER_S: Final = 2.0
_NAMED: Final = 5


class CutOff(Exception):
    """No decision is possible, even with more time. The message gives the reason."""


async def controlled_shutdown(broker: Broker) -> bool:
    """Return True if the controller agreed; after `controlled.shutdown.max.retries` the broker leaves anyway.

    A replica that could take over may be restarting, so every retry is used. It leaves earlier only if no decision is
    possible because ZooKeeper is unreachable.
    """
    config = broker.config
    zookeeper = _ZooKeeperWatch(broker)
    try:
        for attempt in range(max(config.controlled_shutdown_max_retries, 1)):
            if attempt:
                await zookeeper.rest(config.controlled_shutdown_retry_backoff_ms / 1000)
            if await _may_leave(broker, zookeeper):
                return True
        log.warning("broker %d: controlled shutdown failed: leaders move when the session ends", broker.id)
    except CutOff as why:
        log.warning("broker %d leaves without a controlled shutdown: %s", broker.id, why)
    finally:
        zookeeper.close()
    return False


async def _may_leave(broker: Broker, zookeeper: _ZooKeeperWatch) -> bool:
    """Ask once; return the reason if the controller did not agree."""
    try:
        async with asyncio.timeout(broker.config.controller_socket_timeout_ms / 1000):
            error, remaining = await zookeeper.answer_to(_ask(broker))
    except OSError as failure:
        log.warning("the controller did not answer the controlled shutdown: %s", str(failure) or "time ran out")
        return False
    if error != ErrorCode.NONE:
        log.warning("the controller refused the controlled shutdown: %s", error.name)
    elif remaining:
        log.warning("controlled shutdown: no other replica in sync can lead %s yet", _some(remaining))
    return error == ErrorCode.NONE and not remaining


def _some(tps: Sequence[TopicPartition]) -> str:
    named = ", ".join(map(str, tps[:_NAMED]))
    return named if len(tps) <= _NAMED else f"{named} and {len(tps) - _NAMED} more partitions"


class _ZooKeeperWatch:
    """Detects that ZooKeeper is unreachable for longer than a reconnect takes.

    A controller without ZooKeeper decides nothing. If this broker lost it, the controller most likely did too;
    otherwise it answers soon.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        self._cut_off: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        broker.zk.add_listener(SessionListener(on_state=self._on_state))
        self._on_state(broker.zk.state)

    def close(self) -> None:
        self._is_closed = True
        self._stop_timer()

    async def rest(self, seconds: float) -> None:
        """Stop waiting once ZooKeeper is unreachable."""
        await asyncio.wait({self._cut_off}, timeout=seconds)

    async def answer_to(self, question: Coroutine[object, object, Answer]) -> Answer:
        """Raise CutOff if ZooKeeper becomes unreachable before an answer."""
        asking = self._loop.create_task(question, name="controlled-shutdown")
        try:
            while not asking.done():
                either: set[asyncio.Future[Any]] = {asking, self._cut_off}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if self._cut_off.done() and not asking.done():
                    raise CutOff(self._why())
            return asking.result()
        finally:
            asking.cancel()

    def _on_state(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._stop_timer()
            if self._cut_off.done():
                self._cut_off = self._loop.create_future()
        elif self._timer is None and not self._is_closed:
            self._timer = self._loop.call_later(_WITHOUT_ZOOKEEPER_S, self._give_up)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        if not self._cut_off.done() and self._broker.zk.state is not SessionState.CONNECTED:
            self._cut_off.set_result(None)

    def _why(self) -> str:
        if self._broker.controller.is_active:
            return "this broker is the controller and ZooKeeper is unreachable"
        return "ZooKeeper is unreachable, and the controller does not answer"


async def _ask(broker: Broker) -> Answer:
    if broker.controller.is_active:
        result = await broker.controller.submit(ControlledShutdown(broker.id, broker.broker_epoch))
        return result.error, result.remaining
    listener = broker.config.inter_broker_listener
    endpoint = broker.metadata.endpoint(broker.controller_id, listener)
    if endpoint is None:
        raise ConnectionError("there is no controller now")
    connection = await BrokerConnection.connect(
        endpoint.host, endpoint.port, client_id=str(broker.id), security=broker.outgoing.of(listener)
    )
    try:
        request = ControlledShutdownRequest(broker_id=broker.id, broker_epoch=broker.broker_epoch)
        version = inter_broker.controlled_shutdown_version(inter_broker.protocol(broker.config))
        response = await connection.send(request, version)
        remaining = tuple(TopicPartition(r.topic_name, r.partition_index) for r in response.remaining_partitions)
        return ErrorCode(response.error_code), remaining
    finally:
        connection.close()
