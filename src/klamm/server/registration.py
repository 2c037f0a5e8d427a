"""A broker joins its cluster: it registers in ZooKeeper, and then the controller connects to it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from klamm.broker import Broker
from klamm.controller.controller_runner import ControllerHandle
from klamm.controller.events import Startup
from klamm.controller.replies import BrokerRegistration
from klamm.errors import ErrorCode, KlammError
from klamm.metadata import MetadataCache
from klamm.model import NO_LEADER, BrokerEndPoints, EndPoint
from klamm.zk.client.zk_session import ZkSession
from klamm.zk.model import paths
from klamm.zk.model.broker_znode import decode_broker
from klamm.zk.model.znodes import ZnodeFormatError

log = logging.getLogger(__name__)

MARGIN_MS: Final = 10_000
"""ZooKeeper expires sessions in ticks, and starts counting again after its own restart."""
RETRY_S: Final = 0.2


WARN_S: Final = 5.0
LIMIT_S: Final = 120.0
"""The controller first fails over, if it is new, and retries its connections."""
PARTITIONS_LIMIT_S: Final = 10.0
"""The wait is bounded, because topics whose partitions never had a leader are not reported to brokers."""


async def register(handle: ControllerHandle, wait_ms: int = 0) -> BrokerRegistration:
    """Register with the event `Startup` and return the controller's answer.

    An id in use is refused, but an id that this broker's own last run may hold is awaited for `wait_ms`.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_ms / 1000
    registration: BrokerRegistration = await handle.submit(Startup())
    if registration.error is ErrorCode.DUPLICATE_BROKER_REGISTRATION and wait_ms:
        log.warning(
            "%s. The last shutdown was unclean; waiting up to %d s for that session to end",
            registration.message,
            wait_ms // 1000,
        )
    while registration.error is ErrorCode.DUPLICATE_BROKER_REGISTRATION and loop.time() < deadline:
        await asyncio.sleep(RETRY_S)
        registration = await handle.submit(Startup())
    return registration


async def registered_brokers(zk: ZkSession) -> list[BrokerEndPoints]:
    """Return the brokers in ZooKeeper. A registration that cannot be read is left out; the controller logs it."""
    names = await zk.get_children(paths.BROKER_IDS)
    ids = sorted(number for name in names if (number := paths.number_of(name)) is not None)
    brokers = []
    for broker_id, found in zip(ids, await zk.read_many(map(paths.broker_path, ids)), strict=True):
        if found is not None:
            data, stat = found
            with contextlib.suppress(ZnodeFormatError):
                brokers.append(decode_broker(broker_id, data, stat.czxid).broker)
    return brokers


async def until_known(
    metadata: MetadataCache, address: EndPoint, *, warn_s: float = WARN_S, limit_s: float = LIMIT_S
) -> None:
    """Wait for the controller's first UpdateMetadata at `address`: from then on clients learn of this broker.

    After `warn_s` it logs once what may be wrong; after `limit_s` it raises KlammError.
    """
    known = asyncio.Event()
    metadata.when_alive(metadata.broker_id, known.set)
    where = f"{address.listener}://{address.host}:{address.port}"
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(warn_s):
            await known.wait()
        return
    log.warning(
        "the controller has not reached this broker yet. It connects to %s: advertised.listeners "
        "must name an address that every broker can reach, this one included",
        where,
    )
    try:
        async with asyncio.timeout(limit_s - warn_s):
            await known.wait()
    except TimeoutError:
        raise KlammError(
            f"The controller has not reached this broker within {limit_s:g} s at {where}: correct advertised.listeners."
        ) from None


async def until_partitions_known(metadata: MetadataCache, zk: ZkSession, limit_s: float = PARTITIONS_LIMIT_S) -> None:
    """Wait until the controller has sent all topics, so that no client receives the answer that an existing topic does
    not exist.

    A controller that has just been elected first sends the live brokers, and partitions when it has read them all. The
    wait, including the question to ZooKeeper whether there are topics, ends after `limit_s`.
    """
    known = asyncio.Event()
    metadata.when_partitions_known(known.set)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            if not known.is_set() and await zk.get_children(paths.TOPICS):
                await known.wait()


def is_tail_settled(broker: Broker) -> bool:
    """Return whether the next start may trust this broker's logs, if it stops cleanly now.

    A log that may have lost its tail is as good as any other once its partition has a leader: then it follows that
    leader, or was compared with the others and leads. Until then it must remain suspect.
    """
    if not broker.logs.may_lack_records:
        return True
    hosted = broker.replicas.partitions
    return all((partition := hosted.get(tp)) is not None and partition.leader != NO_LEADER for tp in broker.logs.logs)
