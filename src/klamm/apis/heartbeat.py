"""Heartbeat (12): a member is alive; REBALANCE_IN_PROGRESS asks it to join again.

v0-4: throttle time v1; throttling before the wait v2 (KIP-219); group instance id v3 (KIP-345); flexible v4. A
coordinator that is still loading the group answers without an error.
"""

from __future__ import annotations

from typing import Final

from klamm.apis.api_declaration import Api, Broker, Plane, RequestContext
from klamm.apis.guards import Needs
from klamm.coordinator.group_coordinator import GroupCoordinator
from klamm.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from klamm.security.acl.bindings import AclOperation, ResourceType


def handle(broker: Broker, ctx: RequestContext, req: HeartbeatRequest) -> HeartbeatResponse:
    groups: GroupCoordinator = broker.groups
    error = groups.heartbeat(req.group_id, req.member_id, req.generation_id, req.group_instance_id)
    return HeartbeatResponse(error_code=error)


_GUARD: Final = Needs(
    ResourceType.GROUP,
    AclOperation.READ,
    lambda req: req.group_id,
    lambda ctx, req, error: HeartbeatResponse(error_code=error),
)
API = Api(HeartbeatRequest, HeartbeatResponse, versions=(0, 4), plane=Plane.DATA, handle=handle, guard=_GUARD)
