"""Asks ZooKeeper for topics that were deleted while this broker could not be informed, and forgets them.

`klamm.metadata.missed_deletions` has the rule.
"""

from __future__ import annotations

import logging

from klamm.broker import Broker
from klamm.metadata import MetadataSnapshot, MetadataUpdate
from klamm.metadata.missed_deletions import Comparison, MissedDeletionsRule, deleted_topics
from klamm.server import read_steps
from klamm.server.background_tasks import Spawn
from klamm.zk.client.zk_session import SessionListener

log = logging.getLogger(__name__)


class MissedDeletions:
    """Lives on the broker loop."""

    def __init__(self, broker: Broker, spawn: Spawn) -> None:
        self._broker = broker
        self._spawn = spawn
        self._rule = MissedDeletionsRule()

    def start(self) -> None:
        """Listen to new sessions and to metadata, from before the broker registers for the first time."""
        broker = self._broker
        broker.zk.add_listener(SessionListener(after_new_session=self._on_new_session))
        broker.metadata.update_listeners.append(self._on_update)

    def _on_new_session(self) -> None:
        self._rule.on_new_session(self._broker.metadata.snapshot)

    def _on_update(self, before: MetadataSnapshot, update: MetadataUpdate) -> None:
        for comparison in self._rule.on_update(before, update):
            self._spawn(self._compare(comparison))

    async def _compare(self, comparison: Comparison) -> None:
        broker = self._broker
        deleted = broker.metadata.forget(await read_steps.run(broker.zk, deleted_topics(comparison)))
        if deleted:
            names = sorted({tp.topic for tp in deleted})
            shown = ", ".join(names[:10])
            log.info("%d topics were deleted while this broker was offline or lagging: %s", len(names), shown)
            broker.replicas.on_metadata_change()
            broker.groups.on_partitions_deleted(deleted)
