"""Faults that random choice hits too rarely: each waits for its moment by inspecting the brokers, then strikes.

Some seeds begin with one of them, while the cluster is healthy; `counts` shows whether the moment came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Final, TypeVar

from klamm.model import GROUP_METADATA_TOPIC, TopicPartition
from klamm.protocol.frames import decode_request_header
from klamm.protocol.messages.stop_replica import StopReplicaRequest
from klamm.protocol.wire import decode
from klamm.replica.partition import Partition
from klamm.sim.checkers import require
from klamm.sim.clients import Client
from klamm.sim.cluster import SimCluster, SimNode
from klamm.sim.damaged_disk import DamagedDisk
from klamm.sim.operator import reassign
from klamm.sim.staggered_power import StaggeredPowerFailure
from klamm.zk.model import paths
from klamm.zk.model.ops import Delete

T = TypeVar("T")
LOOK_S: Final = 0.001
MOMENT_S: Final = 5.0
"""Maximum wait for the moment."""
SHORT_S: Final = 1.0
"""Shorter than the allowed lag of a follower: no ISR shrinks because of it."""
CUT_S: Final = 4.0
LATE_S: Final = 3.5
"""Long enough for a broker to be an in-sync replica again."""
AWAY_S: Final = 3.0
"""Longer than a session."""


class AimedFaults:
    def __init__(self, cluster: SimCluster, group: str) -> None:
        self._cluster = cluster
        self._group = group

    @staticmethod
    def kind_of(seed: int) -> str | None:
        """The seed selects the kind; most seeds have none. For the last kind, followers must learn high watermarks
        late."""
        if seed % 8 in (2, 4):
            return {10: "damaged disk", 12: "staggered power failure"}.get(seed % 16)
        return {
            1: "registration deleted",
            3: "lonely coordinator",
            5: "overtaken deletion",
            6: "late high watermark",
        }.get(seed % 8)

    async def run(self, kind: str) -> None:
        faults = {
            "registration deleted": self._delete_registration,
            "lonely coordinator": self._leave_coordinator_alone,
            "overtaken deletion": self._overtake_deletion,
            "late high watermark": self._lose_leader,
            "damaged disk": DamagedDisk(self._cluster, self._moment).run,
            "staggered power failure": StaggeredPowerFailure(
                self._cluster, self._moment, changes_controller=self._cluster.seed % 32 == 28
            ).run,
        }
        if await faults[kind]():
            self._cluster.counts[kind] += 1

    async def _delete_registration(self) -> bool:
        """The znode of a running broker is deleted: it must be registered again without a session expiry."""
        zookeeper = self._cluster.zookeeper
        node = self._cluster.rng.choice(list(self._cluster.nodes.values()))
        path = paths.broker_path(node.id)
        znode = zookeeper.tree.nodes.get(path)
        if node.broker is None or znode is None or not zookeeper.operate(Delete(path)):
            return False
        self._note(f"the registration of broker {node.id} is deleted")
        owner = znode.ephemeral_owner

        def is_back() -> bool | None:
            found = zookeeper.tree.nodes.get(path)
            return (found is not None and found.ephemeral_owner == owner) or None

        require(await self._moment(is_back) is not None, f"broker {node.id} does not register again")
        return True

    async def _leave_coordinator_alone(self) -> bool:
        """The group's coordinator dies with records that no follower has."""
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
        await asyncio.sleep(0.1)  # a client that was answered too early notices it
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
        """A follower receives a new epoch before it knows that its last record is committed; then it leads.

        It must keep the record, although it cannot ask its leader.
        """
        found = await self._moment(self._late_follower)
        if found is None:
            return False
        leader, follower, third, partition = found
        self._note(f"{follower.host} does not know what {leader.host} has committed, and receives another epoch")
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

    async def _overtake_deletion(self) -> bool:
        """A replica is moved away and back, and only then the first request to delete it arrives.

        Its controller has given up that request and repeated it over another connection.
        """
        found = await self._moment(self._follower_in_sync)
        if found is None:
            return False
        controller, follower, partition = found
        cluster, tp, replicas = self._cluster, partition.topic_partition, list(partition.isr)
        epoch, late_s = partition.leader_epoch, cluster.loop.time() + LATE_S
        self._note(f"a request to delete {tp} reaches {follower.host} at {late_s:.3f}, after {tp} has returned")
        cluster.network.hold(controller.host, follower.host, _is_deletion, late_s)
        client = Client("mover", cluster.addresses, Random(cluster.rng.getrandbits(64)))
        process = cluster.client_process("mover")
        for target in ([each for each in replicas if each != follower.id], replicas):
            await cluster.loop.spawn(process, reassign(client, controller.id, tp, target))
        is_back = await self._moment(lambda: self._is_in_sync_again(follower, tp, epoch + 2) or None)
        is_early = cluster.loop.time() < late_s
        await asyncio.sleep(max(0.0, late_s - cluster.loop.time()) + SHORT_S)
        is_held = not cluster.network.is_waiting_to_hold(controller.host, follower.host)
        return is_back is not None and is_early and is_held

    def _follower_in_sync(self) -> tuple[SimNode, SimNode, Partition] | None:
        """The controller, a follower that is another broker, and the partition as its leader has it."""
        nodes = [node for node in self._cluster.nodes.values() if node.broker is not None]
        active = [node for node in nodes if node.broker is not None and node.broker.controller.is_active]
        for node in nodes:
            for tp, led in () if node.broker is None else node.broker.replicas.partitions.items():
                others = [each for each in nodes if each not in (node, *active) and each.id in led.isr]
                is_meant = tp in self._cluster.partitions and led.is_leader and _end(led) > 0
                if is_meant and len(led.isr) == 3 and len(active) == 1 and others:
                    return active[0], others[0], led
        return None

    def _is_in_sync_again(self, follower: SimNode, tp: TopicPartition, epoch: int) -> bool:
        for node in self._cluster.nodes.values():
            led = None if node.broker is None else node.broker.replicas.partitions.get(tp)
            if led is not None and led.is_leader and led.leader_epoch >= epoch and follower.id in led.isr:
                return True
        return False

    # --- helpers ---------------------------------------------------------------------------------------------------

    async def _moment(self, look: Callable[[], T | None], longest_s: float = MOMENT_S) -> T | None:
        """Return the first result of `look`; None if there is none."""
        until_s = self._cluster.loop.time() + longest_s
        while (found := look()) is None and self._cluster.loop.time() < until_s:  # noqa: ASYNC110 - no event reports it
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


def _is_deletion(data: bytes) -> bool:
    """Whether these bytes are a StopReplica that deletes."""
    header, position = decode_request_header(data, 4)
    if header.api_key != StopReplicaRequest.KEY:
        return False
    request, _ = decode(StopReplicaRequest, header.api_version, data, position)
    return any(state.delete_partition for topic in request.topic_states for state in topic.partition_states)


def _end(partition: Partition) -> int:
    return 0 if partition.log is None else partition.log.log_end_offset
