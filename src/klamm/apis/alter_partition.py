"""AlterPartition (56): a leader asks the controller to change its ISR (KIP-497).

v0-3: recovery state v1; topics by id v2; broker epochs beside the ISR's ids v3. A broker that is not the controller
answers NOT_CONTROLLER (41). A request from before the leader's last registration is STALE_BROKER_EPOCH (77). If
ZooKeeper does not answer within `controller.socket.timeout.ms`, the answer is REQUEST_TIMED_OUT (7). The leader
retries. A partition whose state cannot be written, or whose leader knows another version of it, is UNKNOWN_SERVER_ERROR
(-1), or NOT_CONTROLLER if that version is newer. Kafka's leaders repeat both at once, so the next request on the
connection waits for 50 ms (decision 0049).
"""

from __future__ import annotations

import asyncio
from typing import Final

from klamm.apis.api_declaration import Api, Broker, Plane, RequestContext
from klamm.apis.guards import FromPeer
from klamm.apis.parts import Parts, in_parts
from klamm.controller import events
from klamm.controller.replies import AlterPartitionResult, AlterPartitionResults
from klamm.errors import ErrorCode
from klamm.model import LeaderRecoveryState
from klamm.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    PartitionData,
    ResponsePartitionData,
    ResponseTopicData,
    TopicData,
)
from klamm.waiting import after

_PAUSE_MS: Final = 50
"""The pause of klamm's leaders, and of Kafka's after a refused request."""
_REPEATED: Final = (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NOT_CONTROLLER)


def handle(
    broker: Broker, ctx: RequestContext, req: AlterPartitionRequest
) -> AlterPartitionResponse | asyncio.Future[AlterPartitionResponse]:
    items = tuple(_item(ctx.api_version, topic, partition) for topic in req.topics for partition in topic.partitions)
    event = events.AlterPartition(req.broker_id, req.broker_epoch, items, ctx.api_version)

    def respond(results: AlterPartitionResults) -> AlterPartitionResponse:
        if any(result.error in _REPEATED for result in results.partitions):
            ctx.throttle(_PAUSE_MS)
        return _response(results)

    return after(broker.controller.submit(event, broker.config.controller_socket_timeout_ms), respond)


def _item(version: int, topic: TopicData, partition: PartitionData) -> events.AlterPartitionItem:
    members = partition.new_isr_with_epochs
    is_recovering = partition.leader_recovery_state == LeaderRecoveryState.RECOVERING
    return events.AlterPartitionItem(
        partition=partition.partition_index,
        leader_epoch=partition.leader_epoch,
        new_isr=tuple(partition.new_isr) if version < 3 else tuple(member.broker_id for member in members),
        partition_epoch=partition.partition_epoch,
        topic=topic.topic_name,
        topic_id=topic.topic_id,
        leader_recovery_state=LeaderRecoveryState.RECOVERING if is_recovering else LeaderRecoveryState.RECOVERED,
        isr_broker_epochs=tuple(member.broker_epoch for member in members),
    )


def _response(results: AlterPartitionResults) -> AlterPartitionResponse:
    topics: dict[object, ResponseTopicData] = {}
    grouped: dict[object, list[ResponsePartitionData]] = {}
    for result in results.partitions:
        key = (result.topic, result.topic_id)
        if key not in topics:
            grouped[key] = []
            topics[key] = ResponseTopicData(topic_name=result.topic, topic_id=result.topic_id, partitions=grouped[key])
        grouped[key].append(_partition(result))
    return AlterPartitionResponse(throttle_time_ms=0, error_code=results.error, topics=list(topics.values()))


def _partition(result: AlterPartitionResult) -> ResponsePartitionData:
    state = result.leader_and_isr
    if state is None or result.error != ErrorCode.NONE:
        return ResponsePartitionData(
            partition_index=result.partition,
            error_code=result.error,
            leader_id=-1,
            leader_epoch=-1,
            partition_epoch=-1,
        )
    return ResponsePartitionData(
        partition_index=result.partition,
        error_code=ErrorCode.NONE,
        leader_id=state.leader,
        leader_epoch=state.leader_epoch,
        isr=state.isr,
        leader_recovery_state=state.leader_recovery_state,
        partition_epoch=state.partition_epoch,
    )


_PARTS: Final = Parts(asked="topics", answers="topics", rows="partitions", row_answers="partitions", name="topic_id")
_GUARD: Final = FromPeer(
    lambda ctx, req, error: AlterPartitionResponse(throttle_time_ms=0, error_code=error, topics=()),
    sender=lambda req: req.broker_id,
)
API = Api(
    AlterPartitionRequest,
    AlterPartitionResponse,
    versions=(0, 3),
    plane=Plane.CONTROL,
    handle=in_parts(handle, _PARTS),
    guard=_GUARD,
)
