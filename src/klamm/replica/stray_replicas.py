"""Replicas that were moved away while this broker could not be informed: their logs would stay for ever.

A controller that removes a replica sends its broker a StopReplica, and remembers a missing answer only while it is the
controller. So when a controller has sent the whole metadata, a broker looks for logs that the metadata does not
contain, and asks ZooKeeper. It deletes a log only if the topic exists, with the same id, and does not name this broker
as a replica.

An answer of ZooKeeper may be old, but not older than this broker's registration. If no controller has named the log
since then, it cannot have become a replica again. If one has, the answer must be newer: the leader epoch in ZooKeeper
has passed the epoch that the controller named.

This module decides when to look, what to ask and what to delete; the caller does the I/O.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol
from uuid import UUID

from klamm.metadata.read_steps import Reads, ReadSteps
from klamm.metadata.snapshot import MetadataSnapshot
from klamm.metadata.update import MetadataUpdate
from klamm.model import NO_EPOCH, ZERO_UUID, TopicPartition
from klamm.zk.model import paths
from klamm.zk.model.ops import GetData, GetDataResult
from klamm.zk.model.znodes import TopicZnode, ZnodeFormatError, decode_partition_state, decode_topic

log = logging.getLogger(__name__)


class HostedReplicas(Protocol):
    """The replicas of one broker, as its log manager and its replica manager know them."""

    @property
    def broker_id(self) -> int: ...

    def topic_id_of_log(self, tp: TopicPartition) -> UUID | None:
        """Return the topic id of the log: None without a log, the zero UUID if the log does not name it."""

    def leader_epoch(self, tp: TopicPartition) -> int:
        """Return the epoch that a controller has sent to this process; NO_EPOCH if none has."""


class StrayReplicasRule:
    """Which logs of a broker are strays. Made before the broker registers for the first time."""

    def __init__(self, replicas: HostedReplicas) -> None:
        self._replicas = replicas
        self._informed_by = (NO_EPOCH, NO_EPOCH)

    def on_update(self, update: MetadataUpdate) -> bool:
        """Return whether to look now: a controller sends all partitions to a new registration first."""
        informed_by = (update.controller_epoch, update.broker_epoch)
        if informed_by > self._informed_by and update.topics and update.is_last_slice:
            self._informed_by = informed_by
            return True
        return False

    def suspects(self, snapshot: MetadataSnapshot, logs: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return the logs of partitions whose metadata does not name this broker as a replica."""
        me = self._replicas.broker_id
        states = ((tp, snapshot.partition(*tp)) for tp in logs)
        return [tp for tp, state in states if state is None or me not in state.replicas]

    def named_epochs(self, suspects: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the leader epochs before ZooKeeper is asked."""
        return {tp: self._replicas.leader_epoch(tp) for tp in suspects}

    def unassigned(self, suspects: Iterable[TopicPartition]) -> ReadSteps[dict[TopicPartition, int]]:
        """Return the suspects that ZooKeeper assigns to other brokers, with their leader epochs there.

        The leader epochs are read first, then the assignments. A znode that cannot be decoded proves nothing.
        """
        tps = list(suspects)
        topics = list(dict.fromkeys(tp.topic for tp in tps))
        states = yield Reads(tuple(GetData(paths.partition_state_path(*tp)) for tp in tps))
        znodes = yield Reads(tuple(GetData(paths.topic_path(topic)) for topic in topics))
        assigned: dict[str, TopicZnode] = {}
        for name, found in zip(topics, znodes, strict=True):
            if isinstance(found, GetDataResult):
                with _undecodable_is_kept():
                    assigned[name] = decode_topic(name, found.data)
        epochs: dict[TopicPartition, int] = {}
        for tp, found in zip(tps, states, strict=True):
            if isinstance(found, GetDataResult) and self._is_anothers(tp, assigned.get(tp.topic)):
                with _undecodable_is_kept():
                    state = decode_partition_state(tp, found.data, found.stat.version)
                    epochs[tp] = state.leader_and_isr.leader_epoch
        return epochs

    def _is_anothers(self, tp: TopicPartition, topic: TopicZnode | None) -> bool:
        here = self._replicas.topic_id_of_log(tp)
        if here is None or topic is None or tp.partition not in topic.assignment:
            return False
        if here != ZERO_UUID and topic.topic_id not in (None, here):
            return False
        assignment = topic.assignment[tp.partition]
        return self._replicas.broker_id not in (*assignment.replicas, *assignment.adding_replicas)

    def strays(self, epochs: Mapping[TopicPartition, int], named: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Return the logs to delete: no controller has named them since, and ZooKeeper has a newer epoch."""
        return [tp for tp, epoch in epochs.items() if self._replicas.leader_epoch(tp) == named[tp] < epoch]


@contextlib.contextmanager
def _undecodable_is_kept() -> Iterator[None]:
    try:
        yield
    except ZnodeFormatError as error:
        log.warning("keeping a log that may now belong to another broker: %s", error)
