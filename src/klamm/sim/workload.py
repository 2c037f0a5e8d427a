"""Requests of users and tools during the faulty phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from klamm.controller.events import (
    AllocateProducerIds,
    ApiPartitionReassignment,
    ControllerEvent,
    CreatablePartitions,
    CreatableTopic,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    ElectionType,
    ListPartitionReassignments,
    ReplicaLeaderElection,
    TopicUncleanLeaderElectionEnable,
)
from klamm.controller.replies import EventReply, ProducerIdsBlock, TopicResults
from klamm.errors import ErrorCode
from klamm.model import ReplicaAssignment, TopicPartition
from klamm.sim.level1_faults import Faults
from klamm.sim.node import Node
from klamm.sim.violation import require
from klamm.sim.world import World
from klamm.sim.zookeeper import TOOLS_SESSION
from klamm.zk.model import paths
from klamm.zk.model.ops import Create, MultiFailed, SetData, WriteOp
from klamm.zk.model.znodes import (
    ProducerIdBlock,
    TopicZnode,
    decode_config,
    decode_producer_id_block,
    decode_topic,
    encode_config,
    encode_partitions,
    encode_producer_id_block,
    encode_reassignment,
    encode_topic,
)

Action = Callable[[], None]
UNCLEAN = "unclean.leader.election.enable"


def _learn_config(node: Node, topic: str) -> None:
    """Like `klamm.server.dynamic_config`: only the active controller is notified, and only of permissions."""
    data = node.world.zookeeper.tree.nodes.get(paths.config_entity_path("topics", topic))
    allowed = data is not None and decode_config("", data.data).get(UNCLEAN) == "true"
    if allowed and node.controller.is_active:
        node.put(TopicUncleanLeaderElectionEnable(topic))


class Workload:
    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.scheduler.rng
        self.topics = 0
        self.created: dict[str, object] = {}
        self.deleted: set[str] = set()
        self.unanswered: dict[int, tuple[str, Node, int]] = {}
        self._asked = 0
        self._answers_epoch = 0
        """The controller epoch of the broker that gave the current answer."""
        self._incarnations: Counter[str] = Counter()
        """Generation of a topic name: the answer to an earlier deletion says nothing about the current topic."""
        self.faults = Faults(self)

    def tick(self) -> None:
        """One fault or one piece of work, then the next some time later."""
        if self.world.calm:
            return
        actions = [*self.faults.actions(), *self._requests(), *self._tools()]
        (action,) = self.rng.choices([a for _, a in actions], [w for w, _ in actions])
        action()
        self.world.scheduler.at(self.rng.randint(10, 150), self.tick)

    def _requests(self) -> list[tuple[int, Action]]:
        return [
            (18, self._create_topics),
            (6, self._grow),
            (8, self._delete),
            (5, self._elect),
            (4, self._elect_unclean),
            (7, self._reassign),
            (3, self._move_to_and_fro),
            (5, self._allocate_producer_ids),
        ]

    def _tools(self) -> list[tuple[int, Action]]:
        return [
            (5, self._create_topic_by_znode),
            (3, self._grow_by_znode),
            (2, self._delete_by_znode),
            (2, self._reassign_by_znode),
            (1, self._elect_by_znode),
            (4, self._allow_unclean),
            (1, self._claim_producer_ids_by_znode),
        ]

    def up(self) -> list[Node]:
        return [node for node in self.world.nodes.values() if node.alive]

    # --- work asked of the controller --------------------------------------------------------------------------------

    def ask(self, event: ControllerEvent, on_reply: Callable[[EventReply], None], node: Node | None = None) -> None:
        """Submit an event at some broker, usually the controller. A broker that survives must answer."""
        up = self.up()
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
            self._answers_epoch = node.controller.context.epoch
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
                configs = ((UNCLEAN, "true"),) if self.rng.random() < 0.15 else ()
                count, factor = self.rng.randint(1, 3), self.rng.randint(1, len(self.world.nodes))
                specs.append(CreatableTopic(name, count, factor, configs=configs))
            else:
                replicas = self._replicas()
                specs.append(CreatableTopic(name, assignments=((0, replicas),)))

        self.ask(CreateTopics(tuple(specs)), self._on_created)

    def _on_created(self, reply: EventReply) -> None:
        assert isinstance(reply, TopicResults)
        is_current = self._answers_epoch == max(self.world.checkers.controllers, default=0)  # a zombie may err
        for result in reply.topics:
            taken = is_current and result.error is ErrorCode.TOPIC_ALREADY_EXISTS
            require(not taken, f"{result.name} was free when it was asked for and is said to exist already")
            if result.error is ErrorCode.NONE:
                self.created[result.name] = result.topic_id

    def _free_name(self) -> str:
        """Return a new name, or that of a deleted topic that is no longer in ZooKeeper.

        Kafka cannot handle a reused name without topic ids, or with a log left behind by a move.
        """
        left = {tp.topic for node in self.world.nodes.values() for tp in node.disk.logs}
        nodes = self.world.zookeeper.tree.nodes
        gone = [name for name in sorted(self.deleted - left) if paths.topic_path(name) not in nodes]
        if gone and self.world.protocol.has_topic_ids and self.rng.random() < 0.5:
            name = self.rng.choice(gone)
            self.deleted.discard(name)
            self.created.pop(name, None)
            self._incarnations[name] += 1
            return name
        self.topics += 1
        return f"t{self.topics}"

    def _grow(self) -> None:
        if names := self._names():
            name = self.rng.choice(names)
            self.ask(CreatePartitions((CreatablePartitions(name, self.rng.randint(2, 5)),)), lambda _: None)

    def _delete(self) -> None:
        if names := self._names():
            name = self.rng.choice(names)
            incarnation = self._incarnations[name]

            def on_reply(reply: EventReply) -> None:
                assert isinstance(reply, TopicResults)
                if reply.topics[0].error is ErrorCode.NONE and self._incarnations[name] == incarnation:
                    self.deleted.add(name)

            self.ask(DeleteTopics((name,)), on_reply)

    def _some_partition(self) -> TopicPartition | None:
        states = [p for p in self.world.zookeeper.tree.nodes if p.endswith("/state")]
        if not states:
            return None
        parts = self.rng.choice(states).split("/")
        return TopicPartition(parts[3], int(parts[5]))

    def _elect(self) -> None:
        tp = self._some_partition()
        wanted = None if tp is None or self.rng.random() < 0.3 else (tp,)
        self.ask(ReplicaLeaderElection(wanted, ElectionType.PREFERRED), lambda _: None)

    def _elect_unclean(self) -> None:
        """ElectLeaders of type UNCLEAN: between request and answer, records may be lost."""
        tp = self._some_partition()
        if tp is None:
            return
        self.world.faults["unclean elections asked for"] += 1
        rules = self.world.checkers.unclean
        wanted = None if self.rng.random() < 0.2 else (tp,)
        rules.asked(wanted)
        event = ReplicaLeaderElection(wanted, ElectionType.UNCLEAN)
        self.ask(event, lambda _: rules.answered(wanted))

    def _allow_unclean(self) -> None:
        """Set `unclean.leader.election.enable` of one topic; brokers are notified as by their config listeners."""
        if not (names := self._names()):
            return
        name = self.rng.choice(names)
        path = paths.config_entity_path("topics", name)
        value = "true" if self.rng.random() < 0.7 else "false"
        data = encode_config({UNCLEAN: value})
        there = path in self.world.zookeeper.tree.nodes
        known = paths.topic_path(name) in self.world.zookeeper.tree.nodes
        if known and self.tool(f"{name}: {UNCLEAN}={value}", SetData(path, data) if there else Create(path, data)):
            self.world.faults["unclean elections allowed for a topic"] += value == "true"
            for node in self.up():
                self.world.later(self.rng.randint(1, 30), partial(node.when_awake, partial(_learn_config, node, name)))

    def _allocate_producer_ids(self) -> None:
        node = self.rng.choice(up) if (up := self.up()) else None
        controller = self.world.nodes.get(node.broker.controller_id) if node is not None else None
        if node is None or controller is None or not controller.alive:
            return

        def on_reply(reply: EventReply) -> None:
            assert isinstance(reply, ProducerIdsBlock)
            if reply.error is ErrorCode.NONE:
                self.world.faults["blocks of producer ids"] += 1
                self.world.checkers.on_producer_ids(node.id, reply.start, reply.length)

        self.ask(AllocateProducerIds(node.id, node.broker.broker_epoch), on_reply, controller)
        if self.rng.random() < 0.3:
            self.world.later(self.rng.randint(1, 8), self._claim_producer_ids_by_znode)

    def _claim_producer_ids_by_znode(self) -> None:
        """Like brokers of a protocol before 3.0, without the controller."""
        node = self.world.zookeeper.tree.nodes[paths.PRODUCER_ID_BLOCK]
        last = decode_producer_id_block(node.data)
        start = 0 if last is None else last.block_end + 1
        data = encode_producer_id_block(ProducerIdBlock(0, start, start + 999))
        if self.tool("claims producer ids", SetData(paths.PRODUCER_ID_BLOCK, data, node.version)):
            self.world.checkers.on_producer_ids(0, start, 1000)

    def _move_to_and_fro(self) -> None:
        """A replica is removed and added again while its broker is slow: both requests wait in one queue."""
        tp = self._some_partition()
        znode = self.world.zookeeper.tree.nodes.get(paths.topic_path(tp.topic)) if tp is not None else None
        active = self.world.active()
        if tp is None or znode is None or not active:
            return
        replicas = decode_topic(tp.topic, znode.data).assignment[tp.partition].replicas
        if len(replicas) < 2:
            return
        away, kept = replicas[-1], replicas[:-1]
        self.world.faults["replicas moved to and fro"] += 1
        self.world.cut(active[0].id, away, self.rng.randint(200, 500))
        self.ask(CreateTopics((CreatableTopic(self._free_name(), assignments=((0, (away,)),)),)), self._on_created)
        for target in (kept, (*kept, away)):
            self.ask(ApiPartitionReassignment(((tp, target),)), lambda _: None, active[0])

    def _reassign(self) -> None:
        tp = self._some_partition()
        if tp is None:
            return
        target = None if self.rng.random() < 0.3 else self._replicas()
        self.ask(ApiPartitionReassignment(((tp, target),)), lambda _: None)
        self.ask(ListPartitionReassignments(), lambda _: None)

    # --- work of tools that write znodes -----------------------------------------------------------------------------

    def tool(self, what: str, *ops: WriteOp) -> bool:
        """A transaction of a tool or an operator; returns False if it failed."""
        if self.world.zookeeper.is_away:
            return False
        try:
            self.world.zookeeper.write(TOOLS_SESSION, ops)
        except MultiFailed:
            return False
        self.world.trace("tool", what)
        if self.world.recording is not None:
            self.world.recording.add("tool_write", -1, text=what, paths=[op.path for op in ops])
        return True

    def leave_note(self, what: str, note: Create) -> None:
        """Create a sequential znode, retrying until ZooKeeper is available."""
        if self.tool(what, note):
            self.world.notes_due -= 1
        else:
            self.world.later(50, partial(self.leave_note, what, note))

    def _create_topic_by_znode(self) -> None:
        self.topics += 1
        name = f"t{self.topics}"
        znode = TopicZnode({p: ReplicaAssignment(self._replicas()) for p in range(self.rng.randint(1, 3))})
        if self.tool(f"creates {name}", Create(paths.topic_path(name), encode_topic(znode))):
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
        self.tool(f"grows {name}", SetData(paths.topic_path(name), data, node.version))

    def _delete_by_znode(self) -> None:
        if (names := self._names()) and self.tool("deletes a topic", Create(paths.delete_topic_path(names[0]))):
            self.deleted.add(names[0])

    def _reassign_by_znode(self) -> None:
        tp = self._some_partition()
        if tp is not None:
            data = encode_reassignment({tp: self._replicas()})
            self.tool(f"reassigns {tp}", Create(paths.REASSIGN_PARTITIONS, data))

    def _elect_by_znode(self) -> None:
        tp = self._some_partition()
        if tp is not None:
            self.tool(f"elects {tp}", Create(paths.PREFERRED_REPLICA_ELECTION, encode_partitions([tp])))
