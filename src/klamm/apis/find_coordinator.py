"""FindCoordinator (10): returns the broker that coordinates a group.

v0-6: key type v1 (KIP-98: 0 group, 1 transaction); throttling before the wait v2 (KIP-219); flexible v3; several keys
in one request v4 (KIP-699), every one of them echoed with its own error; v5 and v6 (KIP-890, KIP-932) change nothing
here. The coordinator of a group is the leader of its partition of `__consumer_offsets`. When that topic is missing
the controller is asked to create it, and the client gets COORDINATOR_NOT_AVAILABLE and asks again; with too few brokers
alive for it the message, and the broker's log once in a while, say so. Left out: transactions (key type 1 is
TRANSACTIONAL_ID_AUTHORIZATION_FAILED, which no client tries again) and share groups (key type 2, INVALID_REQUEST).
"""

from __future__ import annotations

from klamm.apis import missing_topics
from klamm.apis.api_declaration import Api, Broker, Plane, RequestContext, Sliced
from klamm.apis.slices import Steps, begin, each
from klamm.coordinator.group_coordinator import GroupCoordinator
from klamm.errors import ErrorCode
from klamm.model import GROUP_METADATA_TOPIC
from klamm.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

_GROUP = 0
_TRANSACTION = 1

_MESSAGES = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "The coordinator is not available.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "This cluster has no transactions: leave transactional.id out.",
    ErrorCode.INVALID_REQUEST: "Coordinators are found for groups (key type 0) only.",
}


def handle(
    broker: Broker, ctx: RequestContext, req: FindCoordinatorRequest
) -> FindCoordinatorResponse | Sliced[FindCoordinatorResponse]:
    if ctx.api_version >= 4:
        return begin(_find_all(broker, ctx, req))
    found_one = _find(broker, ctx, req.key_type, req.key)
    return FindCoordinatorResponse(
        error_code=found_one.error_code,
        error_message=found_one.error_message,
        node_id=found_one.node_id,
        host=found_one.host,
        port=found_one.port,
    )


def _find_all(broker: Broker, ctx: RequestContext, req: FindCoordinatorRequest) -> Steps[FindCoordinatorResponse]:
    found = yield from each(req.coordinator_keys, lambda key: _find(broker, ctx, req.key_type, key))
    return FindCoordinatorResponse(coordinators=found)


def _find(broker: Broker, ctx: RequestContext, key_type: int, key: str) -> Coordinator:
    if key_type != _GROUP:
        is_known = key_type == _TRANSACTION
        return _failed(key, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED if is_known else ErrorCode.INVALID_REQUEST)
    groups: GroupCoordinator = broker.groups
    snapshot = broker.metadata.snapshot
    if snapshot.topic(GROUP_METADATA_TOPIC) is None:
        missing_topics.create_missing(broker, [GROUP_METADATA_TOPIC])
        return _failed(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, missing_topics.why_no_offsets_topic(broker))
    partition = snapshot.partition(GROUP_METADATA_TOPIC, groups.partition_for(key))
    endpoint = None if partition is None else snapshot.endpoint(partition.leader, ctx.listener_name)
    if partition is None or endpoint is None:
        return _failed(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return Coordinator(
        key=key,
        node_id=partition.leader,
        host=endpoint.host,
        port=endpoint.port,
        error_code=ErrorCode.NONE,
        error_message="" if ctx.api_version >= 4 else "NONE",
    )


def _failed(key: str, error: ErrorCode, why: str | None = None) -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=error, error_message=why or _MESSAGES[error])


API = Api(
    FindCoordinatorRequest, FindCoordinatorResponse, versions=(0, 6), plane=Plane.DATA, handle=handle, is_read=True
)
