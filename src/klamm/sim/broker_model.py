"""A broker's reaction to control requests, by Kafka's epoch rules: enough to observe a controller's effects.

Memory (epochs seen, cache, partitions) is lost with the process; logs stay on the disk. The metadata cache is the real
one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple
from uuid import UUID

from klamm.controller.requests import (
    ControlRequest,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    RequestHead,
    StopReplicaRequest,
    UpdateMetadataBody,
    UpdateMetadataRequest,
)
from klamm.controller.responses import ControlResponse
from klamm.controller.suspects import LogEnd
from klamm.errors import ErrorCode
from klamm.metadata.cache import MetadataCache
from klamm.metadata.update import MetadataUpdate, PartitionState, TopicUpdate
from klamm.model import EPOCH_DURING_DELETE, NO_EPOCH, NO_LEADER, ZERO_UUID, BrokerEndPoints, TopicPartition

LOG_DIRS = 2


class Record(NamedTuple):
    epoch: int
    number: int


@dataclass(slots=True)
class Hosted:
    """A replica as this process knows it."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    controller_epoch: int
    topic_id: UUID
    pending_isr: tuple[int, ...] | None = None
    """The leader's proposal that is not decided yet."""
    high_watermark: int = 0
    """For a leader: the end of the records that its whole ISR has. For a follower: the value from its last fetch."""
    waits_for_controller: bool = False
    """The controller has newer state: its next LeaderAndIsr settles the pending proposal."""
    fetched: dict[int, tuple[int, int]] = field(default_factory=dict)
    """For a leader: each follower's fetch position and incarnation."""


@dataclass(slots=True)
class Disk:
    """Partitions with a log: the id of the topic each belongs to, and the directory it is in."""

    logs: dict[TopicPartition, UUID] = field(default_factory=dict)
    dirs: dict[TopicPartition, int] = field(default_factory=dict)
    broken: set[int] = field(default_factory=set)
    """Failed directories: their content is unreachable until the process restarts."""
    records: dict[TopicPartition, list[Record]] = field(default_factory=dict)
    flushed: dict[TopicPartition, int] = field(default_factory=dict)
    """End of the flushed part of each log, which survives a power loss."""
    is_marked_clean: bool = True
    """Whether the clean-shutdown marker exists. An unused disk has nothing to lose."""

    def flush(self) -> None:
        self.flushed = {tp: len(log) for tp, log in self.records.items()}

    def lose_power(self, rng: Random) -> None:
        """Some unflushed data is lost; sometimes a disk comes back empty."""
        is_empty = rng.random() < 0.05
        for tp, log in self.records.items():
            del log[0 if is_empty else rng.randint(self.flushed.get(tp, 0), len(log)) :]
        self.flush()

    def create(self, tp: TopicPartition, topic_id: UUID) -> None:
        """A new log goes to the directory with the fewest logs."""
        counts = {d: 0 for d in range(LOG_DIRS) if d not in self.broken}
        for used in self.dirs.values():
            if used in counts:
                counts[used] += 1
        self.logs[tp] = topic_id
        self.records[tp] = []
        self.dirs[tp] = min(counts, key=lambda d: (counts[d], d))

    def delete(self, tp: TopicPartition) -> None:
        self.logs.pop(tp, None)
        self.dirs.pop(tp, None)
        self.records.pop(tp, None)
        self.flushed.pop(tp, None)


class BrokerModel:
    """`stop_epochs`: whether a StopReplica carries leader epochs (version 3 on).

    `registered_epoch` returns the epoch of the broker's registration in ZooKeeper. Without it, every newer broker epoch
    is accepted.
    """

    def __init__(
        self,
        broker_id: int,
        disk: Disk,
        on_leader: Callable[[int, LeaderAndIsrPartition, UUID], None],
        *,
        stop_epochs: bool = True,
        registered_epoch: Callable[[], int] | None = None,
    ) -> None:
        self.id = broker_id
        self.disk = disk
        self.broker_epoch = -1
        self.controller_epoch = 0
        self.metadata = MetadataCache(broker_id)
        self.hosted: dict[TopicPartition, Hosted] = {}
        self.offline: set[TopicPartition] = set()
        """Partitions in a directory that failed in this process."""
        self._on_leader = on_leader
        self.has_stop_epochs = stop_epochs
        self._registered_epoch = registered_epoch

    def copy(self) -> BrokerModel:
        """Return an independent copy with the same knowledge and logs."""
        records = {tp: list(log) for tp, log in self.disk.records.items()}
        disk = Disk(dict(self.disk.logs), dict(self.disk.dirs), set(self.disk.broken), records)
        twin = BrokerModel(self.id, disk, self._on_leader, stop_epochs=self.has_stop_epochs)
        twin.broker_epoch, twin.controller_epoch = self.broker_epoch, self.controller_epoch
        twin.metadata.snapshot = self.metadata.snapshot
        twin.hosted, twin.offline = dict(self.hosted), set(self.offline)
        return twin

    @property
    def controller_id(self) -> int:
        return self.metadata.controller_id

    @property
    def live(self) -> Mapping[int, BrokerEndPoints]:
        return self.metadata.snapshot.brokers

    @property
    def cache(self) -> dict[TopicPartition, PartitionState]:
        topics = self.metadata.snapshot.topics
        return {state.topic_partition: state for topic in topics.values() for state in topic.partitions.values()}

    def fail_log_dir(self, log_dir: int) -> None:
        """The directory and its content are lost for this process."""
        self.disk.broken.add(log_dir)
        for tp, used in self.disk.dirs.items():
            if used == log_dir:
                self.offline.add(tp)
                self.hosted.pop(tp, None)

    @property
    def is_tail_settled(self) -> bool:
        """As in `klamm.server.registration`, for a process whose last run did not stop cleanly."""
        return all(tp in self.hosted and self.hosted[tp].leader != NO_LEADER for tp in self.disk.logs)

    def log_ends(self, asked: Iterable[tuple[TopicPartition, int]]) -> dict[TopicPartition, LogEnd | None]:
        """As in `klamm.apis.offset_for_leader_epoch`: without partitions whose leader epoch is not known here yet."""
        ends: dict[TopicPartition, LogEnd | None] = {}
        for tp, epoch in asked:
            mine = self.hosted.get(tp)
            if tp in self.offline:
                ends[tp] = None
            elif mine is not None and mine.leader_epoch >= epoch:
                log = self.disk.records[tp]
                ends[tp] = LogEnd(log[-1].epoch if log else NO_EPOCH, len(log))
        return ends

    def handle(self, request: ControlRequest) -> ControlResponse:
        error = self._check_head(request.head)
        if error is not ErrorCode.NONE:
            return ControlResponse(error)
        if isinstance(request, LeaderAndIsrRequest):
            seen = self.metadata.snapshot.controller_epoch
            assert seen == request.head.controller_epoch, (
                f"broker {self.id} got LeaderAndIsr of controller epoch {request.head.controller_epoch} "
                f"before its UpdateMetadata (seen: {seen})"
            )
            ids = dict(request.topic_ids)
            return ControlResponse(
                partition_errors=tuple(
                    (state.partition, self._become(state, ids.get(state.partition.topic, ZERO_UUID)))
                    for state in request.partitions
                )
            )
        if isinstance(request, UpdateMetadataRequest):
            self._update_metadata(request)
            return ControlResponse()
        return self._stop(request)

    def _check_head(self, head: RequestHead) -> ErrorCode:
        if head.broker_epoch < self.broker_epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        if head.broker_epoch > self.broker_epoch and not self.is_registered_as(head.broker_epoch):
            return ErrorCode.STALE_BROKER_EPOCH
        if head.controller_epoch < self.controller_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        self.controller_epoch = head.controller_epoch
        return ErrorCode.NONE

    def is_registered_as(self, broker_epoch: int) -> bool:
        """As in `klamm.replica.controller_guard`: a controller may know of a registration before its broker does."""
        return self._registered_epoch is None or broker_epoch == self._registered_epoch()

    def _become(self, state: LeaderAndIsrPartition, topic_id: UUID) -> ErrorCode:
        tp, wanted = state.partition, state.leader_and_isr
        if tp in self.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        on_disk = self.disk.logs.get(tp, topic_id)
        if on_disk != topic_id:
            return ErrorCode.INCONSISTENT_TOPIC_ID
        mine = self.hosted.get(tp)
        if mine is not None and wanted.leader_epoch <= mine.leader_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if self.id not in state.replicas:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if tp not in self.disk.logs:
            if self.disk.broken and not state.is_new:  # it may be in the directory that failed
                self.offline.add(tp)
                return ErrorCode.KAFKA_STORAGE_ERROR
            self.disk.create(tp, topic_id)
        self.hosted[tp] = Hosted(
            wanted.leader,
            wanted.leader_epoch,
            wanted.isr,
            wanted.partition_epoch,
            replicas=state.replicas,
            adding=state.adding_replicas,
            controller_epoch=state.controller_epoch,
            topic_id=topic_id,
            high_watermark=0 if mine is None else mine.high_watermark,
        )
        if wanted.leader == self.id:
            self._on_leader(self.id, state, topic_id)
        return ErrorCode.NONE

    def _update_metadata(self, request: UpdateMetadataRequest) -> None:
        head, body = request.head, request.body
        self.metadata.update(
            MetadataUpdate(
                head.controller_id, head.controller_epoch, body.live_brokers, _topics_of(body, head), head.broker_epoch
            )
        )

    def _stop(self, request: StopReplicaRequest) -> ControlResponse:
        errors = []
        for state in request.partitions:
            tp = state.partition
            error = self._check_stop(tp, state.leader_epoch if self.has_stop_epochs else NO_EPOCH)
            errors.append((tp, error))
            if state.delete and error is ErrorCode.NONE:
                self.hosted.pop(tp, None)
                self.disk.delete(tp)
        return ControlResponse(partition_errors=tuple(errors))

    def _check_stop(self, tp: TopicPartition, leader_epoch: int) -> ErrorCode:
        if tp in self.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        mine = self.hosted.get(tp)
        if mine is None or leader_epoch in (EPOCH_DURING_DELETE, NO_EPOCH):
            return ErrorCode.NONE
        return ErrorCode.FENCED_LEADER_EPOCH if leader_epoch < mine.leader_epoch else ErrorCode.NONE


_converted: dict[tuple[int, int], tuple[UpdateMetadataBody, tuple[TopicUpdate, ...]]] = {}


def _topics_of(body: UpdateMetadataBody, head: RequestHead) -> tuple[TopicUpdate, ...]:
    """A body is delivered several times and converted once per broker. It is kept alive, so its id stays unique."""
    key = (id(body), head.broker_epoch)
    known = _converted.get(key)
    if known is None:
        if len(_converted) > 500:
            _converted.clear()
        known = _converted[key] = (body, _convert(body, head))
    return known[1]


def _convert(body: UpdateMetadataBody, head: RequestHead) -> tuple[TopicUpdate, ...]:
    ids = dict(body.topic_ids)
    topics: dict[str, list[PartitionState]] = {}
    for it in body.partitions:
        topic, partition = it.partition
        state = PartitionState(
            topic,
            partition,
            controller_epoch=head.controller_epoch,
            leader=it.leader,
            leader_epoch=it.leader_epoch,
            isr=it.isr,
            partition_epoch=it.zk_version,
            replicas=it.replicas,
            offline_replicas=it.offline_replicas,
            broker_epoch=head.broker_epoch,
        )
        topics.setdefault(topic, []).append(state)
    return tuple(TopicUpdate(t, tuple(states), ids.get(t, ZERO_UUID)) for t, states in topics.items())
