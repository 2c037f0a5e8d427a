"""The broker's rules for missed deletions and stray replicas, driven for a modelled broker.

The rules are the production ones; the server drives the same with a real session.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar
from uuid import UUID

from klamm.metadata.missed_deletions import MissedDeletionsRule, deleted_topics
from klamm.metadata.read_steps import Answers, Pause, ReadSteps
from klamm.metadata.snapshot import MetadataSnapshot
from klamm.metadata.update import MetadataUpdate
from klamm.model import NO_EPOCH, TopicPartition
from klamm.replica.stray_replicas import StrayReplicasRule
from klamm.sim.broker_model import BrokerModel
from klamm.zk.model.ops import ReadOp

T = TypeVar("T")


class Host(Protocol):
    """The process that the rules run in. Nothing is called back after its end."""

    def read(self, ops: tuple[ReadOp, ...], then: Callable[[Answers], None]) -> None: ...

    def pause(self, seconds: float, then: Callable[[], None]) -> None: ...

    def on_stray_deleted(self, tp: TopicPartition) -> None: ...


class BrokerRules:
    def __init__(self, broker: BrokerModel, host: Host) -> None:
        self._broker = broker
        self._host = host
        self._deletions = MissedDeletionsRule()
        self._strays = StrayReplicasRule(_HostedReplicas(broker))
        broker.metadata.update_listeners.append(self._on_update)

    def on_new_session(self) -> None:
        self._deletions.on_new_session(self._broker.metadata.snapshot)

    def _on_update(self, before: MetadataSnapshot, update: MetadataUpdate) -> None:
        for comparison in self._deletions.on_update(before, update):
            self._drive(deleted_topics(comparison), self._broker.metadata.forget)
        if self._strays.on_update(update):
            self._look_for_strays()

    def _look_for_strays(self) -> None:
        broker = self._broker
        logs = [tp for tp in broker.disk.logs if tp not in broker.offline]
        suspects = self._strays.suspects(broker.metadata.snapshot, logs)
        if suspects:
            named = self._strays.named_epochs(suspects)
            self._drive(self._strays.unassigned(suspects), lambda epochs: self._delete(epochs, named))

    def _delete(self, epochs: dict[TopicPartition, int], named: dict[TopicPartition, int]) -> None:
        for tp in self._strays.strays(epochs, named):
            self._broker.hosted.pop(tp, None)
            self._broker.disk.delete(tp)
            self._host.on_stray_deleted(tp)

    def _drive(self, steps: ReadSteps[T], done: Callable[[T], object], answers: Answers | None = None) -> None:
        try:
            step = next(steps) if answers is None else steps.send(answers)
        except StopIteration as end:
            done(end.value)
            return
        if isinstance(step, Pause):
            self._host.pause(step.seconds, lambda: self._drive(steps, done, ()))
        else:
            self._host.read(step.ops, lambda found: self._drive(steps, done, found))


class _HostedReplicas:
    """The replicas of a modelled broker, in the form that the rule needs."""

    def __init__(self, broker: BrokerModel) -> None:
        self._broker = broker

    @property
    def broker_id(self) -> int:
        return self._broker.id

    def topic_id_of_log(self, tp: TopicPartition) -> UUID | None:
        return self._broker.disk.logs.get(tp)

    def leader_epoch(self, tp: TopicPartition) -> int:
        mine = self._broker.hosted.get(tp)
        return NO_EPOCH if mine is None else mine.leader_epoch
