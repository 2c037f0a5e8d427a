"""DeleteGroups (42): deletes groups without members, with all their offsets (KIP-229).

v0-2: throttling before the wait v1 (KIP-219); flexible v2. A group with members is NON_EMPTY_GROUP, an unknown one
GROUP_ID_NOT_FOUND. The answer waits until the tombstones are written; if they cannot be, the group stays.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from klamm.apis.api_declaration import Answer, Api, Broker, Plane, RequestContext
from klamm.apis.guards import Each
from klamm.apis.slices import each
from klamm.coordinator.group_coordinator import GroupCoordinator
from klamm.errors import ErrorCode
from klamm.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from klamm.security.acl.bindings import AclOperation, ResourceType
from klamm.waiting import Steps, all_results, begin, result_of

_GROUPS_PER_SLICE: Final = 20


def handle(broker: Broker, ctx: RequestContext, req: DeleteGroupsRequest) -> Answer[DeleteGroupsResponse]:
    return begin(_delete(broker, ctx, req))


def _delete(broker: Broker, ctx: RequestContext, req: DeleteGroupsRequest) -> Steps[Any]:
    groups: GroupCoordinator = broker.groups

    def delete(part: list[str]) -> dict[str, ErrorCode] | asyncio.Future[dict[str, ErrorCode]]:
        return groups.delete_groups(part).on(broker.loop)

    once: dict[str, None] = {}
    yield from each(req.groups_names, once.setdefault)
    names = list(once)
    ctx.hold(once)
    starts = range(0, len(names), _GROUPS_PER_SLICE)
    deleted = yield from each(starts, lambda start: delete(names[start : start + _GROUPS_PER_SLICE]), 1)
    ctx.hold(deleted)
    return (yield from _response(ctx, (yield from result_of(all_results(deleted)))))


def _response(ctx: RequestContext, parts: list[dict[str, ErrorCode]]) -> Steps[DeleteGroupsResponse]:
    ctx.hold(parts)
    results = yield from each(
        (found for part in parts for found in part.items()),
        lambda found: DeletableGroupResult(group_id=found[0], error_code=found[1]),
    )
    return DeleteGroupsResponse(throttle_time_ms=0, results=results)


_GUARD: Final = Each(
    kind=ResourceType.GROUP,
    operation=AclOperation.DELETE,
    asked="groups_names",
    answers="results",
    name=lambda group_id: group_id,
    refuse=lambda group_id, error: DeletableGroupResult(group_id=group_id, error_code=error),
)
API = Api(DeleteGroupsRequest, DeleteGroupsResponse, versions=(0, 2), plane=Plane.DATA, handle=handle, guard=_GUARD)
