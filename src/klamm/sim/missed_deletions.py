"""What a broker does about deletions that nobody told it of, as `klamm.server.missed_deletions` does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from klamm.controller.effects import ZkRead
from klamm.metadata.snapshot import MetadataSnapshot
from klamm.zk import paths
from klamm.zk.ops import GetChildren, GetChildrenResult, GetData, GetDataResult
from klamm.zk.znodes import decode_controller_epoch

if TYPE_CHECKING:
    from klamm.sim.node import Node

RETRY_MS = 100


class MissedDeletions:
    """Asks ZooKeeper in every new session, and when a new controller speaks for the first time."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._before: MetadataSnapshot | None = None
        node.broker.metadata.on_new_controller = self._on_new_controller

    def on_new_session(self) -> None:
        self._before = self._node.broker.metadata.snapshot

    def catch_up(self) -> None:
        """This broker has registered: the server that answers has seen everything from before."""
        before, self._before = self._before, None
        if before is not None:
            self._look_for(before, 0)

    def _on_new_controller(self, before: MetadataSnapshot, controller_epoch: int) -> None:
        if len(before.topics):
            self._look_for(before, controller_epoch)

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
