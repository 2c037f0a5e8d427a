"""All brokers of a cluster are stopped, and the last one finds a log damaged when it is started again.

The others left the ISR when they stopped, but one of them has all committed records. The broker with the damaged log
must report it and must not lead while the intact one is available.
"""

from __future__ import annotations

from typing import NamedTuple

from klamm.log import Log
from klamm.log.names import LOG
from klamm.model import TopicPartition
from klamm.sim.checkers import require
from klamm.sim.cluster import SimCluster, SimNode
from klamm.sim.staggered_power import Moment

BACK_S = 20.0
"""Maximum time until all answer and are in sync again."""


class Victim(NamedTuple):
    tp: TopicPartition
    node: SimNode


class DamagedDisk:
    def __init__(self, cluster: SimCluster, moment: Moment) -> None:
        self._cluster = cluster
        self._moment = moment

    async def run(self) -> bool:
        """Whether the scenario occurred: the log was damaged, and another broker has all of it."""
        cluster = self._cluster
        found = await self._moment(self._leader)
        if found is None:
            return False
        tp, last = found
        others = [node for node in cluster.nodes.values() if node is not last]
        copy = _log(others[-1], tp)
        cluster.note(f"aimed: all brokers are stopped, the last is broker {last.id}")
        for node in (*others, last):
            await node.stop()
        has_copy = copy is not None and copy.log_end_offset >= cluster.history.committed(tp)
        if has_copy:
            cluster.note(f"aimed: {tp} of broker {last.id} is damaged")
            last.damage(_files_of(last, tp)[-1])
        for node in others:
            node.start()
        await self._moment(lambda: all(node.is_ready for node in others) or None, BACK_S)
        last.start()
        is_well = await self._moment(lambda: self._is_in_sync(tp) or None, BACK_S)
        require(is_well is not None, f"{tp} is not in sync again")
        return has_copy

    def _leader(self) -> Victim | None:
        """Return a partition that all brokers have, in sync and with records."""
        for tp in self._cluster.partitions:
            for node in self._cluster.nodes.values():
                partition = None if node.broker is None else node.broker.replicas.partitions.get(tp)
                is_whole = partition is not None and len(partition.isr) == len(self._cluster.nodes)
                if is_whole and partition is not None and partition.is_leader and _files_of(node, tp):
                    return Victim(tp, node)
        return None

    def _is_in_sync(self, tp: TopicPartition) -> bool:
        brokers = [node.broker for node in self._cluster.nodes.values() if node.broker is not None]
        partitions = [broker.replicas.partitions.get(tp) for broker in brokers]
        return any(p is not None and p.is_leader and len(p.isr) == len(self._cluster.nodes) for p in partitions)


def _log(node: SimNode, tp: TopicPartition) -> Log | None:
    partition = None if node.broker is None else node.broker.replicas.partitions.get(tp)
    return None if partition is None else partition.log


def _files_of(node: SimNode, tp: TopicPartition) -> list[str]:
    """Return the segments with records."""
    directory = f"/data/{tp.topic}-{tp.partition}"
    found = node.files.list_dir(directory)
    return [f"{directory}/{info.name}" for info in found if info.name.endswith(LOG) and info.size_bytes]
