"""What a broker does with control requests, by Kafka's rules of epochs: enough to see what a controller causes.

Memory (epochs seen, cache, partitions) is lost with the process; logs stay on the disk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from klamm.controller.requests import (
    ControlRequest,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    RequestHead,
    StopReplicaRequest,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
)
from klamm.controller.responses import ControlResponse
from klamm.errors import ErrorCode
from klamm.model import (
    EPOCH_DURING_DELETE,
    LEADER_DURING_DELETE,
    NO_CONTROLLER,
    NO_EPOCH,
    ZERO_UUID,
    BrokerEndPoints,
    TopicPartition,
)


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


@dataclass(slots=True)
class Disk:
    """Partitions with a log, and the id of the topic each belongs to."""

    logs: dict[TopicPartition, UUID] = field(default_factory=dict)


class BrokerModel:
    def __init__(
        self, broker_id: int, disk: Disk, on_leader: Callable[[int, LeaderAndIsrPartition, UUID], None]
    ) -> None:
        self.id = broker_id
        self.disk = disk
        self.broker_epoch = -1
        self.controller_epoch = 0
        self.metadata_epoch = 0
        self.metadata_broker_epoch = -1
        self.controller_id = NO_CONTROLLER
        self.live: dict[int, BrokerEndPoints] = {}
        self.cache: dict[TopicPartition, UpdateMetadataPartition] = {}
        self.hosted: dict[TopicPartition, Hosted] = {}
        self._on_leader = on_leader

    def handle(self, request: ControlRequest) -> ControlResponse:
        error = self._check_head(request.head)
        if error is not ErrorCode.NONE:
            return ControlResponse(error)
        if isinstance(request, LeaderAndIsrRequest):
            assert self.metadata_epoch == request.head.controller_epoch, (
                f"broker {self.id} got LeaderAndIsr of controller epoch {request.head.controller_epoch} "
                f"before its UpdateMetadata (seen: {self.metadata_epoch})"
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
        if head.controller_epoch < self.controller_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        self.controller_epoch = head.controller_epoch
        return ErrorCode.NONE

    def _become(self, state: LeaderAndIsrPartition, topic_id: UUID) -> ErrorCode:
        tp, wanted = state.partition, state.leader_and_isr
        on_disk = self.disk.logs.get(tp, topic_id)
        if on_disk != topic_id:
            return ErrorCode.INCONSISTENT_TOPIC_ID
        mine = self.hosted.get(tp)
        if mine is not None and wanted.leader_epoch <= mine.leader_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if self.id not in state.replicas:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        self.disk.logs[tp] = topic_id
        self.hosted[tp] = Hosted(
            wanted.leader,
            wanted.leader_epoch,
            wanted.isr,
            wanted.partition_epoch,
            state.replicas,
            state.adding_replicas,
            state.controller_epoch,
            topic_id,
        )
        if wanted.leader == self.id:
            self._on_leader(self.id, state, topic_id)
        return ErrorCode.NONE

    def _update_metadata(self, request: UpdateMetadataRequest) -> None:
        """The first update for a new incarnation of this broker says everything: what it does not name is gone."""
        if request.head.broker_epoch > self.metadata_broker_epoch:
            self.metadata_broker_epoch = request.head.broker_epoch
            self.cache.clear()
        self.metadata_epoch = request.head.controller_epoch
        self.controller_id = request.head.controller_id
        self.live = {broker.id: broker for broker in request.body.live_brokers}
        for state in request.body.partitions:
            if state.leader == LEADER_DURING_DELETE:
                self.cache.pop(state.partition, None)
            else:
                self.cache[state.partition] = state

    def _stop(self, request: StopReplicaRequest) -> ControlResponse:
        errors = []
        for state in request.partitions:
            tp = state.partition
            mine = self.hosted.get(tp)
            overrides = state.leader_epoch in (EPOCH_DURING_DELETE, NO_EPOCH)
            if mine is not None and not overrides and state.leader_epoch < mine.leader_epoch:
                errors.append((tp, ErrorCode.FENCED_LEADER_EPOCH))
                continue
            if state.delete:
                self.hosted.pop(tp, None)
                self.disk.logs.pop(tp, None)
            errors.append((tp, ErrorCode.NONE))
        return ControlResponse(partition_errors=tuple(errors))
