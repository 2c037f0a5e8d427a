"""What leaders do all the time: replicas that follow join the ISR, through the controller or in ZooKeeper itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.controller.events import AlterPartition, AlterPartitionItem
from klamm.controller.replies import AlterPartitionResults, EventReply
from klamm.errors import ErrorCode
from klamm.model import LeaderAndIsr, LeaderIsrAndControllerEpoch, TopicPartition
from klamm.sim.broker_model import Hosted
from klamm.sim.node import Node
from klamm.zk import paths
from klamm.zk.ops import Create, SetData
from klamm.zk.znodes import encode_partition_state, encode_partitions

if TYPE_CHECKING:
    from klamm.sim.workload import Workload

EVERY_MS = 80


class Leaders:
    def __init__(self, work: Workload) -> None:
        self._work = work
        self._world = work.world

    def tick(self) -> None:
        """Every leader that sees a replica follow in its epoch asks for it to join the ISR."""
        for node in self._world.nodes.values():
            awake = node.alive and node.paused_until_ms <= self._world.scheduler.time_ms
            if awake:
                for tp, mine in list(node.broker.hosted.items()):
                    if mine.leader == node.id:
                        self._maybe_expand(node, tp, mine)
        self._world.scheduler.at(EVERY_MS, self.tick)

    def _maybe_expand(self, node: Node, tp: TopicPartition, mine: Hosted) -> None:
        followers = tuple(r for r in mine.replicas if r in mine.isr or self._follows(r, tp, mine))
        if set(followers) == set(mine.isr):
            return
        if not self._world.protocol.has_alter_partition:
            self._write_isr(tp, mine, followers)
            return
        controller = self._world.nodes.get(node.broker.controller_id)
        if controller is not None and controller.alive:
            self._ask(node, controller, tp, mine, followers)

    def _ask(self, node: Node, controller: Node, tp: TopicPartition, mine: Hosted, isr: tuple[int, ...]) -> None:
        item = AlterPartitionItem(tp.partition, mine.leader_epoch, isr, mine.partition_epoch, topic=tp.topic)
        event = AlterPartition(node.id, node.broker.broker_epoch, (item,))
        world = self._world

        def take_over(reply: EventReply) -> None:
            assert isinstance(reply, AlterPartitionResults)
            if reply.error is not ErrorCode.NONE or node.broker.hosted.get(tp) is not mine:
                return
            state = reply.partitions[0].leader_and_isr
            if state is None or state.leader_epoch != mine.leader_epoch:
                return
            if state.partition_epoch > mine.partition_epoch:
                mine.isr, mine.partition_epoch = state.isr, state.partition_epoch

        def on_reply(reply: EventReply) -> None:
            if not world.answer_is_lost():
                world.later(world.network_delay_ms("late replies"), lambda: take_over(reply))

        copies = 1 + (not world.calm and world.scheduler.rng.random() < 0.2)
        for _ in range(copies):
            world.later(world.network_delay_ms(), lambda: self._work.ask(event, on_reply, controller))

    def _write_isr(self, tp: TopicPartition, mine: Hosted, isr: tuple[int, ...]) -> None:
        """As leaders did before AlterPartition: compare and swap of the state znode, then a note for the controller."""
        state = LeaderAndIsr(mine.leader, mine.leader_epoch, isr)
        data = encode_partition_state(LeaderIsrAndControllerEpoch(state, mine.controller_epoch))
        note = Create(paths.isr_change_path(), encode_partitions([tp]), sequential=True)
        written = SetData(paths.partition_state_path(*tp), data, mine.partition_epoch)
        if self._work.tool(f"leader of {tp}: isr {isr}", written):
            mine.isr, mine.partition_epoch = isr, mine.partition_epoch + 1
            delay = self._world.scheduler.rng.randint(1, 100)
            self._world.later(delay, lambda: self._work.leave_note("notes an ISR change", note))

    def _follows(self, replica: int, tp: TopicPartition, mine: Hosted) -> bool:
        other = self._world.nodes.get(replica)
        if other is None or not other.alive:
            return False
        theirs = other.broker.hosted.get(tp)
        return theirs is not None and theirs.leader_epoch == mine.leader_epoch and theirs.topic_id == mine.topic_id
