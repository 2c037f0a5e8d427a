"""The broker's side of a controlled shutdown: ask the controller to move leaderships away before leaving."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from klamm.broker import Broker
from klamm.controller.events import ControlledShutdown
from klamm.errors import ErrorCode
from klamm.model import TopicPartition
from klamm.network.client import BrokerConnection
from klamm.protocol.messages.controlled_shutdown import ControlledShutdownRequest
from klamm.server import inter_broker
from klamm.zk.session import SessionListener, SessionState

log = logging.getLogger(__name__)

Answer: TypeAlias = tuple[ErrorCode, tuple[TopicPartition, ...]]

_WITHOUT_ZOOKEEPER_S: Final = 2.0
_LOOKS: Final = 10
_LOOK_S: Final = 0.05
_NAMED: Final = 5


async def controlled_shutdown(broker: Broker) -> bool:
    """True when the controller let this broker go; after `controlled.shutdown.max.retries` it leaves anyway.

    So it does at once when nobody can take over what it leads, or nobody can decide it because ZooKeeper is away.
    """
    config = broker.config
    cut_off = _when_cut_off(broker)
    for attempt in range(max(config.controlled_shutdown_max_retries, 1)):
        if attempt:
            await asyncio.wait({cut_off}, timeout=config.controlled_shutdown_retry_backoff_ms / 1000)
        asking = asyncio.ensure_future(_ask(broker))
        first: set[asyncio.Future[Any]] = {asking, cut_off}
        timeout_s = config.controller_socket_timeout_ms / 1000
        await asyncio.wait(first, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not asking.done() and cut_off.done():
            asking.cancel()
            log.warning("Leaving without a controlled shutdown: %s", cut_off.result())
            return False
        try:
            error, remaining = _answer(asking)
        except OSError as failure:
            log.warning("The controller did not answer the controlled shutdown: %s", str(failure) or "time ran out")
            continue
        if error != ErrorCode.NONE:
            log.warning("The controller refused the shutdown: %s", error.name)
        elif not remaining:
            return True
        elif not await _has_taker(broker, remaining, cut_off):
            log.warning("Leaving: no other live broker has a replica of %s", _some(remaining))
            return False
        else:
            log.warning("No other replica in sync can lead %s yet", _some(remaining))
    log.warning("Leaving without the controller's consent: leaders move when the session ends")
    return False


async def _has_taker(broker: Broker, tps: Sequence[TopicPartition], cut_off: asyncio.Future[str]) -> bool:
    """Whether a live broker has a replica of any of these; brokers that leave, too, have a moment to be gone."""

    def is_there() -> bool:
        states = (broker.metadata.partition(tp.topic, tp.partition) for tp in tps)
        others = {replica for state in states if state is not None for replica in state.replicas} - {broker.id}
        return any(broker.metadata.has_alive_broker(each) for each in others)

    for _ in range(_LOOKS):
        if not is_there():
            return False
        await asyncio.wait({cut_off}, timeout=_LOOK_S)
    return is_there()


def _some(tps: Sequence[TopicPartition]) -> str:
    named = ", ".join(map(str, tps[:_NAMED]))
    return named if len(tps) <= _NAMED else f"{named} and {len(tps) - _NAMED} more partitions"


def _answer(asking: asyncio.Task[Answer]) -> Answer:
    """What the controller said; a TimeoutError when it has not said anything."""
    if asking.done():
        return asking.result()
    asking.cancel()
    raise TimeoutError


def _when_cut_off(broker: Broker) -> asyncio.Future[str]:
    """Done when nothing can be decided, however long one waits; the result says why.

    A controller without ZooKeeper knows that at once. Another broker without it asks a controller that most likely has
    none either: one that has answers soon.
    """
    loop = asyncio.get_running_loop()
    cut_off: asyncio.Future[str] = loop.create_future()

    def give_up(why: str) -> None:
        if not cut_off.done() and broker.zk.state is not SessionState.CONNECTED:
            cut_off.set_result(why)

    def look(state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            return
        if broker.controller.is_active:
            give_up("this broker is the controller and ZooKeeper is away")
        else:
            loop.call_later(_WITHOUT_ZOOKEEPER_S, give_up, "ZooKeeper is away, and the controller does not answer")

    broker.zk.add_listener(SessionListener(on_state=look))
    look(broker.zk.state)
    return cut_off


async def _ask(broker: Broker) -> Answer:
    if broker.controller.is_active:
        result = await broker.controller.submit(ControlledShutdown(broker.id, broker.broker_epoch))
        return result.error, result.remaining
    listener = broker.config.inter_broker_listener
    endpoint = broker.metadata.endpoint(broker.controller_id, listener)
    if endpoint is None:
        raise ConnectionError("there is no controller now")
    connection = await BrokerConnection.connect(endpoint.host, endpoint.port, client_id=str(broker.id))
    try:
        request = ControlledShutdownRequest(broker_id=broker.id, broker_epoch=broker.broker_epoch)
        version = inter_broker.controlled_shutdown_version(inter_broker.protocol(broker.config))
        response = await connection.send(request, version)
        remaining = tuple(TopicPartition(r.topic_name, r.partition_index) for r in response.remaining_partitions)
        return ErrorCode(response.error_code), remaining
    finally:
        connection.close()
