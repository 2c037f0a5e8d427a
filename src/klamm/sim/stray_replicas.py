"""What a broker does about replicas that were moved away unheard, as `klamm.server.stray_replicas` does it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from klamm.controller.effects import ZkRead
from klamm.metadata.snapshot import MetadataSnapshot
from klamm.metadata.update import MetadataUpdate
from klamm.model import NO_EPOCH, ZERO_UUID, TopicPartition
from klamm.zk.model import paths
from klamm.zk.model.ops import GetData, GetDataResult
from klamm.zk.model.znodes import TopicZnode, decode_partition_state, decode_topic

if TYPE_CHECKING:
    from klamm.sim.node import Node

Epochs = dict[TopicPartition, int]


class StrayReplicas:
    """Looks when a controller has told a registration of partitions for the first time: that is of all."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._broker = node.broker
        self._told_by = (NO_EPOCH, NO_EPOCH)
        node.broker.metadata.update_listeners.append(self._on_update)

    def _on_update(self, before: MetadataSnapshot, update: MetadataUpdate) -> None:
        told_by = (update.controller_epoch, update.broker_epoch)
        if told_by > self._told_by and update.topics:
            self._told_by = told_by
            self._look_for([tp for tp in self._broker.disk.logs if self._is_suspect(tp)])

    def _is_suspect(self, tp: TopicPartition) -> bool:
        state = self._broker.metadata.snapshot.partition(*tp)
        return tp not in self._broker.offline and (state is None or self._broker.id not in state.replicas)

    def _told_epoch(self, tp: TopicPartition) -> int:
        mine = self._broker.hosted.get(tp)
        return NO_EPOCH if mine is None else mine.leader_epoch

    def _look_for(self, suspects: list[TopicPartition]) -> None:
        """The leader epochs in ZooKeeper are read first, then the assignments."""
        if not suspects:
            return
        told = {tp: self._told_epoch(tp) for tp in suspects}
        topics = list(dict.fromkeys(tp.topic for tp in suspects))

        def on_states(states: tuple[GetDataResult | None, ...]) -> None:
            found = zip(suspects, states, strict=True)
            epochs = {tp: decode_partition_state(tp, it.data, 0).leader_and_isr.leader_epoch for tp, it in found if it}
            self._read(map(paths.topic_path, topics), lambda znodes: on_topics(epochs, znodes))

        def on_topics(epochs: Epochs, znodes: tuple[GetDataResult | None, ...]) -> None:
            found = zip(topics, znodes, strict=True)
            assigned = {name: decode_topic(name, it.data) for name, it in found if it}
            self._delete({tp: e for tp, e in epochs.items() if self._is_anothers(tp, assigned.get(tp.topic))}, told)

        self._read((paths.partition_state_path(*tp) for tp in suspects), on_states)

    def _read(self, znodes: Iterable[str], then: Callable[[tuple[GetDataResult | None, ...]], None]) -> None:
        node = self._node
        session = node.session

        def answer(value: Any, error: Exception | None) -> None:
            if error is None and node.broker is self._broker:
                node.when_awake(lambda: then(value))

        if session is not None:
            node.world.zookeeper.request(session, ZkRead(tuple(map(GetData, znodes))), answer)

    def _is_anothers(self, tp: TopicPartition, topic: TopicZnode | None) -> bool:
        here = self._broker.disk.logs.get(tp)
        if here is None or topic is None or tp.partition not in topic.assignment:
            return False
        if ZERO_UUID != here != topic.topic_id and topic.topic_id is not None:
            return False
        return self._broker.id not in topic.assignment[tp.partition].replicas

    def _delete(self, epochs: Epochs, told: Epochs) -> None:
        """Nothing that this broker has been told of since, nor anything that it may know better than ZooKeeper."""
        for tp in [tp for tp, epoch in epochs.items() if self._told_epoch(tp) == told[tp] < epoch]:
            self._node.world.trace(self._broker.id, f"deletes {tp}, which was moved away")
            self._node.world.faults["replicas moved away unheard"] += 1
            self._broker.hosted.pop(tp, None)
            self._broker.disk.delete(tp)
