"""ISR maintenance of leaders, as in `klamm.replica`: followers join the ISR, lagging ones leave it.

A change goes through the controller, or directly to ZooKeeper with older protocols. A proposal stays the only one until
it is decided: without an answer it is sent again unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.controller.events import AlterPartition, AlterPartitionItem
from klamm.controller.replies import AlterPartitionResults, EventReply
from klamm.errors import ErrorCode
from klamm.model import LeaderAndIsr, LeaderIsrAndControllerEpoch, TopicPartition
from klamm.replica.alter_partition_manager import REJECTED, WAIT_FOR_CONTROLLER
from klamm.sim.broker_model import Hosted
from klamm.sim.node import Node
from klamm.zk.model import paths
from klamm.zk.model.ops import Create, SetData
from klamm.zk.model.znodes import encode_partition_state, encode_partitions

if TYPE_CHECKING:
    from klamm.sim.workload import Workload

EVERY_MS = 80


class Leaders:
    def __init__(self, work: Workload) -> None:
        self._work = work
        self._world = work.world

    def tick(self) -> None:
        """Every leader checks its replicas and its proposals."""
        for node in self._world.nodes.values():
            if node.alive and self._is_awake(node):
                for tp, mine in list(node.broker.hosted.items()):
                    if mine.leader == node.id:
                        self._replicate(node, tp, mine)
                        self._look_after(node, tp, mine)
        if self._world.recording is not None:
            nodes = self._world.nodes.items()
            self._world.recording.sample_replicas({i: node.broker for i, node in nodes if node.alive})
        self._world.scheduler.at(EVERY_MS, self.tick)

    def _is_awake(self, node: Node) -> bool:
        return node.paused_until_ms <= self._world.scheduler.time_ms

    def _replicate(self, node: Node, tp: TopicPartition, mine: Hosted) -> None:
        nodes = self._world.nodes
        others = [r for r in mine.replicas if r != node.id and r in nodes and self._follows(r, tp, mine)]
        fetching = [nodes[r] for r in others if not self._world.is_cut(r, node.id)]
        self._world.tails.replicate(node, tp, mine, fetching)

    def _look_after(self, node: Node, tp: TopicPartition, mine: Hosted) -> None:
        if mine.pending_isr is None:
            isr = self._in_sync(node, tp, mine)
            if set(isr) == set(mine.isr):
                return
            if not self._world.protocol.has_alter_partition:
                self._write_isr(tp, mine, isr)
                return
            mine.pending_isr = isr
        controller = self._world.nodes.get(node.broker.controller_id)
        if not mine.waits_for_controller and controller is not None and controller.alive:
            self._ask(node, controller, tp, mine, mine.pending_isr)

    def _in_sync(self, node: Node, tp: TopicPartition, mine: Hosted) -> tuple[int, ...]:
        """Return the ISR with a follower added or lagging members removed; unchanged if there is nothing to do."""
        joining = [
            r
            for r in mine.replicas
            if r not in mine.isr and self._follows(r, tp, mine) and self._has_all(node, r, tp, mine)
        ]
        if joining or self._world.calm:  # in a healthy cluster no follower lags for long
            return (*mine.isr, *joining[:1])
        rng, lagging = self._world.scheduler.rng, self._world.chances.lagging_member
        lost = [r for r in mine.isr if r != node.id and not self._follows(r, tp, mine) and rng.random() < lagging]
        return tuple(r for r in mine.isr if r not in lost)

    def _has_all(self, node: Node, replica: int, tp: TopicPartition, mine: Hosted) -> bool:
        """Decide by the follower's last fetch and its incarnation."""
        now = (len(node.disk.records[tp]), self._world.nodes[replica].broker.broker_epoch)
        return mine.fetched.get(replica) == now

    def _follows(self, replica: int, tp: TopicPartition, mine: Hosted) -> bool:
        other = self._world.nodes.get(replica)
        if other is None or not other.alive or not self._is_awake(other):
            return False
        theirs = other.broker.hosted.get(tp)
        return theirs is not None and theirs.leader_epoch == mine.leader_epoch and theirs.topic_id == mine.topic_id

    # --- through the controller --------------------------------------------------------------------------------------

    def _ask(self, node: Node, controller: Node, tp: TopicPartition, mine: Hosted, isr: tuple[int, ...]) -> None:
        world = self._world
        epochs = tuple(-1 if r in mine.isr or r not in mine.fetched else mine.fetched[r][1] for r in isr)
        epochs = epochs if world.protocol.has_topic_ids else ()
        item = AlterPartitionItem(
            tp.partition, mine.leader_epoch, isr, mine.partition_epoch, topic=tp.topic, isr_broker_epochs=epochs
        )
        event = AlterPartition(node.id, node.broker.broker_epoch, (item,))

        def on_reply(reply: EventReply) -> None:
            assert isinstance(reply, AlterPartitionResults)
            if not world.answer_is_lost():
                delay = world.network_delay_ms("late replies")
                world.later(delay, lambda: self._settle(node, tp, mine, isr, reply))

        if world.recording is not None:
            of = {"topic": tp.topic, "partition": tp.partition, "leader_epoch": mine.leader_epoch, "isr": list(isr)}
            world.recording.add("proposal_sent", node.id, target=controller.id, **of)
        copies = 1 + (not world.calm and world.scheduler.rng.random() < world.chances.repeated_proposal)
        for _ in range(copies):
            world.later(world.network_delay_ms(), lambda: self._work.ask(event, on_reply, controller))

    @staticmethod
    def _settle(
        node: Node, tp: TopicPartition, mine: Hosted, isr: tuple[int, ...], reply: AlterPartitionResults
    ) -> None:
        """Apply the controller's answer if it is still awaited. Any other error is retried."""
        if reply.error is not ErrorCode.NONE or node.broker.hosted.get(tp) is not mine or mine.pending_isr is not isr:
            return
        result = reply.partitions[0]
        state = result.leader_and_isr
        if result.error in REJECTED:
            mine.pending_isr = None
        elif result.error in WAIT_FOR_CONTROLLER:
            mine.waits_for_controller = True
        elif state is not None and state.leader_epoch == mine.leader_epoch:
            assert state.partition_epoch >= mine.partition_epoch
            mine.isr, mine.partition_epoch, mine.pending_isr = state.isr, state.partition_epoch, None

    # --- into ZooKeeper ----------------------------------------------------------------------------------------------

    def _write_isr(self, tp: TopicPartition, mine: Hosted, isr: tuple[int, ...]) -> None:
        """Like leaders before AlterPartition: compare and swap of the state znode, then a notification for the
        controller."""
        state = LeaderAndIsr(mine.leader, mine.leader_epoch, isr)
        data = encode_partition_state(LeaderIsrAndControllerEpoch(state, mine.controller_epoch))
        note = Create(paths.isr_change_path(), encode_partitions([tp]), sequential=True)
        written = SetData(paths.partition_state_path(*tp), data, mine.partition_epoch)
        if self._work.tool(f"leader of {tp}: isr {isr}", written):
            mine.isr, mine.partition_epoch = isr, mine.partition_epoch + 1
            delay = self._world.scheduler.rng.randint(1, 100)
            self._world.later(delay, lambda: self._work.leave_note("notes an ISR change", note))
            self._world.notes_due += 1
