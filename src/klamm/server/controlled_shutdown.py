"""The broker's side of a controlled shutdown: ask the controller to move leaderships away before leaving."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from klamm.broker import Broker
from klamm.controller.events import ControlledShutdown
from klamm.errors import ErrorCode
from klamm.network.client import BrokerConnection
from klamm.protocol.messages.controlled_shutdown import ControlledShutdownRequest
from klamm.server import inter_broker
from klamm.zk.session import SessionListener, SessionState

log = logging.getLogger(__name__)


async def controlled_shutdown(broker: Broker) -> bool:
    """True when the controller let this broker go; after `controlled.shutdown.max.retries` it leaves anyway."""
    config = broker.config
    cut_off = _when_cut_off(broker)
    for attempt in range(max(config.controlled_shutdown_max_retries, 1)):
        if attempt:
            await asyncio.sleep(config.controlled_shutdown_retry_backoff_ms / 1000)
        asking = asyncio.ensure_future(_ask(broker))
        first: set[asyncio.Future[Any]] = {asking, cut_off}
        timeout_s = config.controller_socket_timeout_ms / 1000
        await asyncio.wait(first, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not asking.done() and cut_off.done():
            asking.cancel()
            log.warning("Leaving without a controlled shutdown: this broker is the controller and ZooKeeper is away")
            return False
        try:
            error, remaining = _answer(asking)
        except OSError as failure:
            log.warning("The controller did not answer the controlled shutdown: %s", str(failure) or "time ran out")
            continue
        if error == ErrorCode.NONE and not remaining:
            return True
        log.warning("The controller refused the shutdown: %s, %d partitions remain", error.name, remaining)
    log.warning("Leaving without the controller's consent: leaders move when the session ends")
    return False


def _answer(asking: asyncio.Task[tuple[ErrorCode, int]]) -> tuple[ErrorCode, int]:
    """What the controller said; a TimeoutError when it has not said anything."""
    if asking.done():
        return asking.result()
    asking.cancel()
    raise TimeoutError


def _when_cut_off(broker: Broker) -> asyncio.Future[None]:
    """Done when this broker is the controller and has no ZooKeeper: nothing can be decided, however long one waits."""
    cut_off: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def look(state: SessionState) -> None:
        if broker.controller.is_active and state is not SessionState.CONNECTED and not cut_off.done():
            cut_off.set_result(None)

    broker.zk.add_listener(SessionListener(on_state=look))
    look(broker.zk.state)
    return cut_off


async def _ask(broker: Broker) -> tuple[ErrorCode, int]:
    if broker.controller.is_active:
        result = await broker.controller.submit(ControlledShutdown(broker.id, broker.broker_epoch))
        return result.error, len(result.remaining)
    listener = broker.config.inter_broker_listener
    endpoint = broker.metadata.endpoint(broker.controller_id, listener)
    if endpoint is None:
        raise ConnectionError("there is no controller now")
    connection = await BrokerConnection.connect(endpoint.host, endpoint.port, client_id=str(broker.id))
    try:
        request = ControlledShutdownRequest(broker_id=broker.id, broker_epoch=broker.broker_epoch)
        version = inter_broker.controlled_shutdown_version(inter_broker.protocol(broker.config))
        response = await connection.send(request, version)
        return ErrorCode(response.error_code), len(response.remaining_partitions)
    finally:
        connection.close()
