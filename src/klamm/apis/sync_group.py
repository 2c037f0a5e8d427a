"""SyncGroup (14): the leader brings the assignment of the generation, every member takes its part of it.

v0-5: throttle time v1; throttling before the wait v2 (KIP-219); group instance id v3 (KIP-345); flexible v4; from v5
the member names protocol type and protocol, and a wrong or missing one is INCONSISTENT_GROUP_PROTOCOL (KIP-559). The
answer waits until the assignment is written to `__consumer_offsets`. A coordinator that is still loading says
REBALANCE_IN_PROGRESS: the rebalance was lost with the one before it.
"""

from __future__ import annotations

import asyncio

from klamm.apis.registry import Api, Broker, Plane, RequestContext
from klamm.coordinator.deferred import deliver
from klamm.coordinator.effects import SyncGroupResult
from klamm.coordinator.group_coordinator import GroupCoordinator
from klamm.coordinator.membership import SyncGroup
from klamm.errors import ErrorCode
from klamm.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse


def handle(
    broker: Broker, ctx: RequestContext, req: SyncGroupRequest
) -> SyncGroupResponse | asyncio.Future[SyncGroupResponse]:
    if ctx.api_version >= 5 and (req.protocol_type is None or req.protocol_name is None):
        return _response(SyncGroupResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
    groups: GroupCoordinator = broker.groups
    size = sum(len(assignment.assignment) for assignment in req.assignments)
    # Assignments that are too large are not copied out of the frame: the group is not stored.
    is_copied = size <= groups.config.record_max_bytes
    sync = SyncGroup(
        generation_id=req.generation_id,
        member_id=req.member_id,
        group_instance_id=req.group_instance_id,
        protocol_type=req.protocol_type,
        protocol_name=req.protocol_name,
        assignments={a.member_id: bytes(a.assignment) if is_copied else a.assignment for a in req.assignments},
    )
    return deliver(broker.loop, groups.sync_group(req.group_id, sync), _response)


def _response(result: SyncGroupResult) -> SyncGroupResponse:
    return SyncGroupResponse(
        error_code=result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        assignment=result.assignment,
    )


API = Api(SyncGroupRequest, SyncGroupResponse, versions=(0, 5), plane=Plane.DATA, handle=handle)
