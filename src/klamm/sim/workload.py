"""What users, tools and fate do to the cluster while it is not calm, and what leaders do all the time."""

from __future__ import annotations

from collections.abc import Callable

from klamm.controller.events import (
    AlterPartition,
    AlterPartitionItem,
    ApiPartitionReassignment,
    ControlledShutdown,
    ControllerEvent,
    CreatablePartitions,
    CreatableTopic,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    ElectionType,
    ListPartitionReassignments,
    ReplicaLeaderElection,
)
from klamm.controller.replies import (
    AlterPartitionResults,
    ControlledShutdownResult,
    EventReply,
    TopicResults,
)
from klamm.errors import ErrorCode
from klamm.model import LeaderAndIsr, LeaderIsrAndControllerEpoch, ReplicaAssignment, TopicPartition
from klamm.sim.broker_model import Hosted
from klamm.sim.checkers import require
from klamm.sim.node import Node
from klamm.sim.world import World
from klamm.sim.zookeeper import TOOLS_SESSION
from klamm.zk import paths
from klamm.zk.ops import Create, Delete, MultiFailed, SetData, WriteOp
from klamm.zk.znodes import (
    TopicZnode,
    decode_topic,
    encode_partition_state,
    encode_partitions,
    encode_reassignment,
    encode_topic,
)


class Workload:
    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.scheduler.rng
        self.topics = 0
        self.created: dict[str, object] = {}
        self.deleted: set[str] = set()
        self.unanswered: dict[int, tuple[str, Node, int]] = {}
        self._asked = 0

    # --- faults ------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """One fault or one piece of work, then the next some time later."""
        if self.world.calm:
            return
        actions: list[tuple[int, Callable[[], None]]] = [
            (12, self._crash),
            (12, self._pause),
            (4, self._delete_controller_znode),
            (5, self._cut_link),
            (5, self._zookeeper_trouble),
            (18, self._create_topics),
            (5, self._create_topic_by_znode),
            (6, self._grow),
            (3, self._grow_by_znode),
            (8, self._delete),
            (2, self._delete_by_znode),
            (5, self._elect),
            (7, self._reassign),
            (2, self._reassign_by_znode),
            (1, self._elect_by_znode),
            (5, self._controlled_stop),
        ]
        (action,) = self.rng.choices([a for _, a in actions], [w for w, _ in actions])
        action()
        self.world.scheduler.at(self.rng.randint(10, 150), self.tick)

    def _up(self) -> list[Node]:
        return [node for node in self.world.nodes.values() if node.alive]

    def _crash(self) -> None:
        up = self._up()
        if len(up) > 1:
            self.world.crash(self.rng.choice(up), self.rng.randint(5, 80), self.rng.randint(5, 250))

    def _pause(self) -> None:
        if up := self._up():
            self.world.pause(self.rng.choice(up), self.rng.randint(20, 300))

    def _delete_controller_znode(self) -> None:
        """Sometimes twice: the second time before everybody has seen what the first one led to."""
        self._tool("deletes /controller", Delete(paths.CONTROLLER))
        if self.rng.random() < 0.5:
            self.world.scheduler.at(self.rng.randint(5, 80), self._tool, "deletes it again", Delete(paths.CONTROLLER))

    def _cut_link(self) -> None:
        source, target = self.rng.choice(list(self.world.nodes)), self.rng.choice(list(self.world.nodes))
        self.world.cut(source, target, self.rng.randint(50, 500))

    def _zookeeper_trouble(self) -> None:
        self.world.trace("zk", "ANSWERS GET LOST")
        self.world.zookeeper.loss_rate = 0.3
        self.world.scheduler.at(self.rng.randint(20, 200), self._zookeeper_heals)

    def _zookeeper_heals(self) -> None:
        self.world.zookeeper.loss_rate = 0.0

    def _controlled_stop(self) -> None:
        up = self._up()
        controllers = self.world.active()
        if len(up) < 2 or not controllers:
            return
        node = self.rng.choice(up)
        generation = node.generation

        def on_reply(reply: EventReply) -> None:
            assert isinstance(reply, ControlledShutdownResult)
            if reply.error is ErrorCode.NONE and not reply.remaining:
                stop()

        def stop() -> None:
            if node.generation == generation and node.alive:
                self.world.stop(node, self.rng.randint(5, 250))

        self.world.later(500, stop)
        event = ControlledShutdown(node.id, node.broker.broker_epoch)
        self._ask(event, on_reply, controllers[0])

    # --- work asked of the controller --------------------------------------------------------------------------------

    def _ask(self, event: ControllerEvent, on_reply: Callable[[EventReply], None], node: Node | None = None) -> None:
        """Puts an event at some broker, mostly at the controller. Whoever lives to answer must answer."""
        up = self._up()
        if not up:
            return
        if node is None:
            active = self.world.active()
            node = self.rng.choice(active if active and self.rng.random() < 0.9 else up)
        self._asked += 1
        number = self._asked
        self.unanswered[number] = (type(event).__name__, node, node.generation)

        def answered(reply: EventReply) -> None:
            require(number in self.unanswered, f"{event} was answered twice")
            del self.unanswered[number]
            on_reply(reply)

        node.put(event, answered)

    def _names(self) -> list[str]:
        return [name for name in self.created if name not in self.deleted]

    def _replicas(self) -> tuple[int, ...]:
        ids = list(self.world.nodes)
        return tuple(self.rng.sample(ids, self.rng.randint(1, min(3, len(ids)))))

    def _create_topics(self) -> None:
        specs = []
        for _ in range(self.rng.randint(1, 3)):
            name = self._free_name()
            if self.rng.random() < 0.5:
                specs.append(CreatableTopic(name, self.rng.randint(1, 3), self.rng.randint(1, len(self.world.nodes))))
            else:
                replicas = self._replicas()
                specs.append(CreatableTopic(name, assignments=((0, replicas),)))

        def on_reply(reply: EventReply) -> None:
            assert isinstance(reply, TopicResults)
            for result in reply.topics:
                taken = result.error is ErrorCode.TOPIC_ALREADY_EXISTS
                require(not taken, f"{result.name} was free when it was asked for and is said to exist already")
                if result.error is ErrorCode.NONE:
                    self.created[result.name] = result.topic_id

        self._ask(CreateTopics(tuple(specs)), on_reply)

    def _free_name(self) -> str:
        """A new name, or that of a topic that was deleted and is gone from ZooKeeper.

        Without topic ids, or with a log left behind by a move, a name that comes back is what Kafka cannot handle.
        """
        moved = {tp.topic for tp, _ in self.world.checkers.moved_away}
        nodes = self.world.zookeeper.tree.nodes
        gone = [name for name in sorted(self.deleted - moved) if paths.topic_path(name) not in nodes]
        if gone and self.world.protocol.has_topic_ids and self.rng.random() < 0.5:
            name = self.rng.choice(gone)
            self.deleted.discard(name)
            self.created.pop(name, None)
            return name
        self.topics += 1
        return f"t{self.topics}"

    def _grow(self) -> None:
        if names := self._names():
            name = self.rng.choice(names)
            self._ask(CreatePartitions((CreatablePartitions(name, self.rng.randint(2, 5)),)), lambda _: None)

    def _delete(self) -> None:
        if names := self._names():
            name = self.rng.choice(names)

            def on_reply(reply: EventReply) -> None:
                assert isinstance(reply, TopicResults)
                if reply.topics[0].error is ErrorCode.NONE:
                    self.deleted.add(name)

            self._ask(DeleteTopics((name,)), on_reply)

    def _some_partition(self) -> TopicPartition | None:
        states = [p for p in self.world.zookeeper.tree.nodes if p.endswith("/state")]
        if not states:
            return None
        parts = self.rng.choice(states).split("/")
        return TopicPartition(parts[3], int(parts[5]))

    def _elect(self) -> None:
        tp = self._some_partition()
        wanted = None if tp is None or self.rng.random() < 0.3 else (tp,)
        self._ask(ReplicaLeaderElection(wanted, ElectionType.PREFERRED), lambda _: None)

    def _reassign(self) -> None:
        tp = self._some_partition()
        if tp is None:
            return
        target = None if self.rng.random() < 0.3 else self._replicas()
        self._ask(ApiPartitionReassignment(((tp, target),)), lambda _: None)
        self._ask(ListPartitionReassignments(), lambda _: None)

    # --- work of tools that write znodes -----------------------------------------------------------------------------

    def _tool(self, what: str, *ops: WriteOp) -> bool:
        """A transaction of a tool or an operator; False when it did not happen."""
        try:
            self.world.zookeeper.write(TOOLS_SESSION, ops)
        except MultiFailed:
            return False
        self.world.trace("tool", what)
        return True

    def _create_topic_by_znode(self) -> None:
        self.topics += 1
        name = f"t{self.topics}"
        znode = TopicZnode({p: ReplicaAssignment(self._replicas()) for p in range(self.rng.randint(1, 3))})
        if self._tool(f"creates {name}", Create(paths.topic_path(name), encode_topic(znode))):
            self.created[name] = None

    def _grow_by_znode(self) -> None:
        if not (names := self._names()):
            return
        name = self.rng.choice(names)
        node = self.world.zookeeper.tree.nodes.get(paths.topic_path(name))
        if node is None:
            return
        old = decode_topic(name, node.data)
        grown = {**old.assignment, len(old.assignment): ReplicaAssignment(self._replicas())}
        data = encode_topic(TopicZnode(grown, old.topic_id, {"by": "tool"}))
        self._tool(f"grows {name}", SetData(paths.topic_path(name), data, node.version))

    def _delete_by_znode(self) -> None:
        if (names := self._names()) and self._tool("deletes a topic", Create(paths.delete_topic_path(names[0]))):
            self.deleted.add(names[0])

    def _reassign_by_znode(self) -> None:
        tp = self._some_partition()
        if tp is not None:
            data = encode_reassignment({tp: self._replicas()})
            self._tool(f"reassigns {tp}", Create(paths.REASSIGN_PARTITIONS, data))

    def _elect_by_znode(self) -> None:
        tp = self._some_partition()
        if tp is not None:
            self._tool(f"elects {tp}", Create(paths.PREFERRED_REPLICA_ELECTION, encode_partitions([tp])))

    # --- leaders -----------------------------------------------------------------------------------------------------

    def leaders_tick(self) -> None:
        """Every leader that sees a replica follow in its epoch asks for it to join the ISR, as by AlterPartition."""
        for node in self.world.nodes.values():
            awake = node.alive and node.paused_until_ms <= self.world.scheduler.time_ms
            if awake:
                for tp, mine in list(node.broker.hosted.items()):
                    if mine.leader == node.id:
                        self._maybe_expand(node, tp, mine)
        self.world.scheduler.at(80, self.leaders_tick)

    def _maybe_expand(self, node: Node, tp: TopicPartition, mine: Hosted) -> None:
        followers = [r for r in mine.replicas if r in mine.isr or self._follows(r, tp, mine)]
        if not self.world.protocol.has_alter_partition:
            self._write_isr(tp, mine, tuple(followers))
            return
        controller = self.world.nodes.get(node.broker.controller_id)
        if (
            tuple(followers) == mine.isr
            or set(followers) == set(mine.isr)
            or controller is None
            or not controller.alive
        ):
            return
        item = AlterPartitionItem(
            tp.partition, mine.leader_epoch, tuple(followers), mine.partition_epoch, topic=tp.topic
        )
        event = AlterPartition(node.id, node.broker.broker_epoch, (item,))

        def on_reply(reply: EventReply) -> None:
            assert isinstance(reply, AlterPartitionResults)
            now = node.broker.hosted.get(tp)
            if reply.error is ErrorCode.NONE and now is mine:
                state = reply.partitions[0].leader_and_isr
                is_newer = state is not None and state.partition_epoch > mine.partition_epoch
                if state is not None and is_newer and state.leader_epoch == mine.leader_epoch:
                    mine.isr, mine.partition_epoch = state.isr, state.partition_epoch

        copies = 1 + (not self.world.calm and self.rng.random() < 0.2)
        for _ in range(copies):
            self.world.later(self.world.network_delay_ms(), lambda: self._ask(event, on_reply, controller))

    def _write_isr(self, tp: TopicPartition, mine: Hosted, isr: tuple[int, ...]) -> None:
        """As leaders did before AlterPartition: compare and swap of the state znode, then a note for the controller."""
        if set(isr) == set(mine.isr):
            return
        state = LeaderAndIsr(mine.leader, mine.leader_epoch, isr)
        data = encode_partition_state(LeaderIsrAndControllerEpoch(state, mine.controller_epoch))
        note = Create(paths.isr_change_path(), encode_partitions([tp]), sequential=True)
        if self._tool(
            f"leader of {tp}: isr {isr}", SetData(paths.partition_state_path(*tp), data, mine.partition_epoch)
        ):
            mine.isr, mine.partition_epoch = isr, mine.partition_epoch + 1
            self.world.scheduler.at(self.rng.randint(1, 100), self._tool, "notes an ISR change", note)

    def _follows(self, replica: int, tp: TopicPartition, mine: Hosted) -> bool:
        other = self.world.nodes.get(replica)
        if other is None or not other.alive:
            return False
        theirs = other.broker.hosted.get(tp)
        return theirs is not None and theirs.leader_epoch == mine.leader_epoch and theirs.topic_id == mine.topic_id
