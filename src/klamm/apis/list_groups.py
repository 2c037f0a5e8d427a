"""ListGroups (16): the groups that this broker coordinates; a client asks every broker for the whole picture.

v0-5: throttling before the wait v2 (KIP-219); flexible v3; a filter by state, and the state in the answer, v4
(KIP-518); a filter by type, and the type, v5 (KIP-848). All groups here are of type "classic". While a partition of
`__consumer_offsets` is loading the list is incomplete and says so with COORDINATOR_LOAD_IN_PROGRESS.
"""

from __future__ import annotations

from klamm.apis.api_declaration import Api, Broker, Plane, RequestContext
from klamm.coordinator.group_coordinator import GroupCoordinator
from klamm.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse


def handle(broker: Broker, ctx: RequestContext, req: ListGroupsRequest) -> ListGroupsResponse:
    groups: GroupCoordinator = broker.groups
    error, overviews = groups.list_groups(req.states_filter, req.types_filter)
    listed = [
        ListedGroup(
            group_id=group.group_id,
            protocol_type=group.protocol_type,
            group_state=group.state,
            group_type=group.group_type,
        )
        for group in overviews
    ]
    return ListGroupsResponse(error_code=error, groups=listed)


API = Api(ListGroupsRequest, ListGroupsResponse, versions=(0, 5), plane=Plane.DATA, handle=handle, is_read=True)
