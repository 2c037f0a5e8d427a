"""Topics that were deleted while this broker had no session: nobody tells it of them any more, so it asks ZooKeeper.

A controller tells the brokers that live of a deletion, and then forgets the topic. A broker whose session has expired
is told everything anew when it is back, but nothing of what is not there.
"""

from __future__ import annotations

import logging

from klamm.broker import Broker
from klamm.metadata import MetadataSnapshot
from klamm.zk import paths
from klamm.zk.session import SessionListener

log = logging.getLogger(__name__)


class MissedDeletions:
    """Lives on the broker loop; made before the broker registers for the first time."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._before: MetadataSnapshot | None = None
        broker.zk.add_listener(SessionListener(after_new_session=self._on_new_session))

    def _on_new_session(self) -> None:
        """Only what is known now is looked for: the server that answers has seen it, as it has our registration."""
        self._before = self._broker.metadata.snapshot

    async def catch_up(self) -> None:
        """Call it when the broker has registered. Topics that ZooKeeper does not have leave the metadata.

        Offsets of groups go with them, so ZooKeeper's word counts, not what the controller happens to leave out.
        """
        before, self._before = self._before, None
        if before is None:
            return
        broker = self._broker
        there = set(await broker.zk.get_children(paths.TOPICS))
        deleted = broker.metadata.forget([topic for topic in before.topics.values() if topic.name not in there])
        if deleted:
            names = sorted({tp.topic for tp in deleted})
            log.info("%d topics were deleted while this broker had no session: %s", len(names), ", ".join(names[:10]))
            broker.replicas.on_metadata_change()
            broker.groups.on_partitions_deleted(deleted)
