"""What a broker does about deletions that nobody told it of, as `klamm.server.missed_deletions` does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from klamm.controller.effects import ZkRead
from klamm.metadata.snapshot import MetadataSnapshot
from klamm.metadata.update import MetadataUpdate
from klamm.zk.model import paths
from klamm.zk.model.ops import GetChildren, GetChildrenResult, GetData, GetDataResult
from klamm.zk.model.znodes import decode_controller_epoch

if TYPE_CHECKING:
    from klamm.sim.node import Node

RETRY_MS = 100


class MissedDeletions:
    """Asks ZooKeeper when a controller speaks for the first time to this registration, or a new one to anybody."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._broker_epoch = -1
        self._before: MetadataSnapshot | None = None
        node.broker.metadata.update_listeners.append(self._on_update)

    def on_new_session(self) -> None:
        self._before = self._node.broker.metadata.snapshot

    def _on_update(self, before: MetadataSnapshot, update: MetadataUpdate) -> None:
        if update.controller_epoch > before.controller_epoch and len(before.topics):
            self._look_for(before, update.controller_epoch)
        if update.broker_epoch > self._broker_epoch:
            self._broker_epoch = update.broker_epoch
            known, self._before = self._before, None
            if known is not None:
                self._look_for(known, 0)

    def _look_for(self, before: MetadataSnapshot, controller_epoch: int) -> None:
        node = self._node
        generation, session = node.generation, node.session

        def answer(value: Any, error: Exception | None) -> None:
            if error is None and (generation, session) == (node.generation, node.session):
                node.when_awake(lambda: self._compare(before, controller_epoch, *value))

        if session is not None:
            ops = (GetData(paths.CONTROLLER_EPOCH), GetChildren(paths.TOPICS))
            node.world.zookeeper.request(session, ZkRead(ops), answer)

    def _compare(self, before: MetadataSnapshot, controller_epoch: int, epoch: object, topics: object) -> None:
        assert isinstance(epoch, GetDataResult) and isinstance(topics, GetChildrenResult)
        if decode_controller_epoch(epoch.data) < controller_epoch:
            self._node.world.later(RETRY_MS, lambda: self._look_for(before, controller_epoch))
            return
        there = set(topics.children)
        self._node.broker.metadata.forget([topic for topic in before.topics.values() if topic.name not in there])
