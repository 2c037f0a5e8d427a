"""DeleteAcls (31): removes the access control entries that match filters, and names them.

v0-3: prefixed patterns v1; flexible v2; v3 only adds a resource type. It needs ALTER on the cluster. A filter with an
unknown code is INVALID_REQUEST (42). Without an authorizer every filter is SECURITY_DISABLED (54). A filter that does
not name one resource applies to the resources that this broker knows.
"""

from __future__ import annotations

from typing import Any, Final

from klamm.apis.acl_requests import NO_AUTHORIZER, TOO_MANY, change_of, filter_of, too_many, until_in_force
from klamm.apis.api_declaration import Api, Broker, Plane, RequestContext
from klamm.apis.guards import NOT_AUTHORIZED, needs_cluster
from klamm.apis.slices import each
from klamm.apis.zookeeper_waits import Outcome
from klamm.broker import Acls
from klamm.errors import ErrorCode
from klamm.protocol.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from klamm.security.acl.bindings import AclBinding, AclEntry, AclOperation, BindingFilter, ResourcePattern
from klamm.security.acl.rules import Entries
from klamm.waiting import Steps, begin, result_of

_AT_ONCE: Final = 2_000
"""Comparisons of a resource with a filter before the loop serves others."""
_Numbered = tuple[int, BindingFilter]
"""A filter and its place in the request."""


def handle(broker: Broker, ctx: RequestContext, req: DeleteAclsRequest) -> Any:
    acls = broker.acls
    if acls is None:
        return begin(_refusal(req, ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER))
    if too_many(req.filters):
        return begin(_refusal(req, ErrorCode.INVALID_REQUEST, TOO_MANY))
    return begin(_delete_all(broker, acls, req))


def _delete_all(broker: Broker, acls: Acls, req: DeleteAclsRequest) -> Steps[DeleteAclsResponse]:
    filters = [filter_of(each) for each in req.filters]
    usable = [chosen for chosen in filters if not chosen.is_unknown]
    deleted: dict[AclBinding, BindingFilter] = {}
    outcomes: dict[ResourcePattern, Outcome] = {}
    for resource, applying in (yield from _resources(acls, usable)).items():
        in_order = [chosen for _, chosen in sorted(applying)]

        def kept(before: Entries, resource: ResourcePattern = resource, in_order: Any = in_order) -> Entries:
            """Called again after a concurrent write. This request may have removed entries of an earlier call."""
            removed = {entry: chosen for entry in before if (chosen := _first(in_order, entry)) is not None}
            for entry, chosen in removed.items():
                deleted.setdefault(AclBinding(resource, entry), chosen)
            return before - removed.keys()

        outcomes[resource] = yield from result_of(change_of(broker, resource, kept))
    if outcomes:
        yield from result_of(until_in_force(acls, outcomes))
    by_filter: dict[BindingFilter, list[DeleteAclsMatchingAcl]] = {}
    for binding, chosen in deleted.items():
        by_filter.setdefault(chosen, []).append(_matching(binding, outcomes[binding.resource]))
    return DeleteAclsResponse(filter_results=[_result(chosen, by_filter) for chosen in filters])


def _first(filters: list[BindingFilter], entry: AclEntry) -> BindingFilter | None:
    """Return the filter whose result names the entry: the first that selects it, as in Kafka."""
    return next((chosen for chosen in filters if chosen.entry.matches(entry)), None)


def _resources(acls: Acls, filters: list[BindingFilter]) -> Steps[dict[ResourcePattern, list[_Numbered]]]:
    """Return the resources that may have matching entries, with the filters that apply to each."""
    found: dict[ResourcePattern, list[_Numbered]] = {}
    wide = []
    for numbered in enumerate(filters):
        named = numbered[1].resource.named()
        for resource in named:
            found.setdefault(resource, []).append(numbered)
        if not named:
            wide.append(numbered)
    room = _AT_ONCE
    for resource in acls.authorizer.rules.resources() if wide else ():
        applying = [numbered for numbered in wide if numbered[1].resource.matches(resource)]
        if applying:
            found.setdefault(resource, []).extend(applying)
        room -= len(wide)
        if room < 0:
            room = _AT_ONCE
            yield
    return found


def _result(chosen: BindingFilter, deleted: dict[BindingFilter, list[DeleteAclsMatchingAcl]]) -> DeleteAclsFilterResult:
    """A filter that is in the request twice deletes once: its second result is empty, as in Kafka."""
    if chosen.is_unknown:
        return _failed(ErrorCode.INVALID_REQUEST, "The filter contains unknown elements.")
    return DeleteAclsFilterResult(error_code=ErrorCode.NONE, error_message=None, matching_acls=deleted.pop(chosen, ()))


def _matching(binding: AclBinding, outcome: Outcome) -> DeleteAclsMatchingAcl:
    resource, entry = binding
    return DeleteAclsMatchingAcl(
        error_code=outcome[0],
        error_message=outcome[1],
        resource_type=resource.type,
        resource_name=resource.name,
        pattern_type=resource.pattern,
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,
        permission_type=entry.permission,
    )


def _failed(error: ErrorCode, message: str) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(error_code=error, error_message=message, matching_acls=())


def _refusal(req: DeleteAclsRequest, error: ErrorCode, message: str) -> Steps[DeleteAclsResponse]:
    results = yield from each(req.filters, lambda _: _failed(error, message))
    return DeleteAclsResponse(filter_results=results)


_GUARD: Final = needs_cluster(AclOperation.ALTER, lambda ctx, req, error: begin(_refusal(req, error, NOT_AUTHORIZED)))
API = Api(DeleteAclsRequest, DeleteAclsResponse, versions=(0, 3), plane=Plane.DATA, handle=handle, guard=_GUARD)
