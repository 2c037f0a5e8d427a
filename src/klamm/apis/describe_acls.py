"""DescribeAcls (29): the access control entries that match a filter, by resource.

v0-3: prefixed patterns v1; flexible v2; v3 only adds a resource type. It needs DESCRIBE on the cluster. A filter with
an unknown code is INVALID_REQUEST (42). Without an authorizer the answer is SECURITY_DISABLED (54).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from klamm.apis.acl_requests import filter_of
from klamm.apis.api_declaration import Answer, Api, Broker, Plane, RequestContext
from klamm.apis.guards import NOT_AUTHORIZED, needs_cluster
from klamm.apis.slices import SLICE, each
from klamm.errors import ErrorCode
from klamm.protocol.chunked import ChunkedList
from klamm.protocol.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from klamm.security.acl.bindings import AclEntry, AclOperation, BindingFilter, ResourcePattern
from klamm.security.acl.rules import AclRules
from klamm.waiting import Steps, begin


def handle(broker: Broker, ctx: RequestContext, req: DescribeAclsRequest) -> Answer[DescribeAclsResponse]:
    if broker.acls is None:
        return _failed(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured on the broker")
    chosen = filter_of(req)
    if chosen.is_unknown:
        return _failed(ErrorCode.INVALID_REQUEST, "The filter contains unknown elements.")
    return begin(_describe(broker.acls.authorizer.rules, chosen))


def _describe(rules: AclRules, chosen: BindingFilter) -> Steps[DescribeAclsResponse]:
    """The rules are frozen, so the answer is that of one moment although others are served in between."""
    resources: ChunkedList[DescribeAclsResource] = ChunkedList()
    room = SLICE
    for resource in chosen.resource.named() or rules.resources():
        room -= 1
        if chosen.resource.matches(resource):
            entries = rules.entries(resource)
            room -= len(entries)
            found = yield from each(filter(chosen.entry.matches, entries), _description)
            if found:
                resources.append(_resource(resource, found))
        if room < 0:
            room = SLICE
            yield
    return DescribeAclsResponse(error_code=ErrorCode.NONE, error_message=None, resources=resources)


def _resource(resource: ResourcePattern, acls: Sequence[AclDescription]) -> DescribeAclsResource:
    return DescribeAclsResource(
        resource_type=resource.type, resource_name=resource.name, pattern_type=resource.pattern, acls=acls
    )


def _description(entry: AclEntry) -> AclDescription:
    return AclDescription(
        principal=entry.principal, host=entry.host, operation=entry.operation, permission_type=entry.permission
    )


def _failed(error: ErrorCode, message: str) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=error, error_message=message, resources=())


_GUARD: Final = needs_cluster(AclOperation.DESCRIBE, lambda ctx, req, error: _failed(error, NOT_AUTHORIZED))
API = Api(
    DescribeAclsRequest,
    DescribeAclsResponse,
    versions=(0, 3),
    plane=Plane.DATA,
    handle=handle,
    is_read=True,
    guard=_GUARD,
)
