"""What must hold when all is quiet: everybody lives, nothing is on its way, and nothing was forgotten."""

from __future__ import annotations

from klamm.controller.context import ControllerContext
from klamm.controller.states import PartitionState
from klamm.model import NO_LEADER, ZERO_UUID, LeaderIsrAndControllerEpoch, ReplicaAssignment, TopicPartition
from klamm.sim.checkers import require
from klamm.sim.node import Node
from klamm.sim.workload import Workload
from klamm.sim.world import World
from klamm.zk import paths
from klamm.zk.znodes import TopicZnode, decode_controller, decode_partition_state, decode_topic

States = dict[TopicPartition, LeaderIsrAndControllerEpoch]
Assignments = dict[TopicPartition, ReplicaAssignment]


def check_quiet(world: World, work: Workload) -> None:
    topics = _topics(world)
    states = _states(world)
    assignments = {TopicPartition(t, p): a for t, znode in topics.items() for p, a in znode.assignment.items()}
    controller = _check_controller(world)
    _check_answers(work)
    _check_work(world, work, topics)
    _check_partitions(world, assignments, states)
    for node in world.nodes.values():
        _check_cache(world, node, controller, states)
        _check_replicas(node, assignments, states, topics)
    check_context(controller.controller.context, assignments, states)


def _topics(world: World) -> dict[str, TopicZnode]:
    children = world.zookeeper.tree.nodes[paths.TOPICS].children or {}
    return {t: decode_topic(t, world.zookeeper.tree.nodes[paths.topic_path(t)].data) for t in children}


def _states(world: World) -> States:
    states = {}
    for path, node in world.zookeeper.tree.nodes.items():
        if path.endswith("/state"):
            _, _, _, topic, _, partition, _ = path.split("/")
            tp = TopicPartition(topic, int(partition))
            states[tp] = decode_partition_state(tp, node.data, node.version)
    return states


def _check_controller(world: World) -> Node:
    znode = world.zookeeper.tree.nodes.get(paths.CONTROLLER)
    require(znode is not None, "there is no controller")
    assert znode is not None
    active = world.active()
    require(len(active) == 1, f"active controllers: {[node.id for node in active]}")
    require(decode_controller(znode.data).broker_id == active[0].id, "/controller names a broker that is not active")
    for node in world.nodes.values():
        require(node.alive, f"broker {node.id} is down")
        require(node.running is None and not node.queue, f"broker {node.id} is still busy")
        require(paths.broker_path(node.id) in world.zookeeper.tree.nodes, f"broker {node.id} is not registered")
    return active[0]


def _check_answers(work: Workload) -> None:
    for name, node, generation in work.unanswered.values():
        require(node.generation != generation, f"a {name} at broker {node.id} was never answered")


def _check_work(world: World, work: Workload, topics: dict[str, TopicZnode]) -> None:
    nodes = world.zookeeper.tree.nodes
    for name, topic_id in work.created.items():
        if name in work.deleted:
            continue
        if topic_id is not None and name in topics and world.protocol.has_topic_ids:
            require(topics[name].topic_id == topic_id, f"topic {name} changed its id")
        require(name in topics or paths.topic_path(name) not in nodes, f"topic {name} cannot be read")
    for name in work.deleted:
        require(name not in topics, f"topic {name} was to be deleted and is still there")
    for name, znode in topics.items():
        has_id = znode.topic_id is not None or not world.protocol.has_topic_ids
        require(has_id, f"topic {name} has no id")
    left = nodes[paths.DELETE_TOPICS].children or {}
    require(not left, f"deletions not done: {sorted(left)}")
    for path in (paths.PREFERRED_REPLICA_ELECTION, paths.REASSIGN_PARTITIONS):
        require(path not in nodes, f"{path} is still there")


def _check_partitions(world: World, assignments: Assignments, states: States) -> None:
    live = set(world.nodes)
    for tp, assignment in assignments.items():
        require(tp in states, f"{tp} has no state: a half-created topic")
        state = states[tp].leader_and_isr
        require(not assignment.is_being_reassigned, f"the reassignment of {tp} does not end: {assignment}, {state}")
        if set(state.isr) & live:
            require(state.leader in live, f"{tp} has live ISR members {state.isr} and leader {state.leader}")
        require(
            state.leader in (NO_LEADER, *assignment.replicas), f"the leader of {tp} is no replica: {assignment} {state}"
        )
        outside = [r for r in state.isr if r not in assignment.replicas]
        require(not outside, f"the ISR of {tp} has members outside its replicas: {outside}")
    for tp in states:
        require(tp in assignments, f"{tp} has a state and no assignment")


def _check_cache(world: World, node: Node, controller: Node, states: States) -> None:
    broker = node.broker
    require(broker.controller_id == controller.id, f"broker {node.id} takes {broker.controller_id} for the controller")
    epochs = {b: world.zookeeper.tree.nodes[paths.broker_path(b)].czxid for b in world.nodes}
    known = {b: seen.epoch for b, seen in broker.live.items()}
    require(known == epochs, f"broker {node.id} takes {known} for the live brokers, they are {epochs}")
    for tp, state in states.items():
        cached = broker.cache.get(tp)
        require(cached is not None, f"broker {node.id} does not know {tp}")
        assert cached is not None
        want = state.leader_and_isr
        seen = (cached.leader, cached.leader_epoch, cached.isr, cached.zk_version)
        truth = (want.leader, want.leader_epoch, want.isr, want.partition_epoch)
        require(seen == truth, f"broker {node.id} has {tp} as {seen}, ZooKeeper {truth}")
        require(cached.offline_replicas == (), f"broker {node.id} takes replicas of {tp} for offline")
    if len(world.checkers.controllers) == 1:  # Kafka's limit: a new controller does not know what the last one deleted
        extra = [tp for tp in broker.cache if tp not in states]
        require(not extra, f"broker {node.id} still knows {extra}")


def _check_replicas(node: Node, assignments: Assignments, states: States, topics: dict[str, TopicZnode]) -> None:
    for tp, assignment in assignments.items():
        if node.id not in assignment.replicas:
            continue
        mine = node.broker.hosted.get(tp)
        require(mine is not None, f"broker {node.id} was not told to host {tp}")
        assert mine is not None
        want = states[tp].leader_and_isr
        require(
            (mine.leader, mine.leader_epoch) == (want.leader, want.leader_epoch),
            f"broker {node.id} hosts {tp} as {mine}, ZooKeeper has {want}",
        )
        require(
            mine.topic_id == (topics[tp.topic].topic_id or ZERO_UUID), f"broker {node.id} hosts {tp} under another id"
        )
    for tp in node.disk.logs:
        moved_away = (tp, node.id) in node.world.checkers.moved_away
        require(tp in assignments or moved_away, f"broker {node.id} still has the log of {tp}, which is deleted")


def check_context(ctx: ControllerContext, assignments: Assignments, states: States) -> None:
    """The cache equals ZooKeeper, and every index and counter equals what counting anew gives."""
    cached = {tp: ctx.assignment(tp) for tp in ctx.all_partitions()}
    require(cached == assignments, "the controller's assignments differ from ZooKeeper's")
    require(ctx.leadership == states, f"the controller's states differ: {_difference(ctx.leadership, states)}")
    by_leader: dict[int, set[TopicPartition]] = {}
    for tp, state in states.items():
        by_leader.setdefault(state.leader_and_isr.leader, set()).add(tp)
    require({b: set(tps) for b, tps in ctx.partitions_by_leader.items()} == by_leader, "the index by leader is wrong")
    by_broker: dict[int, set[TopicPartition]] = {}
    for tp, assignment in assignments.items():
        for replica in assignment.replicas:
            by_broker.setdefault(replica, set()).add(tp)
    require({b: set(tps) for b, tps in ctx.partitions_by_broker.items()} == by_broker, "the index by broker is wrong")
    offline = sum(state is PartitionState.OFFLINE for state in ctx.partition_states.values())
    require(ctx.offline_partition_count == offline, f"offline: counted {ctx.offline_partition_count}, are {offline}")
    imbalance = sum(states[tp].leader_and_isr.leader != a.replicas[0] for tp, a in assignments.items())
    require(ctx.preferred_replica_imbalance_count == imbalance, "the count of imbalanced partitions is wrong")
    require(ctx.partition_count == len(states), "the count of partitions is wrong")


def _difference(cached: States, truth: States) -> str:
    wrong = [tp for tp in (*cached, *truth) if cached.get(tp) != truth.get(tp)]
    return ", ".join(f"{tp} {cached.get(tp)} != {truth.get(tp)}" for tp in wrong[:2])
