"""Invariants of a whole cluster at every moment, during all faults.

Every member of an ISR has all records that any client knows to be committed. Acknowledged records are on at least
`min.insync.replicas` brokers. No broker obeys a controller after a newer one, or one that was never elected. No leader
epoch of a broker goes back. No fetch session skips a partition that has something new for its reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Protocol

from klamm.broker import Broker
from klamm.model import TopicPartition
from klamm.sim.checkers import Checkers, require
from klamm.sim.forgery import FOREIGN_HOST
from klamm.sim.history import History
from klamm.sim.loop import SimProcess
from klamm.sim.session_watch import check_sessions
from klamm.sim.zk_server import ZooKeeperServer
from klamm.zk.model import paths
from klamm.zk.model.znodes import ZnodeFormatError, decode_controller_epoch, decode_partition_state


class WatchedNode(Protocol):
    """`klamm.sim.cluster.SimNode`, as far as it is used here."""

    id: int
    process: SimProcess | None
    is_disk_broken: bool

    @property
    def broker(self) -> Broker | None: ...

    @property
    def is_suspected(self) -> bool: ...

    lost_records_s: float


class WatchedCluster(Protocol):
    """`klamm.sim.cluster.SimCluster`, as far as it is used here."""

    checkers: Checkers
    history: History
    zookeeper: ZooKeeperServer

    @property
    def nodes(self) -> Mapping[int, WatchedNode]: ...

    @property
    def partitions(self) -> Iterable[TopicPartition]: ...


class ClusterWatch:
    def __init__(self, cluster: WatchedCluster, min_insync_replicas: int) -> None:
        self._cluster = cluster
        self._needed = min(min_insync_replicas, len(cluster.nodes))
        self._controller_epochs: dict[SimProcess, int] = {}
        self._leader_epochs: dict[tuple[SimProcess, TopicPartition, str], int] = {}
        self._last_elected = 0
        cluster.history.on_committed = self.check_copies

    def check(self) -> None:
        for tp in self._cluster.partitions:
            self._check_isr(tp)
        self._check_obedience()

    def check_sessions(self) -> None:
        """Compare every fetch session with a full walk over its partitions."""
        for node in self._cluster.nodes.values():
            if node.broker is not None and not node.is_disk_broken:
                check_sessions(node.broker)

    def check_copies(self, tp: TopicPartition, end: int, since_s: float) -> None:
        """Check an acknowledged produce with acks=all, which was sent first at `since_s`.

        A broker that cannot be inspected may have the records. A broker that lost power in the meantime may have had
        them: a repeated batch that is committed is acknowledged, however small the ISR has become.
        """
        nodes = self._cluster.nodes.values()
        ends = {node.id: None if node.lost_records_s >= since_s else self._end(node, tp) for node in nodes}
        copies = sum(known is None or known >= end for known in ends.values())
        require(copies >= self._needed, f"{tp} was acknowledged up to {end}, its copies end at {ends}")

    def is_leader(self, tp: TopicPartition, broker_id: int) -> bool:
        """Whether this broker leads in ZooKeeper's epoch: it may be elected again and not know it yet."""
        znode = self._cluster.zookeeper.tree.nodes.get(paths.partition_state_path(*tp))
        broker = self._cluster.nodes[broker_id].broker
        hosted = None if broker is None else broker.replicas.partitions.get(tp)
        if znode is None or hosted is None:
            return False
        elected = decode_partition_state(tp, znode.data, 0).leader_and_isr
        return (elected.leader, elected.leader_epoch) == (broker_id, hosted.leader_epoch)

    def _check_isr(self, tp: TopicPartition) -> None:
        committed = self._cluster.history.committed(tp)
        for broker_id in self._isr(tp):
            end = self._end(self._cluster.nodes[broker_id], tp)
            is_complete = end is None or end >= committed
            require(is_complete, f"broker {broker_id} is in the ISR of {tp} with {end} of {committed} committed")

    def _isr(self, tp: TopicPartition) -> Iterable[int]:
        znode = self._cluster.zookeeper.tree.nodes.get(paths.partition_state_path(*tp))
        return () if znode is None else decode_partition_state(tp, znode.data, 0).leader_and_isr.isr

    def _end(self, node: WatchedNode, tp: TopicPartition) -> int | None:
        """Return the end of a broker's log; None if the broker or its disk is down.

        A broker that lost power is excluded until the controller has handled its possible loss.
        """
        broker = node.broker
        if broker is None or node.is_disk_broken or node.is_suspected or not broker.logs.dirs.live:
            return None
        log = broker.logs.get_log(tp)
        return 0 if log is None else log.log_end_offset

    def _check_obedience(self) -> None:
        for node in self._cluster.nodes.values():
            if node.broker is None or node.process is None:
                continue
            epoch = node.broker.metadata.snapshot.controller_epoch
            before = self._controller_epochs.setdefault(node.process, epoch)
            require(epoch >= before, f"broker {node.id} obeys the controller of epoch {epoch} after that of {before}")
            elected = self._elected_epoch()
            require(
                epoch <= elected, f"broker {node.id} obeys a controller of epoch {epoch}, the last one is {elected}"
            )
            hosts = {e.host for b in node.broker.metadata.snapshot.brokers.values() for e in b.endpoints}
            require(FOREIGN_HOST not in hosts, f"broker {node.id} sends its clients to a foreign host")
            self._controller_epochs[node.process] = epoch
            for tp in self._cluster.partitions:
                self._check_leader_epochs(node.process, node.broker, tp)

    def _elected_epoch(self) -> int:
        """While the znode is unreadable, the last epoch that it had."""
        znode = self._cluster.zookeeper.tree.nodes.get(paths.CONTROLLER_EPOCH)
        if znode is not None:
            with suppress(ZnodeFormatError):
                self._last_elected = decode_controller_epoch(znode.data)
        return self._last_elected

    def _check_leader_epochs(self, process: SimProcess, broker: Broker, tp: TopicPartition) -> None:
        hosted, cached = broker.replicas.partitions.get(tp), broker.metadata.snapshot.partition(*tp)
        if tp in self._cluster.checkers.edited:
            cached = None  # A controller may believe an older state, but no replica does.
        for what, found in (("hosts", hosted), ("knows", cached)):
            if found is not None and found.leader_epoch >= 0:
                key = (process, tp, what)
                before = self._leader_epochs.get(key, 0)
                message = f"broker {broker.id} {what} {tp} in leader epoch {found.leader_epoch} after {before}"
                require(found.leader_epoch >= before, message)
                self._leader_epochs[key] = found.leader_epoch
