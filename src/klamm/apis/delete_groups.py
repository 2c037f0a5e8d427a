"""DeleteGroups (42): groups without members go, with all their offsets (KIP-229).

v0-2: throttling before the wait v1 (KIP-219); flexible v2. A group with members is NON_EMPTY_GROUP, an unknown one
GROUP_ID_NOT_FOUND. The answer waits until the tombstones are written; if they cannot be, the group stays.
"""

from __future__ import annotations

import asyncio

from klamm.apis.registry import Api, Broker, Plane, RequestContext
from klamm.coordinator.deferred import deliver
from klamm.coordinator.group_coordinator import GroupCoordinator
from klamm.errors import ErrorCode
from klamm.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse


def handle(
    broker: Broker, ctx: RequestContext, req: DeleteGroupsRequest
) -> DeleteGroupsResponse | asyncio.Future[DeleteGroupsResponse]:
    groups: GroupCoordinator = broker.groups
    return deliver(broker.loop, groups.delete_groups(req.groups_names), _response)


def _response(errors: dict[str, ErrorCode]) -> DeleteGroupsResponse:
    results = [DeletableGroupResult(group_id=group_id, error_code=error) for group_id, error in errors.items()]
    return DeleteGroupsResponse(throttle_time_ms=0, results=results)


API = Api(DeleteGroupsRequest, DeleteGroupsResponse, versions=(0, 2), plane=Plane.DATA, handle=handle)
