"""Replicas that may have lost their tail: in the ISR, on a broker whose last run did not stop cleanly.

Owner: the `ControllerContext`. A broker reports an unclean shutdown in its registration. Every ISR that it is in at
that moment was agreed on with its previous incarnation, so it is suspected there until the partition has a leader
again: then it follows that leader, or its log was compared. An ISR that it joins later is not affected.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from klamm.model import NO_EPOCH, LeaderAndIsr, TopicPartition

_NONE: Final[frozenset[int]] = frozenset()


class LogEnd(NamedTuple):
    """Epoch of the last record, and end of the log. The greatest has all acknowledged records of the others."""

    epoch: int
    offset: int


NOTHING_TO_COMPARE: Final = LogEnd(NO_EPOCH, -1)
"""Sorts before every log end. Used for replicas that have not answered, and for Kafka brokers, which never answer."""


@dataclass(slots=True)
class Hold:
    """A partition without a leader: all live members of its ISR are suspected. `deadline_s` is monotonic time."""

    deadline_s: float
    log_ends: dict[int, LogEnd | None] = field(default_factory=dict)
    """By broker; None if it answered that it cannot use its log."""
    asked: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Suspects:
    unclean: dict[int, None] = field(default_factory=dict)
    """Live brokers whose registration still reports an unclean shutdown."""
    partitions: dict[int, dict[TopicPartition, None]] = field(default_factory=dict)
    """By broker: the partitions in whose ISR it is suspected."""
    held: dict[TopicPartition, Hold] = field(default_factory=dict)
    left: dict[TopicPartition, tuple[int, ...]] = field(default_factory=dict)
    """Replicas that a controller removed from an ISR, until the leader of the new epoch has answered.

    Before that nothing can have been committed without them: the leader may have died too, although its session still
    lives.
    """
    unsettled: bool = False
    """Whether `left` has changed since all leaders had answered: ZooKeeper does not know yet that they did."""

    def former_isr(self, tp: TopicPartition, before: LeaderAndIsr, after: LeaderAndIsr) -> tuple[int, ...]:
        """Return the replicas outside the ISR of `after` that may have every acknowledged record."""
        if after.leader_epoch == before.leader_epoch:
            return ()  # the leader has asked for this ISR, so it leads
        left = self.left.get(tp, ())
        if after.isr == before.isr:
            return left
        return tuple([replica for replica in (*before.isr, *left) if replica not in after.isr])

    def put_former_isr(self, tp: TopicPartition, former: tuple[int, ...]) -> None:
        if former:
            self.left[tp] = former
            self.unsettled = True
        else:
            self.left.pop(tp, None)

    def on_state(self, tp: TopicPartition, before: LeaderAndIsr, after: LeaderAndIsr) -> None:
        """The controller has written a state."""
        self.put_former_isr(tp, self.former_isr(tp, before, after))

    def hold(self, tp: TopicPartition, deadline_s: float) -> None:
        """The partition waits without a leader until the deadline."""
        self.held[tp] = Hold(deadline_s)

    def keep_held(self, waiting: Container[TopicPartition]) -> None:
        """Release the partitions that no longer wait."""
        self.held = {tp: hold for tp, hold in self.held.items() if tp in waiting}

    def trust(self, broker: int) -> None:
        """No ISR depends on the old log of this broker."""
        self.unclean.pop(broker, None)
        self.partitions.pop(broker, None)

    def remove_partition(self, tp: TopicPartition) -> None:
        self.forget(tp)
        self.left.pop(tp, None)

    def on_leader_answered(self, tp: TopicPartition) -> None:
        self.left.pop(tp, None)

    def add(self, broker: int, tps: Iterable[TopicPartition]) -> None:
        self.unclean[broker] = None
        self.partitions[broker] = dict.fromkeys(tps)

    def of(self, tp: TopicPartition) -> frozenset[int]:
        if not self.unclean:  # nearly always
            return _NONE
        found = [broker for broker, tps in self.partitions.items() if tp in tps]
        return frozenset(found) if found else _NONE

    def all_partitions(self) -> list[TopicPartition]:
        return list(dict.fromkeys(tp for tps in self.partitions.values() for tp in tps))

    def forget(self, tp: TopicPartition) -> None:
        """The partition has a leader again, or is gone."""
        if self.unclean:
            self.held.pop(tp, None)
            for tps in self.partitions.values():
                tps.pop(tp, None)

    def remove_broker(self, broker: int) -> None:
        """The broker is gone. When it returns, it reports again how it stopped."""
        self.unclean.pop(broker, None)
        self.partitions.pop(broker, None)
        for hold in self.held.values():
            hold.log_ends.pop(broker, None)
            hold.asked.discard(broker)
