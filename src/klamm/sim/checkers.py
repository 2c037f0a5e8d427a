"""Invariants of every step. A broken rule raises `Violation`; the runner prints the seed and the trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final
from uuid import UUID

from klamm.controller.events import AlterPartition, BrokerChange, ControllerEvent, Reelect
from klamm.controller.requests import ControlRequest, LeaderAndIsrPartition, RequestHead, StopReplicaRequest
from klamm.errors import ErrorCode
from klamm.model import NO_LEADER, LeaderAndIsr, LeaderIsrAndControllerEpoch, TopicPartition
from klamm.sim.unclean import UncleanRules
from klamm.sim.violation import Violation, require
from klamm.sim.zookeeper import TOOLS_SESSION
from klamm.zk.model import paths
from klamm.zk.model.ops import Check, Create, Delete, SetData, WriteOp
from klamm.zk.model.znodes import decode_partition_state, decode_topic

if TYPE_CHECKING:
    from klamm.controller.context import ControllerContext
    from klamm.sim.broker_model import Hosted
    from klamm.sim.channels import Channel
    from klamm.sim.node import Node
    from klamm.sim.tails import Tails


__all__ = ["Checkers", "Violation", "require"]

_FENCED: Final = tuple(dict.fromkeys(rule.prefix for rule in paths.ZNODES if rule.fenced))

_ALL_ISRS_EVERY: Final = 8
"""An AlterPartition must change only what it requests: all partitions are checked this often."""


class Checkers:
    """`writer` returns the process of a session, `are_suspected` whether all live members of a set lost power."""

    def __init__(
        self,
        writer: Callable[[int], Node | None] = lambda _: None,
        tails: Tails | None = None,
        are_suspected: Callable[[Iterable[int]], bool] = lambda _: False,
    ) -> None:
        self._are_suspected = are_suspected
        self._writer = writer
        self._tails = tails
        self.controllers: dict[int, int] = {}
        self._leaders: dict[tuple[TopicPartition, UUID, int], int] = {}
        self._states: dict[TopicPartition, LeaderIsrAndControllerEpoch] = {}
        self._replicas: dict[TopicPartition, tuple[int, ...]] = {}
        self.left: dict[tuple[TopicPartition, int], int] = {}
        """Replicas that are no longer assigned, and the controller epoch of their removal."""
        self.unfenced_sessions: set[int] = {TOOLS_SESSION}
        self.edited: set[TopicPartition] = set()
        """Partitions whose states an operator writes: they do not follow from each other."""
        self.unclean = UncleanRules(writer)
        self._last_heads: dict[tuple[int, int], tuple[int, int]] = {}
        self._producer_ids: dict[int, tuple[int, int]] = {}
        self._isr_events = 0

    # --- roles -------------------------------------------------------------------------------------------------------

    def on_controller(self, broker: int, epoch: int) -> None:
        other = self.controllers.setdefault(epoch, broker)
        require(other == broker, f"brokers {other} and {broker} are both controller of epoch {epoch}")

    def on_leader(self, broker: int, state: LeaderAndIsrPartition, topic_id: UUID) -> None:
        key = (state.partition, topic_id, state.leader_and_isr.leader_epoch)
        other = self._leaders.setdefault(key, broker)
        require(other == broker, f"brokers {other} and {broker} both lead {state.partition} in epoch {key[2]}")
        if self._tails is not None:
            self._tails.on_leader(state.partition, key[2])

    def on_send(self, controller: int, channel: Channel, request: ControlRequest) -> None:
        """A controller sends under its own id and epoch, and a channel serves one incarnation of its broker."""
        head = request.head
        if channel.broker_epoch is None:
            channel.broker_epoch = head.broker_epoch
        require(
            channel.broker_epoch == head.broker_epoch,
            f"a channel of broker {controller} serves broker epochs {channel.broker_epoch} and {head.broker_epoch}",
        )
        require(head.controller_id == controller, f"broker {controller} sends in the name of {head.controller_id}")
        require(
            self.controllers.get(head.controller_epoch) == controller,
            f"broker {controller} sends under epoch {head.controller_epoch}, which is not its own",
        )

    def on_delivered(self, node: Node, head: RequestHead, error: ErrorCode) -> None:
        """No zombie is obeyed: neither an older controller nor one that addresses an earlier incarnation."""
        key = (node.id, node.generation)
        epoch, broker_epoch = self._last_heads.get(key, (0, -1))
        broker_epoch = max(broker_epoch, node.broker.broker_epoch)
        if error is ErrorCode.NONE:
            require(head.controller_epoch >= epoch, f"broker {node.id} obeyed {head} after controller epoch {epoch}")
            require(head.broker_epoch >= broker_epoch, f"broker {node.id} of epoch {broker_epoch} obeyed {head}")
            self._last_heads[key] = (max(epoch, head.controller_epoch), broker_epoch)
        else:
            stale = head.controller_epoch < epoch or head.broker_epoch < broker_epoch
            stale = stale or (head.broker_epoch > broker_epoch and not node.broker.is_registered_as(head.broker_epoch))
            require(stale, f"broker {node.id} refused {head} with {error.name}: it knows no newer one")

    def on_stopped(self, node: Node, request: StopReplicaRequest, before: dict[TopicPartition, Hosted]) -> None:
        """A request that is older than a broker's replica removes nothing from it, if requests carry epochs."""
        if not node.broker.has_stop_epochs:
            return
        for state in request.partitions:
            had = before.get(state.partition)
            overtaken = had is not None and 0 <= state.leader_epoch < had.leader_epoch
            obeyed = state.delete and state.partition not in node.broker.hosted
            require(not (overtaken and obeyed), f"broker {node.id} obeyed {state} and had {had}")

    def on_producer_ids(self, broker: int, start: int, length: int) -> None:
        """Blocks of producer ids: each id is allocated once."""
        for other, (first, count) in self._producer_ids.items():
            overlap = start < first + count and first < start + length
            require(not overlap, f"broker {broker} got producer ids from {start} on, which {other} gave away already")
        self._producer_ids[len(self._producer_ids)] = (start, length)

    def after_event(self, node: Node, event: ControllerEvent) -> None:
        """A controller knows its epoch, and keeps no dead broker in an ISR that has a living member.

        An inactive controller has no channels and no timers, except for the next election.
        """
        ctx = node.controller.context
        if not ctx.is_active:
            require(not node.channels, f"broker {node.id} is not active and has channels to {sorted(node.channels)}")
            waits = [timer for timer in node.scheduled if not isinstance(timer, Reelect)]
            require(not waits, f"broker {node.id} is not active and waits for {waits}")
            return
        require(ctx.epoch > 0, f"broker {node.id} is active without an epoch")
        decides_isr = ctx.config.inter_broker_protocol.has_alter_partition  # otherwise leaders write it themselves
        if decides_isr and isinstance(event, BrokerChange | AlterPartition):
            for tp in self._to_look_at(ctx, event):
                isr = ctx.states.leadership[tp].leader_and_isr.isr if tp in ctx.states.leadership else ()
                dead = [r for r in isr if r not in ctx.brokers.live_or_shutting_down]
                fine = len(dead) in (0, len(isr)) or ctx.suspects.of(tp) or ctx.deletions.is_queued(tp.topic)
                require(bool(fine), f"after {event} the ISR of {tp} is {isr}, of which {dead} are dead")

    def _to_look_at(self, ctx: ControllerContext, event: BrokerChange | AlterPartition) -> Iterable[TopicPartition]:
        self._isr_events += 1
        if isinstance(event, BrokerChange) or self._isr_events % _ALL_ISRS_EVERY == 0:
            return ctx.states.leadership
        return [TopicPartition(item.topic, item.partition) for item in event.partitions]

    # --- znodes ------------------------------------------------------------------------------------------------------

    def on_written(self, session_id: int, ops: tuple[WriteOp, ...]) -> None:
        fenced = bool(ops) and isinstance(ops[0], Check) and ops[0].path == paths.CONTROLLER_EPOCH
        by_controller = session_id not in self.unfenced_sessions
        if by_controller:
            self._check_claim(ops, fenced)
        for op in ops:
            if by_controller and not isinstance(op, Check) and op.path.startswith(_FENCED):
                require(fenced, f"{op} was written without the fence of the controller epoch")
            if op.path.endswith("/state"):
                self._on_state(op, session_id)
            elif op.path.startswith(paths.config_entity_path("topics", "")):
                self.unclean.on_config(op)
            elif not isinstance(op, Check) and op.path.rpartition("/")[0] == paths.TOPICS:
                self._on_topic(op)

    @staticmethod
    def _check_claim(ops: tuple[WriteOp, ...], fenced: bool) -> None:
        """The role is claimed together with the next epoch, and released under the fence."""
        counted = any(isinstance(op, SetData) and op.path == paths.CONTROLLER_EPOCH and op.version >= 0 for op in ops)
        for op in ops:
            if op.path == paths.CONTROLLER:
                fine = counted if isinstance(op, Create) else fenced
                require(fine, f"{op} without the controller epoch")

    def _on_topic(self, op: Create | SetData | Delete) -> None:
        """Record which replicas left an assignment, and under which controller.

        That controller must delete their logs. If it is deposed first, no later controller knows of them.
        """
        topic = op.path.rpartition("/")[2]
        if isinstance(op, Delete):
            self._replicas = {tp: replicas for tp, replicas in self._replicas.items() if tp.topic != topic}
            return
        epoch = max(self.controllers, default=0)
        for partition, assignment in decode_topic(topic, op.data).assignment.items():
            tp = TopicPartition(topic, partition)
            before = self._replicas.get(tp, ())
            self.left.update({(tp, r): epoch for r in before if r not in assignment.replicas})
            for replica in assignment.replicas:
                self.left.pop((tp, replica), None)
            self._replicas[tp] = assignment.replicas

    def _on_state(self, op: WriteOp, session_id: int) -> None:
        _, _, _, topic, _, partition, _ = op.path.split("/")
        tp = TopicPartition(topic, int(partition))
        if isinstance(op, Delete):
            self._states.pop(tp, None)
            if self._tails is not None:
                self._tails.forget(tp)
        elif isinstance(op, Create | SetData):
            new = decode_partition_state(tp, op.data, 0)
            self._check_state(tp, new, session_id)
            self._states[tp] = new

    def _check_state(self, tp: TopicPartition, new: LeaderIsrAndControllerEpoch, session_id: int) -> None:
        now, before = new.leader_and_isr, self._states.get(tp)
        require(bool(now.isr), f"the ISR of {tp} became empty")
        require(len(set(now.isr)) == len(now.isr), f"the ISR of {tp} has a member twice: {now.isr}")
        require(now.leader in (NO_LEADER, *now.isr), f"the leader of {tp} is outside its ISR: {now}")
        if tp in self.edited:
            return
        if before is None:
            require(now.leader_epoch == 0, f"{tp} begins with leader epoch {now.leader_epoch}")
            return
        old = before.leader_and_isr
        require(new.controller_epoch >= before.controller_epoch, f"the controller epoch of {tp} went back")
        self._check_epoch(tp, old, now)
        is_outside = now.leader not in (NO_LEADER, *old.isr)
        if is_outside and not self._are_suspected(old.isr):
            self.unclean.check(session_id, tp, old, now)
        if self._tails is not None:
            may_lose = self.unclean.may_lose(session_id, tp)
            self._tails.on_state(self._writer(session_id), tp, old, now, may_lose=may_lose)

    @staticmethod
    def _check_epoch(tp: TopicPartition, old: LeaderAndIsr, now: LeaderAndIsr) -> None:
        step = now.leader_epoch - old.leader_epoch
        require(step in (0, 1), f"the leader epoch of {tp} went from {old.leader_epoch} to {now.leader_epoch}")
        if step == 0:
            require(now.leader == old.leader, f"{tp} changed its leader within epoch {now.leader_epoch}")
