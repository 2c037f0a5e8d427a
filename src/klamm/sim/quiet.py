"""Invariants of the quiet state: all brokers live, nothing is in flight, and nothing was forgotten."""

from __future__ import annotations

from collections.abc import Mapping

from klamm.controller.context import ControllerContext
from klamm.controller.states import PartitionState
from klamm.model import NO_LEADER, ZERO_UUID, LeaderIsrAndControllerEpoch, ReplicaAssignment, TopicPartition
from klamm.sim.node import Node
from klamm.sim.violation import require
from klamm.sim.workload import Workload
from klamm.sim.world import World
from klamm.zk.model import paths
from klamm.zk.model.broker_znode import decode_broker
from klamm.zk.model.znodes import (
    TopicZnode,
    decode_controller,
    decode_partition_state,
    decode_reassignment,
    decode_topic,
)

States = dict[TopicPartition, LeaderIsrAndControllerEpoch]
Assignments = dict[TopicPartition, ReplicaAssignment]


def check_quiet(world: World, work: Workload) -> None:
    topics = _topics(world)
    states = _states(world)
    assignments = {TopicPartition(t, p): a for t, znode in topics.items() for p, a in znode.assignment.items()}
    controller = _check_controller(world)
    _check_answers(work)
    _check_work(world, work, topics, states)
    _check_partitions(world, assignments, states)
    for node in world.nodes.values():
        _check_cache(world, node, controller, states, assignments)
        _check_replicas(node, assignments, states, topics)
        _check_logs(world, node, assignments, topics)
    check_context(controller.controller.context, assignments, states)
    _check_strays(world, controller.controller.context)


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


def _check_work(world: World, work: Workload, topics: dict[str, TopicZnode], states: States) -> None:
    nodes = world.zookeeper.tree.nodes
    for name, topic_id in work.created.items():
        if name in work.deleted:
            continue
        if topic_id is not None and name in topics and world.protocol.has_topic_ids:
            require(topics[name].topic_id == topic_id, f"topic {name} changed its id")
        require(name in topics or paths.topic_path(name) not in nodes, f"topic {name} cannot be read")
    for name in work.deleted:
        stuck = name in topics and _has_unreachable_log(world, name, topics[name])
        require(name not in topics or stuck, f"topic {name} was to be deleted and is still there")
    for name, znode in topics.items():
        has_id = znode.topic_id is not None or not world.protocol.has_topic_ids
        require(has_id, f"topic {name} has no id")
    left = [t for t in nodes[paths.DELETE_TOPICS].children or {} if not _has_unreachable_log(world, t, topics.get(t))]
    require(not left, f"deletions not done: {sorted(left)}")
    require(paths.PREFERRED_REPLICA_ELECTION not in nodes, f"{paths.PREFERRED_REPLICA_ELECTION} is still there")
    if paths.REASSIGN_PARTITIONS in nodes:
        wanted = decode_reassignment(nodes[paths.REASSIGN_PARTITIONS].data)
        waiting = [tp for tp in wanted if _is_waiting(tp, topics, states)]
        require(bool(waiting), f"{paths.REASSIGN_PARTITIONS} is still there")


def _is_waiting(tp: TopicPartition, topics: dict[str, TopicZnode], states: States) -> bool:
    """Whether a move cannot end yet; without a leader, a mere change of the replica order waits too."""
    moves = tp.topic in topics and topics[tp.topic].assignment[tp.partition].is_being_reassigned
    return moves or (tp in states and states[tp].leader_and_isr.leader == NO_LEADER)


def _has_unreachable_log(world: World, topic: str, znode: TopicZnode | None) -> bool:
    """A replica in a failed log directory cannot be deleted before its broker restarts."""
    assignment = {} if znode is None else znode.assignment
    return any(
        TopicPartition(topic, p) in world.nodes[r].broker.offline for p, a in assignment.items() for r in a.replicas
    )


def _online(world: World, tp: TopicPartition, replicas: tuple[int, ...]) -> list[int]:
    """All brokers live, so only a failed log directory keeps a replica offline."""
    return [r for r in replicas if tp not in world.nodes[r].broker.offline]


def _check_partitions(world: World, assignments: Assignments, states: States) -> None:
    for tp, assignment in assignments.items():
        if paths.delete_topic_path(tp.topic) in world.zookeeper.tree.nodes:
            continue
        online = _online(world, tp, assignment.replicas)
        if tp not in states:
            require(not online, f"{tp} has no state: a half-created topic")
            continue
        state = states[tp].leader_and_isr
        able = [r for r in state.isr if r in online]
        target = assignment.target_replicas
        stuck = len(_online(world, tp, target)) < len(target) or state.leader == NO_LEADER
        ends = stuck or not assignment.is_being_reassigned
        require(ends, f"the reassignment of {tp} does not end: {assignment}, {state}")
        if able or (online and world.checkers.unclean.allows(tp.topic)):
            require(
                state.leader in online, f"{tp} has ISR {state.isr}, of which {able} can lead, and {state.leader} does"
            )
        else:
            require(state.leader == NO_LEADER, f"{tp} is led by {state.leader}, whose log is gone")
        require(
            len(state.isr) == 1 or state.isr == tuple(able), f"the ISR of {tp} has members that are offline: {state}"
        )
        require(
            state.leader in (NO_LEADER, *assignment.replicas),
            f"the leader of {tp} is not a replica: {assignment} {state}",
        )
        outside = [r for r in state.isr if r not in assignment.replicas]
        world.tails.check_quiet(tp, world.nodes[state.isr[0]].disk.logs.get(tp, ZERO_UUID), state)
        require(not outside, f"the ISR of {tp} has members outside its replicas: {outside}")
    for tp in states:
        require(tp in assignments, f"{tp} has a state and no assignment")


def _check_cache(world: World, node: Node, controller: Node, states: States, assignments: Assignments) -> None:
    """Every cache equals ZooKeeper: the brokers, their addresses, and exactly its partitions."""
    broker = node.broker
    require(broker.controller_id == controller.id, f"broker {node.id} takes {broker.controller_id} for the controller")
    znodes = {b: world.zookeeper.tree.nodes[paths.broker_path(b)] for b in world.nodes}
    brokers = {b: decode_broker(b, znode.data, znode.czxid).broker for b, znode in znodes.items()}
    require(dict(broker.live) == brokers, f"broker {node.id} takes {broker.live} for the brokers, they are {brokers}")
    cache = broker.cache
    for tp, state in states.items():
        if paths.delete_topic_path(tp.topic) in world.zookeeper.tree.nodes:
            require(tp not in cache, f"broker {node.id} knows {tp}, which is being deleted")
            continue
        cached = cache.get(tp)
        require(cached is not None, f"broker {node.id} does not know {tp}")
        assert cached is not None
        want, replicas = state.leader_and_isr, assignments[tp].replicas
        online = _online(world, tp, replicas)
        offline = tuple(r for r in replicas if r not in online)
        seen = (cached.leader, cached.leader_epoch, cached.isr, cached.partition_epoch, cached.replicas)
        truth = (want.leader, want.leader_epoch, want.isr, want.partition_epoch, replicas)
        require(seen == truth, f"broker {node.id} has {tp} as {seen}, ZooKeeper {truth}")
        require(
            cached.offline_replicas == offline,
            f"broker {node.id} takes {cached.offline_replicas} of {tp} for offline: it is {offline}",
        )
    extra = [tp for tp in cache if tp not in states]
    require(not extra, f"broker {node.id} still knows {extra}")


def _check_replicas(node: Node, assignments: Assignments, states: States, topics: dict[str, TopicZnode]) -> None:
    """Every broker hosts exactly its assigned replicas, in the right role."""
    for tp, assignment in assignments.items():
        deleting = paths.delete_topic_path(tp.topic) in node.world.zookeeper.tree.nodes
        if node.id not in assignment.replicas or tp in node.broker.offline or deleting or tp not in states:
            continue
        mine = node.broker.hosted.get(tp)
        require(mine is not None, f"broker {node.id} received no request to host {tp}")
        assert mine is not None
        want = states[tp].leader_and_isr
        require(
            (mine.leader, mine.leader_epoch) == (want.leader, want.leader_epoch),
            f"broker {node.id} hosts {tp} as {mine}, ZooKeeper has {want}",
        )
        require(
            mine.topic_id == (topics[tp.topic].topic_id or ZERO_UUID), f"broker {node.id} hosts {tp} under another id"
        )


def _check_logs(world: World, node: Node, assignments: Assignments, topics: dict[str, TopicZnode]) -> None:
    """No log is left behind, except of a deleted topic whose controller was deposed too early.

    Logs in failed directories do not count either.
    """
    last_epoch = max(world.checkers.controllers)
    for tp, topic_id in node.disk.logs.items():
        assigned = tp in assignments and node.id in assignments[tp].replicas
        is_gone = tp.topic not in topics or topics[tp.topic].topic_id not in (None, topic_id)
        forgotten = is_gone and world.checkers.left.get((tp, node.id), last_epoch) < last_epoch
        excused = assigned or forgotten or tp in node.broker.offline
        require(excused, f"broker {node.id} still has the log of {tp}, which was deleted or moved away")
        if assigned and tp not in node.broker.offline:
            mine = topics[tp.topic].topic_id or ZERO_UUID
            require(topic_id == mine, f"the log of {tp} on broker {node.id} belongs to another topic of that name")


def _check_strays(world: World, ctx: ControllerContext) -> None:
    """Every broker has confirmed the deletion of replicas that this controller took away, if it can."""
    for broker, tps in ctx.deletions.strays.items():
        gone = [tp for tp in tps if broker not in ctx.topics.assignment(tp).replicas]
        left = [tp for tp in gone if tp not in world.nodes[broker].broker.offline]
        require(not left, f"broker {broker} received no request to delete {left}, which were moved away")


def check_context(ctx: ControllerContext, assignments: Assignments, states: States) -> None:
    """The cache equals ZooKeeper, and every index and counter equals a recount."""
    cached = {tp: ctx.topics.assignment(tp) for tp in ctx.topics.all_partitions()}
    require(cached == assignments, "the controller's assignments differ from ZooKeeper's")
    leadership = ctx.states.leadership
    require(leadership == states, f"the controller's states differ: {_difference(leadership, states)}")
    by_leader: dict[int, set[TopicPartition]] = {}
    for tp, state in states.items():
        by_leader.setdefault(state.leader_and_isr.leader, set()).add(tp)
    require({b: set(tps) for b, tps in ctx.states.by_leader.items()} == by_leader, "the index by leader is wrong")
    by_broker: dict[int, set[TopicPartition]] = {}
    for tp, assignment in assignments.items():
        for replica in assignment.replicas:
            by_broker.setdefault(replica, set()).add(tp)
    require({b: set(tps) for b, tps in ctx.topics.by_broker.items()} == by_broker, "the index by broker is wrong")
    offline = sum(state is PartitionState.OFFLINE for state in ctx.states.partitions.values())
    counted = ctx.states.offline_partition_count
    require(counted == offline, f"offline: counted {counted}, are {offline}")
    imbalance = sum(_is_imbalanced(ctx, tp, a, states) for tp, a in assignments.items())
    require(ctx.states.preferred_replica_imbalance_count == imbalance, "the count of imbalanced partitions is wrong")


def _is_imbalanced(ctx: ControllerContext, tp: TopicPartition, assignment: ReplicaAssignment, states: States) -> bool:
    """Whether a replica other than the preferred one leads; an added replica is preferred only once it is in sync."""
    if tp not in states or ctx.deletions.is_queued(tp.topic):
        return False
    preferred, state = assignment.replicas[0], states[tp].leader_and_isr
    is_on_its_way = preferred in assignment.adding_replicas and preferred not in state.isr
    return state.leader != preferred and not is_on_its_way


def _difference(cached: Mapping[TopicPartition, LeaderIsrAndControllerEpoch], truth: States) -> str:
    wrong = [tp for tp in (*cached, *truth) if cached.get(tp) != truth.get(tp)]
    return ", ".join(f"{tp} {cached.get(tp)} != {truth.get(tp)}" for tp in wrong[:2])
