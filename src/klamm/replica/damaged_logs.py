"""Replicas whose logs were damaged while their broker was down.

A follower truncates its log at the damage and fetches the rest again. A broker that should lead leaves the leadership
to another replica that is in sync and alive: it answers KAFKA_STORAGE_ERROR, as for a failed directory, and asks for
another LeaderAndIsr once another broker leads. If there is no such replica, it leads with the log that it has.

A leader reports the acknowledged records that it lacks: those that were damaged, and those below the high watermark of
its last run that a power failure destroyed. The followers are truncated to match it, so no replica has them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from klamm.errors import ErrorCode
from klamm.metadata import MetadataCache
from klamm.model import NO_LEADER, ZERO_UUID, TopicPartition
from klamm.replica.problems import Problem, ReplicaProblems
from klamm.zk.model.znodes import LostRecords

if TYPE_CHECKING:
    from klamm.log.log import Log
    from klamm.protocol.messages.leader_and_isr import LeaderAndIsrPartitionState

log = logging.getLogger("klamm.state_change")


class DamagedLogs:
    """Owner: the ReplicaManager. `ask_again` makes the controller send a LeaderAndIsr of all replicas here."""

    def __init__(self, broker_id: int, metadata: MetadataCache, problems: ReplicaProblems) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._problems = problems
        self._refused: set[TopicPartition] = set()
        self.unled: set[TopicPartition] = set()
        """Partitions that lack acknowledged records, and have had no leader since this broker started."""
        self.ask_again: Callable[[], None] = lambda: None
        self.report: Callable[[LostRecords], None] = lambda lost: None
        """Makes a loss known until an operator confirms it."""

    def accept(self, tp: TopicPartition, state: LeaderAndIsrPartitionState, hosted: Log) -> ErrorCode:
        """Check a replica before it becomes leader or follower; an error prevents the transition."""
        if state.leader != self._broker_id:
            return self._cut(tp, state.leader, hosted) if state.leader != NO_LEADER else ErrorCode.NONE
        others = [r for r in state.isr if r != self._broker_id and self._metadata.has_alive_broker(r)]
        if others:
            log.error("%s: not leading with a damaged log, since brokers %s have all records", tp, others)
            self._refused.add(tp)
            return ErrorCode.KAFKA_STORAGE_ERROR
        if self._problems.put(tp, Problem.DAMAGED):
            for damage in [*hosted.damages, *([hosted.lost_tail] if hosted.lost_tail is not None else [])]:
                log.error(
                    "%s: leading although offsets %d to %d of %s are missing: no other replica has them",
                    tp,
                    damage.start_offset,
                    damage.end_offset - 1,
                    damage.path,
                )
                self._report(tp, hosted, damage.start_offset, damage.end_offset)
        return ErrorCode.NONE

    def check_tail(
        self, tp: TopicPartition, state: LeaderAndIsrPartitionState, hosted: Log, high_watermark: int
    ) -> None:
        """Report records that the first leader of this run lacks. `high_watermark` is that of its last run."""
        self.unled.discard(tp)
        end = hosted.log_end_offset
        if end >= high_watermark or hosted.lost_tail is not None or state.is_new:
            return
        if state.leader == NO_LEADER:  # The controller compares the replicas, or has not elected one yet.
            self.unled.add(tp)
        if state.leader != self._broker_id:
            return
        log.error(
            "%s: leading although offsets %d to %d are missing: they were acknowledged before the broker stopped, "
            "and no other replica has them",
            tp,
            end,
            high_watermark - 1,
        )
        self._report(tp, hosted, end, high_watermark)

    def _report(self, tp: TopicPartition, hosted: Log, start_offset: int, end_offset: int) -> None:
        self.report(LostRecords(tp, hosted.topic_id or ZERO_UUID, start_offset, end_offset, self._broker_id))

    def _cut(self, tp: TopicPartition, leader: int, hosted: Log) -> ErrorCode:
        self._refused.discard(tp)
        self._problems.clear(tp)
        start = min([d.start_offset for d in hosted.damages], default=hosted.log_end_offset)
        log.warning("%s: fetching a damaged log again from offset %d on, from broker %d", tp, start, leader)
        if hosted.damages and (error := hosted.truncate_to(start)):
            return error
        hosted.forget_lost_tail()
        return ErrorCode.NONE

    def on_metadata_change(self) -> None:
        """Another broker leads a partition that this one refused to lead: it can follow now."""
        led = [tp for tp in self._refused if self._has_other_leader(tp)]
        if led:
            self._refused.difference_update(led)
            self.ask_again()

    def _has_other_leader(self, tp: TopicPartition) -> bool:
        state = self._metadata.partition(*tp)
        return state is not None and state.leader not in (NO_LEADER, self._broker_id)
