"""Topics that were deleted while nobody told this broker of it: nobody will any more, so it asks ZooKeeper.

A controller tells the brokers that live of a deletion, and then forgets the topic. A broker whose session has expired
is told everything anew when it is back, but nothing of what is not there. And a controller that is deposed before it
could tell all brokers leaves the rest without a word: the next one has never heard of the topic.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Final

from klamm.broker import Broker
from klamm.metadata import MetadataSnapshot, MetadataUpdate
from klamm.model import NO_EPOCH
from klamm.zk.client.zk_session import SessionListener
from klamm.zk.model import paths
from klamm.zk.model.ops import GetData
from klamm.zk.model.znodes import decode_controller_epoch

log = logging.getLogger(__name__)

RETRY_S: Final = 0.1


class MissedDeletions:
    """Lives on the broker loop; made before the broker registers for the first time. `spawn` starts a task."""

    def __init__(self, broker: Broker, spawn: Callable[[Coroutine[object, object, None]], None]) -> None:
        self._broker = broker
        self._spawn = spawn
        self._broker_epoch = NO_EPOCH
        self._before: MetadataSnapshot | None = None
        broker.zk.add_listener(SessionListener(after_new_session=self._on_new_session))
        broker.metadata.update_listeners.append(self._on_update)

    def _on_new_session(self) -> None:
        """Only what is known now is looked for: the server that answers has seen it, as it has our registration."""
        self._before = self._broker.metadata.snapshot

    def _on_update(self, before: MetadataSnapshot, update: MetadataUpdate) -> None:
        """The first word of a controller to this registration, or of a new controller to anybody.

        From then on it tells of deletions; what was deleted before is not in ZooKeeper any more. Offsets of groups go
        with a topic, so ZooKeeper's word counts, not what the controller happens to leave out.
        """
        if update.controller_epoch > before.controller_epoch and len(before.topics):
            self._spawn(self._compare(before, update.controller_epoch))
        if update.broker_epoch > self._broker_epoch:
            self._broker_epoch = update.broker_epoch
            known, self._before = self._before, None
            if known is not None:
                self._spawn(self._forget_unless_there(known))

    async def _compare(self, before: MetadataSnapshot, controller_epoch: int) -> None:
        """A server that has seen the new epoch has seen all that earlier controllers wrote, under their own epochs."""
        while await self._read_controller_epoch() < controller_epoch:  # noqa: ASYNC110 - a lagging server has no event
            await asyncio.sleep(RETRY_S)
        await self._forget_unless_there(before)

    async def _read_controller_epoch(self) -> int:
        return decode_controller_epoch((await self._broker.zk.read(GetData(paths.CONTROLLER_EPOCH))).data)

    async def _forget_unless_there(self, before: MetadataSnapshot) -> None:
        broker = self._broker
        there = set(await broker.zk.get_children(paths.TOPICS))
        deleted = broker.metadata.forget([topic for topic in before.topics.values() if topic.name not in there])
        if deleted:
            names = sorted({tp.topic for tp in deleted})
            log.info("%d topics were deleted and this broker was not told: %s", len(names), ", ".join(names[:10]))
            broker.replicas.on_metadata_change()
            broker.groups.on_partitions_deleted(deleted)
