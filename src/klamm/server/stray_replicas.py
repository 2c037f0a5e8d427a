"""Replicas that were moved away while nobody could tell this broker of it: their logs would stay for ever.

A controller that takes a replica away tells its broker to delete it, and remembers that it did not answer only while it
is the controller. So a broker that a controller has told everything looks for logs that are not among it, and asks
ZooKeeper. A log is deleted only when its topic is there, with the same id, and does not name this broker any more.

What ZooKeeper answers may be old, but not older than this broker's registration. A log that nobody has told this broker
of since then cannot have become a replica again without being told of. One that it was told of must be older than
what was read: the leader epoch in ZooKeeper has passed the one it was told.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable
from typing import Final

from klamm.apis.control import undisturbed
from klamm.broker import Broker
from klamm.metadata import MetadataSnapshot, MetadataUpdate
from klamm.model import NO_EPOCH, TopicPartition
from klamm.zk.model import paths
from klamm.zk.model.znodes import TopicZnode, decode_partition_state, decode_topic

log = logging.getLogger(__name__)

SLICE: Final = 1_000
"""Logs that are looked at before others have their turn."""


class StrayReplicas:
    """Lives on the broker loop; made before the broker registers for the first time. `spawn` starts a task."""

    def __init__(self, broker: Broker, spawn: Callable[[Coroutine[object, object, None]], None]) -> None:
        self._broker = broker
        self._spawn = spawn
        self._told_by = (NO_EPOCH, NO_EPOCH)
        broker.metadata.update_listeners.append(self._on_update)

    def _on_update(self, before: MetadataSnapshot, update: MetadataUpdate) -> None:
        """Looks when a controller has told this registration of partitions for the first time: that is of all."""
        told_by = (update.controller_epoch, update.broker_epoch)
        if told_by > self._told_by and update.topics and update.is_last_slice:
            self._told_by = told_by
            self._spawn(self._remove())

    async def _remove(self) -> None:
        suspects = await self._suspects()
        if not suspects:
            return
        told = {tp: self._told_epoch(tp) for tp in suspects}
        confirmed = await self._unassigned(suspects)
        deletion = undisturbed(self._broker, lambda: self._delete(confirmed, told))
        if isinstance(deletion, asyncio.Future):
            await deletion

    async def _suspects(self) -> list[TopicPartition]:
        """Logs of partitions that this broker has not been told to be a replica of."""
        broker, found = self._broker, []
        logs = list(broker.logs.logs)
        for start in range(0, len(logs), SLICE):
            await asyncio.sleep(0)
            snapshot = broker.metadata.snapshot
            for tp in logs[start : start + SLICE]:
                state = snapshot.partition(*tp)
                if state is None or broker.id not in state.replicas:
                    found.append(tp)
        return found

    def _told_epoch(self, tp: TopicPartition) -> int:
        partition = self._broker.replicas.partitions.get(tp)
        return NO_EPOCH if partition is None else partition.leader_epoch

    async def _unassigned(self, suspects: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Those that ZooKeeper says are others', with their leader epochs there, which are read first."""
        topics: dict[str, list[TopicPartition]] = defaultdict(list)
        for tp in suspects:
            topics[tp.topic].append(tp)
        tps = [tp for group in topics.values() for tp in group]
        zk = self._broker.zk
        states = await zk.read_many(paths.partition_state_path(*tp) for tp in tps)
        znodes = await zk.read_many(paths.topic_path(topic) for topic in topics)
        assigned = {name: decode_topic(name, found[0]) for name, found in zip(topics, znodes, strict=True) if found}
        return {
            tp: decode_partition_state(tp, found[0], found[1].version).leader_and_isr.leader_epoch
            for tp, found in zip(tps, states, strict=True)
            if found and self._is_anothers(tp, assigned.get(tp.topic))
        }

    def _is_anothers(self, tp: TopicPartition, topic: TopicZnode | None) -> bool:
        here = self._broker.logs.get_log(tp)
        if here is None or topic is None or tp.partition not in topic.assignment:
            return False
        if None not in (here.topic_id, topic.topic_id) and here.topic_id != topic.topic_id:
            return False
        assignment = topic.assignment[tp.partition]
        return self._broker.id not in (*assignment.replicas, *assignment.adding_replicas)

    def _delete(self, epochs: dict[TopicPartition, int], told: dict[TopicPartition, int]) -> None:
        """Nothing that this broker has been told of since, nor anything that it may know better than ZooKeeper."""
        replicas = self._broker.replicas
        strays = [tp for tp, epoch in epochs.items() if self._told_epoch(tp) == told[tp] < epoch]
        if strays:
            names = ", ".join(map(str, strays[:10]))
            log.warning("%d replicas were moved away and this broker was not told: %s", len(strays), names)
            replicas.delete_strays(strays)
