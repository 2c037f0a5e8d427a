"""Faults that random ones meet too seldom: each waits for its moment, looking into the brokers, and then strikes.

Some seeds begin with one of them, while the cluster is well; `counts` tells whether the moment came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from klamm.model import GROUP_METADATA_TOPIC, TopicPartition
from klamm.replica.partition import Partition
from klamm.sim.cluster import SimCluster, SimNode

T = TypeVar("T")
LOOK_S: Final = 0.001
MOMENT_S: Final = 5.0
"""How long the moment is waited for."""
SHORT_S: Final = 1.0
"""Shorter than a follower may lag: nobody leaves an ISR because of it."""
CUT_S: Final = 4.0
AWAY_S: Final = 3.0
"""Longer than a session."""


class AimedFaults:
    def __init__(self, cluster: SimCluster, group: str) -> None:
        self._cluster = cluster
        self._group = group

    @staticmethod
    def kind_of(seed: int) -> str | None:
        """The kind is the seed's: most have none. Of the latter, followers must learn high watermarks late."""
        return {3: "lonely coordinator", 6: "late high watermark"}.get(seed % 8)

    async def run(self, kind: str) -> None:
        fault = {"lonely coordinator": self._leave_coordinator_alone, "late high watermark": self._lose_leader}[kind]
        if await fault():
            self._cluster.counts[kind] += 1

    async def _leave_coordinator_alone(self) -> bool:
        """The group's coordinator dies with what it has written and no follower has got."""
        nodes = self._cluster.nodes.values()
        found = await self._moment(self._coordinator)
        if found is None:
            return False
        leader, partition = found
        self._note(f"{leader.host} is the only one to get what its group commits, and dies")
        self._cut(leader, *(node for node in nodes if node is not leader))
        end = _end(partition)
        if await self._moment(lambda: _end(partition) > end or None, SHORT_S) is None:
            return False
        await asyncio.sleep(0.1)  # whoever is answered too early hears of it
        self._kill_for_a_while(leader)
        return True

    def _coordinator(self) -> tuple[SimNode, Partition] | None:
        for node in self._cluster.nodes.values():
            if node.broker is None:
                continue
            tp = TopicPartition(GROUP_METADATA_TOPIC, node.broker.groups.partition_for(self._group))
            partition = node.broker.replicas.partitions.get(tp)
            is_used = partition is not None and _end(partition) > 3
            if partition is not None and partition.is_leader and is_used and len(partition.isr) > 1:
                return node, partition
        return None

    async def _lose_leader(self) -> bool:
        """A follower is told a new epoch while it does not know yet that its last record is committed; then it leads.

        It must not throw the record away, though it cannot ask its leader.
        """
        found = await self._moment(self._late_follower)
        if found is None:
            return False
        leader, follower, third, partition = found
        self._note(f"{follower.host} does not know what {leader.host} has committed, and is told another epoch")
        self._cut(leader, follower)
        epoch = partition.leader_epoch
        third.kill()
        third.start()
        if await self._moment(lambda: partition.leader_epoch > epoch or None, SHORT_S) is None:
            return False
        await asyncio.sleep(0.01)
        self._kill_for_a_while(leader)
        return True

    def _late_follower(self) -> tuple[SimNode, SimNode, SimNode, Partition] | None:
        """Leader, follower, the third, and the follower's partition; the follower is the controller."""
        nodes = [node for node in self._cluster.nodes.values() if node.broker is not None]
        active = [node for node in nodes if node.broker is not None and node.broker.controller.is_active]
        if len(nodes) != 3 or len(active) != 1 or active[0].broker is None:
            return None
        for tp, partition in active[0].broker.replicas.partitions.items():
            leaders = [node for node in nodes if node.id == partition.leader and node is not active[0]]
            if tp not in self._cluster.partitions or not leaders or leaders[0].broker is None:
                continue
            led = leaders[0].broker.replicas.partitions.get(tp)
            if led is None or not led.is_leader or len(led.isr) != 3 or led.log is None or partition.log is None:
                continue
            if partition.log.high_watermark < led.log.high_watermark <= partition.log.log_end_offset:
                third = next(node for node in nodes if node not in (leaders[0], active[0]))
                return leaders[0], active[0], third, partition
        return None

    # --- helpers ---------------------------------------------------------------------------------------------------

    async def _moment(self, look: Callable[[], T | None], longest_s: float = MOMENT_S) -> T | None:
        """What `look` finds first; None when it finds nothing."""
        until_s = self._cluster.loop.time() + longest_s
        while (found := look()) is None and self._cluster.loop.time() < until_s:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(LOOK_S)
        return found

    def _cut(self, node: SimNode, *others: SimNode) -> None:
        until_s = self._cluster.loop.time() + CUT_S
        for other in others:
            self._cluster.network.cut(node.host, other.host, until_s)
            self._cluster.network.cut(other.host, node.host, until_s)

    def _kill_for_a_while(self, node: SimNode) -> None:
        self._note(f"kill broker {node.id}")
        node.kill()
        self._cluster.outside(AWAY_S, node.start)

    def _note(self, text: str) -> None:
        self._cluster.note(f"aimed: {text}")


def _end(partition: Partition) -> int:
    return 0 if partition.log is None else partition.log.log_end_offset
