"""Checks unclean elections: only where loss is allowed, and only if no member of the ISR can lead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from klamm.model import LeaderAndIsr, LeaderRecoveryState, TopicPartition
from klamm.sim.violation import require
from klamm.zk.model.ops import Create, SetData, WriteOp
from klamm.zk.model.paths import desanitize
from klamm.zk.model.znodes import decode_config

if TYPE_CHECKING:
    from klamm.sim.node import Node

KEY = "unclean.leader.election.enable"


class UncleanRules:
    """Whether it is allowed by the topic's configuration, the controller's default, or an explicit request."""

    def __init__(self, writer: Callable[[int], Node | None]) -> None:
        self._writer = writer
        self._topics: set[str] = set()
        self._now: set[str] = set()
        self._asked: Counter[TopicPartition | None] = Counter()
        self.elections = 0

    def on_config(self, op: WriteOp) -> None:
        """A past permission counts: a controller may have read it just before it was revoked."""
        topic = desanitize(op.path.rpartition("/")[2])
        allowed = isinstance(op, Create | SetData) and decode_config(op.path, op.data).get(KEY) == "true"
        (self._now.add if allowed else self._now.discard)(topic)
        if allowed:
            self._topics.add(topic)

    def allows(self, topic: str) -> bool:
        """The current permission."""
        return topic in self._now

    def asked(self, partitions: tuple[TopicPartition, ...] | None) -> None:
        self._asked.update([None] if partitions is None else partitions)

    def answered(self, partitions: tuple[TopicPartition, ...] | None) -> None:
        self._asked.subtract([None] if partitions is None else partitions)

    def may_lose(self, session_id: int, tp: TopicPartition) -> bool:
        node = self._writer(session_id)
        asked = self._asked[tp] > 0 or self._asked[None] > 0
        by_default = node is not None and node.controller.context.config.unclean_leader_election_enable
        return asked or by_default or tp.topic in self._topics

    def check(self, session_id: int, tp: TopicPartition, old: LeaderAndIsr, now: LeaderAndIsr) -> None:
        node = self._writer(session_id)
        is_longest = node is not None and bool(node.controller.context.suspects.of(tp))
        if not is_longest:
            self.elections += 1
            require(self.may_lose(session_id, tp), f"unclean election of {tp}: {old} -> {now}")
        require(now.isr == (now.leader,), f"an unclean election of {tp} leaves others in its ISR: {old} -> {now}")
        if node is None or not node.controller.is_active:
            return
        ctx = node.controller.context
        assignment = ctx.topics.assignment(tp)
        online = [r for r in assignment.replicas if ctx.brokers.is_replica_online(r, tp)]
        able = [r for r in online if r in old.isr and r not in ctx.suspects.of(tp)]
        require(not able, f"unclean election of {tp} although {able} of its ISR can lead: {old} -> {now}")
        settled = [r for r in online if r not in assignment.adding_replicas]
        fine = is_longest or not settled or now.leader in settled
        require(fine, f"{now.leader}, which is only being added, leads {tp} although {settled} could: {old} -> {now}")
        marked = now.leader_recovery_state is LeaderRecoveryState.RECOVERING
        due = ctx.config.inter_broker_protocol.has_leader_recovery_state
        require(is_longest or marked == due, f"the unclean election of {tp} is not written down: {now}")
