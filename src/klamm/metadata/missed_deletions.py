"""Topics that were deleted while this broker could not be informed: it must ask ZooKeeper.

A controller informs the live brokers of a deletion, and then forgets the topic. A broker whose session has expired
receives the whole metadata when it is back, but nothing about topics that no longer exist. If a controller is deposed
before it has informed all brokers, its successor does not know the topic at all.

This module decides when to ask and what to forget; the caller does the I/O.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from klamm.metadata.read_steps import Pause, Reads, ReadSteps
from klamm.metadata.snapshot import MetadataSnapshot, TopicState
from klamm.metadata.update import MetadataUpdate
from klamm.model import NO_EPOCH
from klamm.zk.model import paths
from klamm.zk.model.ops import GetChildren, GetChildrenResult, GetData, GetDataResult
from klamm.zk.model.znodes import decode_controller_epoch

RETRY_S: Final = 0.1


class Comparison(NamedTuple):
    """Topics to look for in ZooKeeper, by a server that has seen this controller epoch."""

    before: MetadataSnapshot
    controller_epoch: int


class MissedDeletionsRule:
    """When a broker compares its topics with ZooKeeper's. Made before the broker registers for the first time."""

    def __init__(self) -> None:
        self._broker_epoch = NO_EPOCH
        self._before: MetadataSnapshot | None = None

    def on_new_session(self, snapshot: MetadataSnapshot) -> None:
        """Look only for topics that are known now: a server that has seen the registration has seen them too."""
        self._before = snapshot

    def on_update(self, before: MetadataSnapshot, update: MetadataUpdate) -> list[Comparison]:
        """Return the comparisons to make. The first update of a registration needs one, and so does a new controller.

        From then on the controller informs of deletions; topics deleted before are no longer in ZooKeeper. Offsets of
        groups are deleted with a topic, so ZooKeeper decides, not the absence of the topic in an update.
        """
        comparisons = []
        if update.controller_epoch > before.controller_epoch and len(before.topics):
            comparisons.append(Comparison(before, update.controller_epoch))
        if update.broker_epoch > self._broker_epoch:
            self._broker_epoch = update.broker_epoch
            known, self._before = self._before, None
            if known is not None:
                comparisons.append(Comparison(known, 0))
        return comparisons


def deleted_topics(comparison: Comparison) -> ReadSteps[list[TopicState]]:
    """Return the topics that ZooKeeper does not have.

    A server that has seen the new controller epoch has seen everything that earlier controllers wrote, because they
    wrote under their own epochs.
    """
    while True:
        epoch, topics = yield Reads((GetData(paths.CONTROLLER_EPOCH), GetChildren(paths.TOPICS)))
        seen = decode_controller_epoch(epoch.data) if isinstance(epoch, GetDataResult) else NO_EPOCH
        if seen >= comparison.controller_epoch and isinstance(topics, GetChildrenResult):
            there = set(topics.children)
            return [topic for topic in comparison.before.topics.values() if topic.name not in there]
        yield Pause(RETRY_S)
