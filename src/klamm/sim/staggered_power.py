"""Two machines lose power together, and the sessions of their brokers end one after the other.

The first one keeps its log. When its session ends, the controller elects the other one, which has lost power too; then
that session ends. The other comes back first, without its tail and as the only member of the ISR. It must not lead: the
new leader never answered, so nothing was committed without the first one.

In some runs the controller changes twice meanwhile: while the second one still has its session, and after it has ended.
Every controller must know of the first one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol, TypeVar

from klamm.model import NO_LEADER, LeaderAndIsr, TopicPartition
from klamm.sim.checkers import require
from klamm.sim.cluster import SimCluster, SimNode
from klamm.sim.power_failures import current_isrs
from klamm.zk.model import paths
from klamm.zk.model.ops import Delete
from klamm.zk.model.znodes import decode_partition_state

T = TypeVar("T")
CONTROLLERS = 20
"""Maximum number of controllers to depose until the right broker is the controller."""
LONE_S = 2.0
"""Time that the second one is alone: long enough to be elected."""
BACK_S = 20.0
"""Maximum time until both are in sync again."""


class Moment(Protocol):
    def __call__(self, look: Callable[[], T | None], longest_s: float = ...) -> Awaitable[T | None]: ...


class Victims(NamedTuple):
    tp: TopicPartition
    first: SimNode
    second: SimNode


class StaggeredPowerFailure:
    def __init__(self, cluster: SimCluster, moment: Moment, *, changes_controller: bool) -> None:
        self._cluster = cluster
        self._moment = moment
        self._changes_controller = changes_controller

    async def run(self) -> bool:
        """Whether the scenario occurred."""
        found = await self._victims_under_another_controller()
        if found is None:
            return False
        tp, first, second = found
        sessions = [self._session(node) for node in (first, second)]
        self._cluster.note(f"aimed: {first.host}, which keeps all of {tp}, and {second.host} lose power")
        first.lose_power(list(current_isrs(self._cluster)))
        second.lose_power([])
        is_second_elected = await self._end_session(sessions[0], lambda: self._state(tp).leader == second.id)
        await self._change_controller()
        is_nobody_left = await self._end_session(sessions[1], lambda: self._state(tp).leader == NO_LEADER)
        await self._change_controller()
        second.start()
        await self._moment(lambda: None, LONE_S)
        first.start()
        is_well = await self._moment(lambda: len(self._state(tp).isr) == 2 or None, BACK_S)
        require(is_well is not None, f"{tp} is not in sync again on {first.host} and {second.host}: {self._state(tp)}")
        return is_second_elected and is_nobody_left

    async def _change_controller(self) -> None:
        if not self._changes_controller:
            return
        self._cluster.note("aimed: the controller is deposed")
        self._cluster.zookeeper.operate(Delete(paths.CONTROLLER))
        is_replaced = await self._moment(lambda: paths.CONTROLLER in self._cluster.zookeeper.tree.nodes or None)
        if is_replaced:
            self._cluster.counts["staggered power failure, other controller"] += 1

    async def _victims_under_another_controller(self) -> Victims | None:
        for _ in range(CONTROLLERS):
            found = await self._moment(self._victims)
            if found is None or self._is_controller_outside(found):
                return found
            self._cluster.zookeeper.operate(Delete(paths.CONTROLLER))
        return None

    def _victims(self) -> Victims | None:
        """A partition with two replicas, in sync and with records; all others have a good member elsewhere."""
        nodes = self._cluster.nodes
        if any(node.broker is None for node in nodes.values()) or not self._has_controller():
            return None
        isrs = current_isrs(self._cluster)
        for tp in self._cluster.partitions:
            isr = isrs.get(tp, ())
            if len(isr) != 2 or self._cluster.history.committed(tp) < 3:
                continue
            leader = self._state(tp).leader
            first, second = (nodes[leader], nodes[next(r for r in isr if r != leader)])
            if all(set(members) != {second.id} for members in isrs.values()):
                return Victims(tp, first, second)
        return None

    def _has_controller(self) -> bool:
        return any(
            node.broker is not None and node.broker.controller.is_active for node in self._cluster.nodes.values()
        )

    def _is_controller_outside(self, victims: Victims) -> bool:
        others = [node for node in self._cluster.nodes.values() if node not in victims]
        return any(node.broker is not None and node.broker.controller.is_active for node in others)

    async def _end_session(self, session_id: int, then: Callable[[], bool]) -> bool:
        self._cluster.zookeeper.end_session(session_id)
        return await self._moment(lambda: then() or None, 1.0) is not None

    def _session(self, node: SimNode) -> int:
        znode = self._cluster.zookeeper.tree.nodes[paths.broker_path(node.id)]
        return znode.ephemeral_owner

    def _state(self, tp: TopicPartition) -> LeaderAndIsr:
        znode = self._cluster.zookeeper.tree.nodes[paths.partition_state_path(*tp)]
        return decode_partition_state(tp, znode.data, 0).leader_and_isr
