"""DescribeGroups (15): state, protocol and members of groups that this broker coordinates.

v0-5: throttling before the wait v2 (KIP-219); authorized operations v3 (KIP-430; the smallest int32
if they were not requested); group instance ids v4 (KIP-345); flexible v5.
A group that does not exist is described as Dead, without an error; one that is named several times is described once.
Metadata and assignments are shown when it is Stable.
"""

from __future__ import annotations

from typing import Final

from klamm.apis import access
from klamm.apis.api_declaration import Answer, Api, Broker, Plane, RequestContext
from klamm.apis.guards import Each
from klamm.apis.slices import each
from klamm.coordinator.group_coordinator import GroupCoordinator, MemberSummary
from klamm.errors import ErrorCode
from klamm.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from klamm.security.acl.bindings import AclOperation, ResourceType
from klamm.waiting import Steps, begin

_GROUPS_PER_SLICE: Final = 20
_NOT_ASKED: Final = -(1 << 31)
_READ, _DELETE, _DESCRIBE = 3, 6, 8
_GROUP_OPERATIONS: Final = 1 << _READ | 1 << _DELETE | 1 << _DESCRIBE


def handle(broker: Broker, ctx: RequestContext, req: DescribeGroupsRequest) -> Answer[DescribeGroupsResponse]:
    return begin(_describe_all(broker, ctx, req))


def _describe_all(broker: Broker, ctx: RequestContext, req: DescribeGroupsRequest) -> Steps[DescribeGroupsResponse]:
    asked = req.include_authorized_operations
    # Once each: otherwise a short request that repeats the name of a large group could exhaust the memory.
    names: dict[str, None] = {}
    ctx.hold(names)
    yield from each(req.groups, names.setdefault)
    described = yield from each(names, lambda group_id: _describe(broker, ctx, group_id, asked), _GROUPS_PER_SLICE)
    return DescribeGroupsResponse(groups=described)


def _describe(broker: Broker, ctx: RequestContext, group_id: str, operations_asked: bool) -> DescribedGroup:
    groups: GroupCoordinator = broker.groups
    error, summary = groups.describe_group(group_id)
    operations = _NOT_ASKED
    if operations_asked and error is ErrorCode.NONE:
        operations = access.operations(broker, ctx, ResourceType.GROUP, group_id, all_of_them=_GROUP_OPERATIONS)
    return DescribedGroup(
        error_code=error,
        group_id=group_id,
        group_state=summary.state,
        protocol_type=summary.protocol_type,
        protocol_data=summary.protocol,
        members=[_member(member) for member in summary.members],
        authorized_operations=operations,
    )


def _member(member: MemberSummary) -> DescribedGroupMember:
    return DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata,
        member_assignment=member.assignment,
    )


_GUARD: Final = Each(
    kind=ResourceType.GROUP,
    operation=AclOperation.DESCRIBE,
    asked="groups",
    answers="groups",
    name=lambda group_id: group_id,
    refuse=lambda group_id, error: DescribedGroup(
        error_code=error, group_id=group_id, group_state="", protocol_type="", protocol_data="", members=()
    ),
)
API = Api(
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    versions=(0, 5),
    plane=Plane.DATA,
    handle=handle,
    is_read=True,
    guard=_GUARD,
)
