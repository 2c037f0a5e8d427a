"""SyncGroup (14): the leader sends the assignment of the generation, and every member receives its part.

v0-5: throttle time v1; throttling before the wait v2 (KIP-219); group instance id v3 (KIP-345); flexible v4; from v5
the member names protocol type and protocol, and a wrong or missing one is INCONSISTENT_GROUP_PROTOCOL (KIP-559). The
answer waits until the assignment is written to `__consumer_offsets`. A coordinator that is still loading answers
REBALANCE_IN_PROGRESS: the rebalance was lost with its predecessor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Generator
from typing import Final

from klamm.apis.api_declaration import Answer, Api, Broker, Plane, RequestContext, at_once
from klamm.apis.copies import INLINE_BYTES, copy
from klamm.apis.guards import Needs
from klamm.coordinator.effects import SyncGroupResult
from klamm.coordinator.group_coordinator import GroupCoordinator
from klamm.coordinator.membership import SyncGroup
from klamm.errors import ErrorCode
from klamm.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from klamm.security.acl.bindings import AclOperation, ResourceType
from klamm.waiting import after

_SLICE: Final = 1000
"""Assignments that are read in one slice of the loop."""


def handle(broker: Broker, ctx: RequestContext, req: SyncGroupRequest) -> Answer[SyncGroupResponse]:
    if ctx.api_version >= 5 and (req.protocol_type is None or req.protocol_name is None):
        return _response(SyncGroupResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
    steps = _sync_in_slices(broker, req)
    return at_once(steps) if len(req.assignments) <= _SLICE else steps


def _sync_in_slices(
    broker: Broker, req: SyncGroupRequest
) -> Generator[None, None, SyncGroupResponse | asyncio.Future[SyncGroupResponse]]:
    size = yield from _size(req)
    groups: GroupCoordinator = broker.groups
    members = groups.member_ids(req.group_id)
    if size > groups.config.record_max_bytes:
        # Not copied out of the frame: the group is not stored.
        return _sync(broker, req, (yield from _assignments(req, members, lambda view: view)))
    if size <= INLINE_BYTES:
        return _sync(broker, req, (yield from _assignments(req, members, bytes)))
    copied = broker.replicas.record_checks.submit(lambda: at_once(_assignments(req, members, copy)))
    return after(copied, lambda assignments: _sync(broker, req, assignments))


def _size(req: SyncGroupRequest) -> Generator[None, None, int]:
    size = 0
    for number, given in enumerate(req.assignments, 1):
        size += len(given.assignment)
        if number % _SLICE == 0:
            yield
    return size


def _assignments(
    req: SyncGroupRequest, members: Container[str], take: Callable[[bytes], bytes]
) -> Generator[None, None, dict[str, bytes]]:
    """Return the assignments of the members; others have none. No member joins within a generation."""
    assignments: dict[str, bytes] = {}
    for number, given in enumerate(req.assignments, 1):
        if given.member_id in members:
            assignments[given.member_id] = take(given.assignment)
        if number % _SLICE == 0:
            yield
    return assignments


def _sync(
    broker: Broker, req: SyncGroupRequest, assignments: dict[str, bytes]
) -> SyncGroupResponse | asyncio.Future[SyncGroupResponse]:
    groups: GroupCoordinator = broker.groups
    sync = SyncGroup(
        generation_id=req.generation_id,
        member_id=req.member_id,
        group_instance_id=req.group_instance_id,
        protocol_type=req.protocol_type,
        protocol_name=req.protocol_name,
        assignments=assignments,
    )
    return after(groups.sync_group(req.group_id, sync).on(broker.loop, "Rebalance", req.group_id), _response)


def _response(result: SyncGroupResult) -> SyncGroupResponse:
    return SyncGroupResponse(
        error_code=result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        assignment=result.assignment,
    )


_GUARD: Final = Needs(
    ResourceType.GROUP,
    AclOperation.READ,
    lambda req: req.group_id,
    lambda ctx, req, error: _response(SyncGroupResult(error)),
)
API = Api(SyncGroupRequest, SyncGroupResponse, versions=(0, 5), plane=Plane.DATA, handle=handle, guard=_GUARD)
