"""CreateAcls (30): adds access control entries; every broker with an authorizer learns of them.

v0-3: prefixed patterns v1; flexible v2; v3 only adds a resource type. It needs ALTER on the cluster. An invalid entry
is INVALID_REQUEST (42) and does not affect the others. Without an authorizer every entry is SECURITY_DISABLED (54).
The entries are in force on this broker when it answers, and on the others shortly after.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from klamm.apis.acl_requests import NO_AUTHORIZER, TOO_MANY, change_of, too_many, until_in_force
from klamm.apis.api_declaration import Api, Broker, Plane, RequestContext
from klamm.apis.guards import NOT_AUTHORIZED, needs_cluster
from klamm.apis.slices import each
from klamm.broker import Acls
from klamm.errors import ErrorCode
from klamm.protocol.messages.create_acls import AclCreation, AclCreationResult, CreateAclsRequest, CreateAclsResponse
from klamm.security.acl.bindings import (
    AclBinding,
    AclEntry,
    AclOperation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
    of_code,
    problem_of,
)
from klamm.waiting import Steps, begin, result_of

Result = tuple[ErrorCode, str | None]


def handle(broker: Broker, ctx: RequestContext, req: CreateAclsRequest) -> Any:
    acls = broker.acls
    if acls is None:
        return begin(_refusal(req, ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER))
    if too_many(req.creations):
        return begin(_refusal(req, ErrorCode.INVALID_REQUEST, TOO_MANY))
    return begin(_create_all(broker, acls, req))


def _create_all(broker: Broker, acls: Acls, req: CreateAclsRequest) -> Steps[CreateAclsResponse]:
    """One resource after the other, each with all its new entries in one write."""
    bindings = [_binding(creation) for creation in req.creations]
    results: dict[AclBinding, Result] = {}
    wanted: dict[ResourcePattern, set[AclEntry]] = {}
    for binding in bindings:
        if (problem := problem_of(binding)) is not None:
            results[binding] = ErrorCode.INVALID_REQUEST, problem
        else:
            wanted.setdefault(binding.resource, set()).add(binding.entry)
    for resource, entries in wanted.items():
        outcome = yield from result_of(change_of(broker, resource, frozenset(entries).union))
        results.update({AclBinding(resource, entry): outcome for entry in entries})
    if wanted:
        yield from result_of(until_in_force(acls, wanted))
    return CreateAclsResponse(results=_results(bindings, results))


def _results(bindings: Sequence[AclBinding], results: dict[AclBinding, Result]) -> list[AclCreationResult]:
    return [
        AclCreationResult(error_code=code, error_message=message)
        for code, message in (results[binding] for binding in bindings)
    ]


def _binding(creation: AclCreation) -> AclBinding:
    return AclBinding(
        ResourcePattern(
            of_code(ResourceType, creation.resource_type),
            creation.resource_name,
            of_code(PatternType, creation.resource_pattern_type),
        ),
        AclEntry(
            creation.principal,
            creation.host,
            of_code(AclOperation, creation.operation),
            of_code(Permission, creation.permission_type),
        ),
    )


def _refusal(req: CreateAclsRequest, error: ErrorCode, message: str) -> Steps[CreateAclsResponse]:
    results = yield from each(req.creations, lambda _: AclCreationResult(error_code=error, error_message=message))
    return CreateAclsResponse(results=results)


_GUARD: Final = needs_cluster(AclOperation.ALTER, lambda ctx, req, error: begin(_refusal(req, error, NOT_AUTHORIZED)))
API = Api(CreateAclsRequest, CreateAclsResponse, versions=(0, 3), plane=Plane.DATA, handle=handle, guard=_GUARD)
