"""ListGroups (16): the groups that this broker coordinates. A client asks all brokers to get all groups.

v0-5: throttling before the wait v2 (KIP-219); flexible v3; a filter by state, and the state in the answer, v4
(KIP-518); a filter by type, and the type, v5 (KIP-848). All groups here are of type "classic". While a partition of
`__consumer_offsets` is loading, the list is incomplete and has the error COORDINATOR_LOAD_IN_PROGRESS.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Final

from klamm.apis.access import may, may_on_cluster
from klamm.apis.api_declaration import Answer, Api, Broker, Plane, RequestContext
from klamm.apis.slices import each
from klamm.coordinator.group_coordinator import GroupCoordinator
from klamm.coordinator.group_metadata import GroupState
from klamm.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from klamm.security.acl.bindings import AclOperation, ResourceType
from klamm.waiting import Steps, begin

_KNOWN: Final = {*(state.value.lower() for state in GroupState), "classic"}
_UNKNOWN: Final = ""


def handle(broker: Broker, ctx: RequestContext, req: ListGroupsRequest) -> Answer[ListGroupsResponse]:
    return begin(_list(broker, ctx, req))


def _list(broker: Broker, ctx: RequestContext, req: ListGroupsRequest) -> Steps[ListGroupsResponse]:
    groups: GroupCoordinator = broker.groups
    states = yield from _known(req.states_filter)
    types = yield from _known(req.types_filter)
    error, overviews = groups.list_groups(states, types)
    if not may_on_cluster(broker, ctx, AclOperation.DESCRIBE, is_probe=True):
        kept = yield from each(
            overviews,
            lambda group: may(broker, ctx, AclOperation.DESCRIBE, ResourceType.GROUP, group.group_id, is_probe=True),
        )
        overviews = list(compress(overviews, kept))
    listed = yield from each(
        overviews,
        lambda group: ListedGroup(
            group_id=group.group_id,
            protocol_type=group.protocol_type,
            group_state=group.state,
            group_type=group.group_type,
        ),
    )
    return ListGroupsResponse(error_code=error, groups=listed)


def _known(names: Sequence[str]) -> Steps[set[str]]:
    """Return the names that a group can match; one name stands for all others, of which there may be very many."""
    found: set[str] = set()

    def add(name: str) -> None:
        found.add(name.lower() if name.lower() in _KNOWN else _UNKNOWN)

    yield from each(names, add)
    return found


API = Api(ListGroupsRequest, ListGroupsResponse, versions=(0, 5), plane=Plane.DATA, handle=handle, is_read=True)
