"""Records in the logs of level 1: which broker has which, which were acknowledged, and which a power loss may remove.

A log is a list of records; a record is the leader epoch in which it was appended and a number of its own. Leaders
append and copy to their followers; a record that the whole ISR has is acknowledged. The rule that is checked: an
acknowledged record that a surviving member of the ISR, or any live replica, still has is never lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Protocol
from uuid import UUID

from klamm.controller.context import ControllerContext
from klamm.model import NO_EPOCH, NO_LEADER, LeaderAndIsr, TopicPartition
from klamm.sim.broker_model import Hosted, Record
from klamm.sim.chances import Chances
from klamm.sim.node import Node
from klamm.sim.violation import require
from klamm.sim.virtual_time import Scheduler

MOST_RECORDS = 40
"""Maximum records per log: enough, and cheap to compare."""


class TailsWorld(Protocol):
    """`klamm.sim.world.World`, as far as it is used here."""

    calm: bool
    chances: Chances
    faults: Counter[str]
    scheduler: Scheduler

    @property
    def nodes(self) -> Mapping[int, Node]: ...


class Tails:
    def __init__(self, world: TailsWorld) -> None:
        self._world = world
        self._number = 0
        self.acknowledged: dict[TopicPartition, dict[Record, None]] = {}
        self._unclean_epochs: dict[TopicPartition, int] = {}
        """Epoch of the last leader from outside the ISR: the leader that it replaced may continue for a while,
        without effect."""
        self._lost: set[Record] = set()
        """A replaced leader may acknowledge them again."""
        self._branched: set[TopicPartition] = set()
        """Partitions after an unclean election: records of newer epochs were discarded, so logs cannot be compared."""
        self._last_isr: dict[TopicPartition, tuple[int, ...]] = {}
        """For partitions whose elected leader does not know it yet, or that have none: the members of all ISRs since a
        leader led. Nothing was committed without them, so all of them have everything."""
        self._epochs: dict[TopicPartition, int] = {}
        """The leader epoch in ZooKeeper."""
        self._reported: dict[tuple[int, TopicPartition], tuple[int, int]] = {}
        """By broker and partition: the newest leader epoch of a reported log end, and the reporting incarnation."""

    # --- leaders and followers ---------------------------------------------------------------------------------------

    def replicate(self, node: Node, tp: TopicPartition, mine: Hosted, followers: list[Node]) -> None:
        """One leader step between two ISR checks: append, serve fetches, acknowledge."""
        rng, log = self._world.scheduler.rng, node.disk.records[tp]
        if not self._world.calm and len(log) < MOST_RECORDS and rng.random() < 0.5:
            for _ in range(rng.randint(1, 3)):
                self._check_promise(node, tp, mine.leader_epoch)
                self._number += 1
                log.append(Record(mine.leader_epoch, self._number))
        for follower in followers:
            if self._world.calm or rng.random() < 0.8:
                self._check_promise(follower, tp, mine.leader_epoch)
                is_partial = self._world.chances.partial_fetches and not self._world.calm
                self._fetch(follower, tp, log, rng.randint(0, len(log)) if is_partial else len(log))
                mine.fetched[follower.id] = (len(follower.disk.records[tp]), follower.broker.broker_epoch)
                theirs = follower.broker.hosted[tp]
                theirs.high_watermark = min(mine.high_watermark, len(follower.disk.records[tp]))
        self._acknowledge(node, tp, mine, log)
        if rng.random() < 0.1:
            node.disk.flushed[tp] = len(log)

    def _fetch(self, follower: Node, tp: TopicPartition, source: list[Record], end: int) -> None:
        log = follower.disk.records[tp]
        same = next(
            (i for i, (a, b) in enumerate(zip(log, source, strict=False)) if a != b), min(len(log), len(source))
        )
        cut = [record for record in log[same:] if record in self.acknowledged.get(tp, ())]
        require(
            not cut or tp in self._branched, f"broker {follower.id} cuts off {cut} of {tp}, which were acknowledged"
        )
        del log[same:]
        log += source[same : max(same, end)]
        follower.disk.flushed[tp] = min(follower.disk.flushed.get(tp, 0), same)

    def _acknowledge(self, node: Node, tp: TopicPartition, mine: Hosted, log: list[Record]) -> None:
        members = {*mine.isr, *(mine.pending_isr or ())} - {node.id}
        is_replaced = mine.leader_epoch < self._unclean_epochs.get(tp, 0)
        if not is_replaced and all(member in mine.fetched for member in members):
            mine.high_watermark = end = min([len(log), *(mine.fetched[member][0] for member in members)])
            new = dict.fromkeys(record for record in log[:end] if record not in self._lost)
            self.acknowledged.setdefault(tp, {}).update(new)

    # --- what must hold ----------------------------------------------------------------------------------------------

    def on_log_ends_reported(self, node: Node, asked: Iterable[tuple[TopicPartition, int]]) -> None:
        """A broker reported its log ends. They must not grow in an epoch older than that of the question."""
        for tp, epoch in asked:
            known, generation = self._reported.get((node.id, tp), (NO_EPOCH, node.generation))
            newest = max(known, epoch) if generation == node.generation else epoch
            self._reported[node.id, tp] = (newest, node.generation)

    def _check_promise(self, node: Node, tp: TopicPartition, epoch: int) -> None:
        reported, generation = self._reported.get((node.id, tp), (NO_EPOCH, node.generation))
        kept = generation != node.generation or epoch >= reported
        require(
            kept, f"broker {node.id} writes to {tp} in epoch {epoch} and has reported its log end for epoch {reported}"
        )

    def on_leader(self, tp: TopicPartition, epoch: int) -> None:
        """A broker leads: from now on it may commit without replicas outside its ISR."""
        if epoch == self._epochs.get(tp, epoch):
            self._last_isr.pop(tp, None)

    def forget(self, tp: TopicPartition) -> None:
        self.acknowledged.pop(tp, None)
        self._unclean_epochs.pop(tp, None)
        self._branched.discard(tp)
        self._last_isr.pop(tp, None)
        self._epochs.pop(tp, None)
        self._reported = {key: reported for key, reported in self._reported.items() if key[1] != tp}

    def on_state(
        self, writer: Node | None, tp: TopicPartition, old: LeaderAndIsr, now: LeaderAndIsr, *, may_lose: bool
    ) -> None:
        """A leader was elected. Acknowledged records that it lacks are lost from now on."""
        members = tuple(dict.fromkeys((*self._last_isr.get(tp, ()), *old.isr)))
        self._epochs[tp] = now.leader_epoch
        if now.leader_epoch != old.leader_epoch:
            self._last_isr[tp] = members
        if now.leader == NO_LEADER and writer is not None:
            _check_members_stay(writer.controller.context, tp, old, now)
        if now.leader == NO_LEADER or now.leader_epoch == old.leader_epoch or writer is None:
            return
        ctx = writer.controller.context
        if now.leader not in old.isr:
            self._unclean_epochs[tp] = now.leader_epoch
            if not ctx.suspects.of(tp):
                self._branched.add(tp)
                self.acknowledged.pop(tp, None)
        leader = self._world.nodes[now.leader]
        if not self._is_known(ctx, leader):
            return  # it is a new incarnation, which the controller has not noticed yet
        log = set(leader.disk.records.get(tp, ()))
        lacking = [record for record in self.acknowledged.get(tp, ()) if record not in log]
        if not lacking:
            return
        if not may_lose and tp not in self._branched and not self._wait_is_over(ctx, tp):
            self._check_holders(ctx, tp, members, now, lacking)
        self._world.faults["acknowledged records lost with all copies"] += 1
        self._lost.update(lacking)
        for record in lacking:
            del self.acknowledged[tp][record]

    def _check_holders(
        self,
        ctx: ControllerContext,
        tp: TopicPartition,
        members: tuple[int, ...],
        now: LeaderAndIsr,
        lacking: list[Record],
    ) -> None:
        for replica in ctx.topics.assignment(tp).replicas:
            node = self._world.nodes[replica]
            has = [record for record in lacking if record in node.disk.records.get(tp, ())]
            can_be_read = tp not in node.broker.offline
            online = can_be_read and ctx.brokers.is_replica_online(replica, tp) and self._is_known(ctx, node)
            if has and (online or replica in members):
                what = "is live" if online else "was in sync"
                message = (
                    f"broker {now.leader} is elected for {tp} without {has}, which {replica} has, and {replica} {what}"
                )
                require(False, f"{message}: {members} -> {now}")

    @staticmethod
    def _is_known(ctx: ControllerContext, node: Node) -> bool:
        known = ctx.brokers.live_or_shutting_down.get(node.id)
        return node.alive and known is not None and known.epoch == node.broker.broker_epoch

    def _wait_is_over(self, ctx: ControllerContext, tp: TopicPartition) -> bool:
        hold = ctx.suspects.held.get(tp)
        return hold is not None and hold.deadline_s <= self._world.scheduler.monotonic()

    def check_quiet(self, tp: TopicPartition, topic_id: UUID, state: LeaderAndIsr) -> None:
        """Every member of the ISR has all acknowledged records."""
        for member in state.isr if state.leader != NO_LEADER else ():
            disk = self._world.nodes[member].disk
            has = set(disk.records.get(tp, ())) if disk.logs.get(tp) == topic_id else set()
            lost = [record for record in self.acknowledged.get(tp, ()) if record not in has]
            require(not lost, f"broker {member} is in the ISR of {tp} without {lost}, which were acknowledged: {state}")


def _check_members_stay(ctx: ControllerContext, tp: TopicPartition, old: LeaderAndIsr, now: LeaderAndIsr) -> None:
    """While no member can lead, nothing is committed, so every member has everything.

    Former members count as well, but a Kafka controller would know the ISR only.
    """
    if ctx.deletions.is_queued(tp.topic) or any(
        ctx.brokers.is_replica_online(r, tp, include_shutting_down=True) for r in now.isr
    ):
        return
    assigned = ctx.topics.assignment(tp).replicas
    gone = [r for r in old.isr if r in assigned and r not in now.isr]
    require(not gone, f"{tp} has no leader, and {gone} left its ISR with everything that was committed")
