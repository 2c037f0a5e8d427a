"""The stage of an aimed scenario: a healthy cluster of three brokers, and helpers that inspect and direct it.

Random faults exercise some rules only once in a thousand seeds. An aimed scenario performs the steps that exercise the
rule, one by one. At the end the cluster must be quiet, as after any other run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType
from typing import Any, Final

from klamm.broker import Broker
from klamm.errors import ErrorCode
from klamm.log.log import Log
from klamm.model import TopicPartition
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.protocol.record_batch import Record, build_batch
from klamm.protocol.wire import Message
from klamm.sim.clients import Client, create_topic
from klamm.sim.cluster import SimCluster, SimNode
from klamm.sim.cluster_quiet import check_quiet
from klamm.sim.network import Detention, is_request
from klamm.sim.operator import elect_preferred, reassign
from klamm.sim.violation import require
from klamm.sim.watched_run import WatchedRun
from klamm.zk.model import paths
from klamm.zk.model.znodes import decode_partition_state

TOPIC: Final = "aims"
PARTITIONS: Final = 6
WAIT_S: Final = 10.0
"""Maximum wait for a condition."""
LOOK_S: Final = 0.005
SETTINGS: Final[dict[str, object]] = {"auto.leader.rebalance.enable": False, "klamm.control.log.enable": False}


@dataclass(frozen=True)
class ClusterAim:
    """An aimed scenario and the settings that its cluster needs."""

    act: Callable[[ClusterStage], Awaitable[None]]
    settings: Mapping[str, object] = field(default_factory=dict)


class AimedStage(WatchedRun):
    """The common part of all stages. A subclass performs the steps."""

    def __init__(self, cluster: SimCluster, settings: Mapping[str, object]) -> None:
        super().__init__(cluster)
        self.cluster = cluster
        cluster.settings |= {**SETTINGS, **settings}
        self.tps = cluster.partitions = [TopicPartition(TOPIC, p) for p in range(PARTITIONS)]
        self._admin = Client("admin", cluster.addresses, self.random())
        self._process = cluster.client_process("admin")

    async def run(self) -> None:
        nodes = self.cluster.nodes.values()
        for node in nodes:
            node.start()
        await self._until(lambda: all(node.is_ready for node in nodes), "all brokers answer")
        await self.as_admin(create_topic(self._admin, TOPIC, PARTITIONS, 3))
        await self._while_watching(self.cluster.loop.create_task(self._perform()))
        self.cluster.note("--- quiet")
        self.cluster.network.heal()
        for node in nodes:
            self.resume(node)
            node.start()
        await self._until_no_violation(self._check_quiet)

    async def _perform(self) -> None:
        raise NotImplementedError

    def _check_quiet(self) -> None:
        check_quiet(self.cluster, self.tps, ())

    def random(self) -> Random:
        return Random(self.cluster.rng.getrandbits(64))

    # --- requests of an administrator ------------------------------------------------------------------------------

    async def as_admin(self, work: Any) -> Any:
        task = self.cluster.loop.spawn(self._process, work)
        await self._while_watching(task)
        return task.result()

    async def ask(self, node: SimNode, request: Message, version: int) -> Any:
        return await self.as_admin(self._admin.ask(node.id, request, version))

    async def create_topic(
        self, name: str, replicas: int, configs: Mapping[str, str] = MappingProxyType({})
    ) -> TopicPartition:
        """Create another topic with one partition, which the checkers do not read."""
        await self.as_admin(create_topic(self._admin, name, 1, replicas, configs))
        return TopicPartition(name, 0)

    async def move(self, tp: TopicPartition, *nodes: SimNode) -> None:
        """Move all replicas of a partition to these brokers; the first one leads."""
        await self.as_admin(reassign(self._admin, self.controller.id, tp, [node.id for node in nodes]))
        await self.wait(lambda: self._leader(tp) is nodes[0], f"{tp} is moved")

    # --- inspection ------------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> list[SimNode]:
        return list(self.cluster.nodes.values())

    @property
    def now_s(self) -> float:
        return self.cluster.loop.time()

    async def wait(self, holds: Callable[[], bool], what: str, longest_s: float = WAIT_S) -> None:
        until_s = self.now_s + longest_s
        while not holds():
            require(self.now_s < until_s, f"after {longest_s:g} s it is not so that {what}")
            await asyncio.sleep(LOOK_S)

    async def leader(self, tp: TopicPartition) -> SimNode:
        await self.wait(lambda: self._leader(tp) is not None, f"{tp} has a leader")
        node = self._leader(tp)
        assert node is not None
        return node

    def _leader(self, tp: TopicPartition) -> SimNode | None:
        for node in self.nodes:
            hosted = None if node.broker is None else node.broker.replicas.partitions.get(tp)
            if hosted is not None and hosted.is_leader and self.cluster.watch.is_leader(tp, node.id):
                return node
        return None

    def is_led_by_other(self, tp: TopicPartition, node: SimNode) -> bool:
        return self._leader(tp) not in (None, node)

    def is_registered(self, node: SimNode) -> bool:
        return paths.broker_path(node.id) in self.cluster.zookeeper.tree.nodes

    @property
    def controller(self) -> SimNode:
        """The controller's node; any node if there is no controller, because its answer is an error then."""
        active = [node for node in self.nodes if node.broker is not None and node.broker.controller.is_active]
        return [*active, *self.nodes][0]

    def _any_broker(self) -> Broker:
        return next(node.broker for node in self.nodes if node.broker is not None)

    async def partition_away_from(self, *nodes: SimNode) -> TopicPartition:
        """A partition that none of these brokers leads."""
        for tp in self.tps:
            if await self.leader(tp) not in nodes:
                return tp
        raise AssertionError(f"{nodes} lead all partitions")

    # --- direction -------------------------------------------------------------------------------------------------

    async def lead(self, tp: TopicPartition, node: SimNode) -> None:
        """Make this broker the leader without losing a connection."""
        await self.prefer(tp, node)
        until_s = self.now_s + WAIT_S
        while self._leader(tp) is not node:
            require(self.now_s < until_s, f"broker {node.id} does not become the leader of {tp}")
            await self.elect(tp)
            await asyncio.sleep(0.02)

    async def prefer(self, tp: TopicPartition, node: SimNode) -> None:
        """Make this broker the preferred leader."""
        others = [other.id for other in self.nodes if other is not node]
        self.cluster.note(f"aimed: broker {node.id} shall lead {tp}")
        await self.as_admin(reassign(self._admin, self.controller.id, tp, [node.id, *others]))

    async def elect(self, tp: TopicPartition) -> ErrorCode:
        """Have the controller elect the preferred leader."""
        code: ErrorCode = await self.as_admin(elect_preferred(self._admin, self.controller.id, tp))
        return code

    def detain(self, source: str, request: type[Message], target: SimNode | None = None) -> Detention:
        """Hold the next such request, and all later data of its connection, in the network."""
        return self.cluster.network.detain(source, is_request(request.KEY), None if target is None else target.host)

    async def detained(self, detention: Detention) -> None:
        await self.wait(lambda: detention.target is not None, f"{detention.source} has sent the request")

    def lose_answer(self, source: str, request: type[Message]) -> None:
        """Lose the answer to the next such request to each broker, together with the connection."""
        for node in self.nodes:
            self.cluster.network.lose_answer(source, node.host, is_request(request.KEY))

    def keep_answers(self, source: str, request: type[Message]) -> None:
        """Stop losing answers."""
        for node in self.nodes:
            self.cluster.network.lose_answer(source, node.host, lambda data: False)

    def cut(self, one: SimNode, other: SimNode, for_s: float) -> None:
        for source, target in ((one, other), (other, one)):
            self.cluster.network.cut(source.host, target.host, self.now_s + for_s)

    def pause(self, node: SimNode) -> None:
        assert node.process is not None
        self.cluster.note(f"aimed: pause broker {node.id}")
        self.cluster.loop.pause(node.process)

    def stall(self, node: SimNode) -> None:
        """The event loop of the broker stands still, while its connection to ZooKeeper still works."""
        assert node.process is not None
        self.cluster.note(f"aimed: the loop of broker {node.id} stalls")
        self.cluster.loop.stall(node.process)

    def resume(self, node: SimNode) -> None:
        if node.process is not None and node.is_paused:
            self.cluster.note(f"aimed: resume broker {node.id}")
            self.cluster.loop.resume(node.process)

    async def restart(self, *nodes: SimNode) -> None:
        """Kill these brokers and start them again."""
        for node in nodes:
            node.kill()
        for node in nodes:
            node.start()
        await self.wait(lambda: all(node.is_ready for node in nodes), "the brokers answer again")


class ClusterStage(AimedStage):
    """The stage for rules of the control plane and of replication."""

    def __init__(self, cluster: SimCluster, aim: ClusterAim) -> None:
        super().__init__(cluster, aim.settings)
        self._act = aim.act

    async def _perform(self) -> None:
        await self._act(self)

    async def write(self, tp: TopicPartition, count: int = 1) -> None:
        """Append records, one batch each, with acks=all. They must be acknowledged."""
        for _ in range(count):
            expect(f"a record of {tp}", await self.try_write(await self.leader(tp), tp), ErrorCode.NONE)

    async def try_write(self, leader: SimNode, tp: TopicPartition) -> ErrorCode:
        return await self.try_append(leader, tp, build_batch([Record(timestamp=0, value=b"aimed")]))

    async def try_append(self, leader: SimNode, tp: TopicPartition, batch: bytes) -> ErrorCode:
        data = PartitionProduceData(index=tp.partition, records=batch)
        topic = TopicProduceData(name=tp.topic, partition_data=[data])
        request = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=1_000, topic_data=[topic])
        response = await self.ask(leader, request, 9)
        return ErrorCode(response.responses[0].partition_responses[0].error_code)

    def log(self, node: SimNode, tp: TopicPartition) -> Log:
        """The log of a broker that answers and hosts the partition."""
        assert node.broker is not None
        return node.broker.logs.logs[tp]

    def isr(self, tp: TopicPartition) -> frozenset[int]:
        """The ISR in ZooKeeper."""
        znode = self.cluster.zookeeper.tree.nodes[paths.partition_state_path(*tp)]
        return frozenset(decode_partition_state(tp, znode.data, znode.version).leader_and_isr.isr)

    async def in_sync(self, node: SimNode, longest_s: float = WAIT_S) -> None:
        """Wait until this broker is in the ISR of all partitions."""
        await self.wait(
            lambda: all(node.id in self.isr(tp) for tp in self.tps), f"broker {node.id} is in all ISRs", longest_s
        )

    def followers(self, leader: SimNode) -> list[SimNode]:
        return [node for node in self.nodes if node is not leader]


def expect(what: str, found: ErrorCode | None, *allowed: ErrorCode | None) -> None:
    """Raise Violation for another answer. None stands for no answer."""
    require(found in allowed, f"{what}: {_name(found)} instead of {' or '.join(map(_name, allowed))}")


def _name(code: ErrorCode | None) -> str:
    return "no answer" if code is None else code.name
