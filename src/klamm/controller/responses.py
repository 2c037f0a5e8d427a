"""The answers to control requests as logical values, and the events that they become."""

from __future__ import annotations

from klamm.controller.events import (
    ControllerEvent,
    LeaderAndIsrResponseReceived,
    TopicDeletionStopReplicaResponseReceived,
    UpdateMetadataResponseReceived,
)
from klamm.controller.requests import ControlRequest, LeaderAndIsrRequest, UpdateMetadataRequest
from klamm.errors import ErrorCode
from klamm.lazy_dataclass import lazy_dataclass
from klamm.model import NO_EPOCH, TopicPartition


@lazy_dataclass(frozen=True, slots=True)
class ControlResponse:
    """`partition_errors` is empty where the whole request failed, and for UpdateMetadata."""

    error: ErrorCode = ErrorCode.NONE
    partition_errors: tuple[tuple[TopicPartition, ErrorCode], ...] = ()


def response_event(broker_id: int, request: ControlRequest, response: ControlResponse) -> ControllerEvent | None:
    """Return None if the controller needs no event, as for a StopReplica that deletes nothing.

    A StopReplica that failed as a whole failed for every partition, so that no deletion waits forever.
    """
    if isinstance(request, LeaderAndIsrRequest):
        asked = {state.partition: state.leader_and_isr.leader_epoch for state in request.partitions}
        epochs = tuple([asked.get(tp, NO_EPOCH) for tp, _ in response.partition_errors])
        return LeaderAndIsrResponseReceived(broker_id, request.head, response.error, response.partition_errors, epochs)
    if isinstance(request, UpdateMetadataRequest):
        return UpdateMetadataResponseReceived(broker_id, request.head, response.error)
    errors = dict(response.partition_errors)
    missing = response.error or ErrorCode.UNKNOWN_SERVER_ERROR
    deleted = tuple((s.partition, errors.get(s.partition, missing)) for s in request.partitions if s.delete)
    if not deleted:
        return None
    epochs = tuple(s.leader_epoch for s in request.partitions if s.delete)
    return TopicDeletionStopReplicaResponseReceived(broker_id, request.head, response.error, deleted, epochs)
