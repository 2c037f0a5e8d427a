"""Power failures in a whole-cluster simulation: one, two or all machines lose their unflushed data.

One ISR member of every partition keeps its log: its machine had power, or its data happened to be flushed. So no
acknowledged record may be lost, whichever broker comes back first.
"""

from __future__ import annotations

from collections.abc import Callable

from klamm.model import TopicPartition
from klamm.sim.cluster import SimCluster, SimNode
from klamm.zk.model import paths
from klamm.zk.model.znodes import decode_partition_state, decode_topic


class PowerFailures:
    def __init__(self, cluster: SimCluster, start_later: Callable[[SimNode], None]) -> None:
        self._cluster = cluster
        self._rng = cluster.rng
        self._start_later = start_later

    def fail(self) -> None:
        nodes = [n for n in self._cluster.nodes.values() if n.process is not None and not n.is_paused]
        everybody = len(self._cluster.nodes)
        count = self._rng.choice((1, 1, 2, everybody))
        if len(nodes) < count:
            return
        failing = self._rng.sample(nodes, count)
        kept = self._survivors(failing)
        if kept is None:
            return
        self._cluster.counts["power failure of all" if count == everybody else f"power failure of {count}"] += 1
        for node in failing:
            self._cluster.note(f"broker {node.id} loses power, and keeps {sorted(map(str, kept[node.id]))}")
            node.note.is_a_copy = self._rng.random() < 0.5
            node.lose_power(kept[node.id])
            self._start_later(node)

    def _survivors(self, failing: list[SimNode]) -> dict[int, list[TopicPartition]] | None:
        """Return the logs that each machine keeps; None if a partition would lose its last good copy."""
        kept: dict[int, list[TopicPartition]] = {node.id: [] for node in failing}
        for tp, isr in current_isrs(self._cluster).items():
            good = [member for member in isr if not self._cluster.nodes[member].is_suspected]
            if not good:
                return None
            if all(member in kept for member in good):
                kept[self._rng.choice(good)].append(tp)
        return kept


def current_isrs(cluster: SimCluster) -> dict[TopicPartition, tuple[int, ...]]:
    """Return ZooKeeper's ISRs of all partitions that have a state."""
    nodes = cluster.zookeeper.tree.nodes
    topics = nodes[paths.TOPICS].children or {}
    tps = [
        TopicPartition(topic, partition)
        for topic in topics
        for partition in decode_topic(topic, nodes[paths.topic_path(topic)].data).assignment
    ]
    found = {tp: nodes.get(paths.partition_state_path(*tp)) for tp in tps}
    return {tp: decode_partition_state(tp, it.data, 0).leader_and_isr.isr for tp, it in found.items() if it}
