"""JoinGroup (11): a client becomes, or remains, a member of a group; the answer waits for the rebalance.

v0-9:

- v1: the request has a rebalance timeout (KIP-62). In v0 it is the session timeout.
- v4: a member without an id gets MEMBER_ID_REQUIRED with an id, and joins again with it (KIP-394).
- v5: a member may have a group instance id (KIP-345). It needs no second request.
- v6: flexible.
- v7: the answer has the protocol type, and its protocol name may be null (KIP-559).
- v8: the request has the client's reason (KIP-800), which is not kept.
- v9: the answer has skip_assignment, for a static leader that returns to a stable group (KIP-814).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from klamm.apis.api_declaration import Api, Broker, Plane, RequestContext
from klamm.apis.copies import INLINE_BYTES, copy
from klamm.apis.guards import Needs
from klamm.coordinator.effects import JoinGroupResult
from klamm.coordinator.group_coordinator import GroupCoordinator
from klamm.coordinator.join import JoinGroup
from klamm.coordinator.member_metadata import Protocols
from klamm.errors import ErrorCode
from klamm.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from klamm.security.acl.bindings import AclOperation, ResourceType
from klamm.waiting import after

MAX_PROTOCOLS: Final = 1000
"""Protocols of one member. Every join compares them with those of all members; clients have one to three."""


def handle(
    broker: Broker, ctx: RequestContext, req: JoinGroupRequest
) -> JoinGroupResponse | asyncio.Future[JoinGroupResponse]:
    version = ctx.api_version
    groups: GroupCoordinator = broker.groups
    if len(req.protocols) > MAX_PROTOCOLS:
        return _response(JoinGroupResult.failed(req.member_id, ErrorCode.INVALID_REQUEST), version)
    size = sum(len(protocol.metadata) for protocol in req.protocols)
    if size > groups.config.record_max_bytes:
        # Refused before the metadata is copied out of the frame.
        return _response(JoinGroupResult.failed(req.member_id, ErrorCode.UNKNOWN_SERVER_ERROR), version)
    if size <= INLINE_BYTES:
        return _join(broker, ctx, req, _protocols(req, bytes))
    copied = broker.replicas.record_checks.submit(lambda: _protocols(req, copy))
    return after(copied, lambda protocols: _join(broker, ctx, req, protocols))


def _protocols(req: JoinGroupRequest, take: Callable[[bytes], bytes]) -> Protocols:
    return tuple((protocol.name, take(protocol.metadata)) for protocol in req.protocols)


def _join(
    broker: Broker, ctx: RequestContext, req: JoinGroupRequest, protocols: Protocols
) -> JoinGroupResponse | asyncio.Future[JoinGroupResponse]:
    version = ctx.api_version
    groups: GroupCoordinator = broker.groups
    join = JoinGroup(
        member_id=req.member_id,
        group_instance_id=req.group_instance_id,
        client_id=ctx.client_id or "",
        client_host=f"/{ctx.client_host}",
        rebalance_timeout_ms=req.session_timeout_ms if version == 0 else req.rebalance_timeout_ms,
        session_timeout_ms=req.session_timeout_ms,
        protocol_type=req.protocol_type,
        protocols=protocols,
        require_known_member_id=version >= 4,
        supports_skipping_assignment=version >= 9,
    )
    joined = groups.join_group(req.group_id, join).on(broker.loop, "Rebalance", req.group_id)
    return after(joined, lambda result: _response(result, version))


def _response(result: JoinGroupResult, version: int) -> JoinGroupResponse:
    members = [
        JoinGroupResponseMember(
            member_id=member.member_id, group_instance_id=member.group_instance_id, metadata=member.metadata
        )
        for member in result.members
    ]
    return JoinGroupResponse(
        error_code=result.error,
        generation_id=result.generation_id,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name if version >= 7 else result.protocol_name or "",
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=members,
    )


_GUARD: Final = Needs(
    ResourceType.GROUP,
    AclOperation.READ,
    lambda req: req.group_id,
    lambda ctx, req, error: _response(JoinGroupResult.failed("", error), ctx.api_version),
)
API = Api(JoinGroupRequest, JoinGroupResponse, versions=(0, 9), plane=Plane.DATA, handle=handle, guard=_GUARD)
