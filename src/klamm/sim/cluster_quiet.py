"""Invariants of a whole cluster in which all brokers live and nothing happens."""

from __future__ import annotations

from collections.abc import Sequence

from klamm.broker import Broker
from klamm.log.log import Log
from klamm.log.results import ReadResult
from klamm.model import LeaderAndIsr, TopicPartition
from klamm.protocol.record_batch import batches
from klamm.sim.checkers import require
from klamm.sim.clients import Consumer
from klamm.sim.cluster import SimCluster
from klamm.sim.compacted_logs import differences
from klamm.zk.model import paths
from klamm.zk.model.znodes import decode_controller, decode_partition_state, decode_topic

States = dict[TopicPartition, LeaderAndIsr]


def check_quiet(cluster: SimCluster, topics: Sequence[TopicPartition], consumers: Sequence[Consumer]) -> None:
    """Raise Violation for the first condition that does not hold (yet)."""
    brokers = _brokers(cluster)
    _check_controller(cluster, brokers)
    states = _states(cluster)
    for tp in topics:
        require(tp in states, f"{tp} has no state")
    _check_states(cluster, states, brokers)
    for broker in brokers.values():
        _check_cache(cluster, broker, states)
        _check_replicas(broker, states)
        _check_strays(broker, states)
    for tp, state in states.items():
        _check_logs(tp, brokers[state.leader], [brokers[replica] for replica in state.isr])
    for consumer in consumers:
        end = _log(brokers[states[consumer.tp].leader], consumer.tp).log_end_offset
        require(consumer.offset == end, f"a consumer of {consumer.tp} is at {consumer.offset}, the log ends at {end}")


def led_from_failed_disks(cluster: SimCluster) -> list[TopicPartition]:
    """Return partitions whose leader has a failed disk while another member of the ISR could lead."""
    nodes = cluster.nodes
    failed = {n.id for n in nodes.values() if n.broker is not None and not n.broker.logs.dirs.live}
    able = {n.id for n in nodes.values() if n.broker is not None and not n.is_disk_broken}
    return [tp for tp, s in _states(cluster).items() if s.leader in failed and any(r in able for r in s.isr)]


def _brokers(cluster: SimCluster) -> dict[int, Broker]:
    brokers = {}
    for node in cluster.nodes.values():
        broker = node.broker
        require(broker is not None, f"broker {node.id} does not answer")
        assert broker is not None
        znode = cluster.zookeeper.tree.nodes.get(paths.broker_path(node.id))
        require(znode is not None, f"broker {node.id} is not registered")
        assert znode is not None
        require(broker.broker_epoch == znode.czxid, f"broker {node.id} takes {broker.broker_epoch} for its epoch")
        brokers[node.id] = broker
    return brokers


def _check_controller(cluster: SimCluster, brokers: dict[int, Broker]) -> None:
    znode = cluster.zookeeper.tree.nodes.get(paths.CONTROLLER)
    require(znode is not None, "there is no controller")
    assert znode is not None
    owner = decode_controller(znode.data).broker_id
    active = [broker.id for broker in brokers.values() if broker.controller.is_active]
    require(active == [owner], f"active controllers: {active}, /controller names {owner}")
    for broker in brokers.values():
        seen = broker.metadata.controller_id
        require(seen == owner, f"broker {broker.id} takes {seen} for the controller, it is {owner}")


def _states(cluster: SimCluster) -> States:
    nodes = cluster.zookeeper.tree.nodes
    states = {}
    for topic in nodes[paths.TOPICS].children or {}:
        for partition in decode_topic(topic, nodes[paths.topic_path(topic)].data).assignment:
            tp = TopicPartition(topic, partition)
            znode = nodes.get(paths.partition_state_path(*tp))
            require(znode is not None, f"{tp} has no state")
            assert znode is not None
            states[tp] = decode_partition_state(tp, znode.data, znode.version).leader_and_isr
    return states


def _check_states(cluster: SimCluster, states: States, brokers: dict[int, Broker]) -> None:
    nodes = cluster.zookeeper.tree.nodes
    for tp, state in states.items():
        assignment = decode_topic(tp.topic, nodes[paths.topic_path(tp.topic)].data).assignment[tp.partition]
        replicas = assignment.replicas
        moves = assignment.adding_replicas or assignment.removing_replicas
        require(not moves, f"{tp} is still being moved: {assignment}")
        require(state.leader in brokers, f"{tp} has no leader: {state}")
        require(set(state.isr) == set(replicas), f"the ISR of {tp} is {state.isr}, its replicas are {replicas}")


def _check_cache(cluster: SimCluster, broker: Broker, states: States) -> None:
    snapshot = broker.metadata.snapshot
    known = sorted(snapshot.brokers)
    require(known == sorted(cluster.nodes), f"broker {broker.id} takes {known} for the live brokers")
    for tp, state in states.items():
        cached = snapshot.partition(*tp)
        require(cached is not None, f"broker {broker.id} does not know {tp}")
        assert cached is not None
        seen = (cached.leader, cached.leader_epoch, tuple(cached.isr), cached.partition_epoch)
        truth = (state.leader, state.leader_epoch, state.isr, state.partition_epoch)
        require(seen == truth, f"broker {broker.id} has {tp} as {seen}, ZooKeeper {truth}")
        require(not cached.offline_replicas, f"broker {broker.id} takes replicas of {tp} for offline")
    count = snapshot.partition_count
    require(count == len(states), f"broker {broker.id} knows {count} partitions, there are {len(states)}")


def _check_replicas(broker: Broker, states: States) -> None:
    for tp, state in states.items():
        if broker.id not in state.isr:
            continue
        partition = broker.replicas.partitions.get(tp)
        require(partition is not None, f"broker {broker.id} does not host {tp}")
        assert partition is not None
        mine = (partition.leader, partition.leader_epoch)
        require(mine == (state.leader, state.leader_epoch), f"broker {broker.id} hosts {tp} as {mine}, not {state}")
        if partition.is_leader:
            own = (set(partition.isr), partition.partition_epoch)
            require(own == (set(state.isr), state.partition_epoch), f"the leader of {tp} has {own}, not {state}")


def _check_strays(broker: Broker, states: States) -> None:
    """All replicas are in the ISR, so any other log is a leftover of a move."""
    strays = [tp for tp in broker.logs.logs if tp not in states or broker.id not in states[tp].isr]
    require(not strays, f"broker {broker.id} still has {strays}, which were moved away")


def _check_logs(tp: TopicPartition, leader: Broker, members: Sequence[Broker]) -> None:
    """All members of the ISR have the same bytes, all committed. Compacted logs are equal for their readers."""
    log = _log(leader, tp)
    end = log.log_end_offset
    require(log.high_watermark == end, f"the leader of {tp} has committed {log.high_watermark} of {end}")
    truth = content(leader, tp)
    for member in members:
        own = _log(member, tp)
        require(own.log_end_offset == end, f"broker {member.id} has {tp} up to {own.log_end_offset}, its leader {end}")
        require(own.high_watermark == end, f"broker {member.id} takes {own.high_watermark} of {tp} for committed")
        if log.config.is_compacted:
            differing = list(differences(batches(truth), batches(content(member, tp))))
        else:
            differing = [] if content(member, tp) == truth else ["other bytes"]
        shown = "; ".join(differing[:2])
        require(not differing, f"brokers {leader.id} and {member.id} have different records of {tp}: {shown}")


def _log(broker: Broker, tp: TopicPartition) -> Log:
    log = broker.logs.get_log(tp)
    require(log is not None, f"broker {broker.id} has no log of {tp}")
    assert log is not None
    return log


def content(broker: Broker, tp: TopicPartition) -> bytes:
    """Return all batches of a log."""
    log = _log(broker, tp)
    data, offset = b"", log.log_start_offset
    while offset < log.log_end_offset:
        read = log.read(offset, 1 << 20, max_offset=log.log_end_offset)
        part = bytes(read.records) if isinstance(read, ReadResult) else b""
        require(bool(part), f"{tp} of broker {broker.id} cannot be read at {offset}: {read}")
        data += part
        *_, last = batches(part)
        offset = last.last_offset + 1
    return data
