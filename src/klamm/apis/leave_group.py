"""LeaveGroup (13): members leave, and the others share their work without waiting for the session timeout.

v0-5: one member, its error at the top, before v3; from v3 several members with an error each, and static members by
their group instance id alone, as an operator removes them (KIP-345); flexible v4; the reason v5 (KIP-800), not kept.
"""

from __future__ import annotations

from typing import Final

from klamm.apis.api_declaration import Api, Broker, Plane, RequestContext
from klamm.apis.guards import Needs
from klamm.apis.parts import Parts, in_parts
from klamm.coordinator.group_coordinator import GroupCoordinator
from klamm.coordinator.membership import MemberIdentity
from klamm.errors import ErrorCode
from klamm.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse
from klamm.security.acl.bindings import AclOperation, ResourceType


def handle(broker: Broker, ctx: RequestContext, req: LeaveGroupRequest) -> LeaveGroupResponse:
    groups: GroupCoordinator = broker.groups
    if ctx.api_version < 3:
        error, left = groups.leave_group(req.group_id, [MemberIdentity(req.member_id)])
        return LeaveGroupResponse(error_code=error if error is not ErrorCode.NONE else left[0].error)
    leaving = [MemberIdentity(member.member_id, member.group_instance_id) for member in req.members]
    error, left = groups.leave_group(req.group_id, leaving)
    responses = [
        MemberResponse(
            member_id=member.identity.member_id,
            group_instance_id=member.identity.group_instance_id,
            error_code=member.error,
        )
        for member in left
    ]
    return LeaveGroupResponse(error_code=error, members=responses)


_PARTS: Final = Parts(asked="members", answers="members")
_GUARD: Final = Needs(
    ResourceType.GROUP,
    AclOperation.READ,
    lambda req: req.group_id,
    lambda ctx, req, error: LeaveGroupResponse(error_code=error),
)
API = Api(
    LeaveGroupRequest,
    LeaveGroupResponse,
    versions=(0, 5),
    plane=Plane.DATA,
    handle=in_parts(handle, _PARTS),
    guard=_GUARD,
)
