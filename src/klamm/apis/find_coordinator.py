"""FindCoordinator (10): returns the broker that coordinates a group or a transactional id.

v0-6: key type v1 (KIP-98: 0 group, 1 transaction); throttling before the wait v2 (KIP-219); flexible v3; several keys
in one request v4 (KIP-699), every one of them echoed with its own error; v5 and v6 (KIP-890, KIP-932) change nothing
here. The coordinator is the leader of the key's partition of `__consumer_offsets` or `__transaction_state`, by the
metadata or by a newer LeaderAndIsr. If that topic is missing, the broker asks the controller to create it, and the
client gets COORDINATOR_NOT_AVAILABLE and asks again. If too few brokers are alive for it, the response says so, and so
does the broker's log from time to time. Left out: share groups (key type 2, INVALID_REQUEST).
"""

from __future__ import annotations

from klamm.apis import missing_topics
from klamm.apis.access import FAILED, may
from klamm.apis.api_declaration import Answer, Api, Broker, Plane, RequestContext
from klamm.apis.slices import each
from klamm.errors import ErrorCode
from klamm.model import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from klamm.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from klamm.security.acl.bindings import AclOperation, ResourceType
from klamm.waiting import Steps, begin

_GROUP = 0
_TRANSACTION = 1

_KINDS = {_GROUP: ResourceType.GROUP, _TRANSACTION: ResourceType.TRANSACTIONAL_ID}
_MESSAGES = {
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Not authorized to access the group.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Not authorized to access the transactional id.",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "The coordinator is not available.",
    ErrorCode.INVALID_REQUEST: "Coordinators are found for groups (key type 0) and transactions (key type 1) only.",
}


def handle(broker: Broker, ctx: RequestContext, req: FindCoordinatorRequest) -> Answer[FindCoordinatorResponse]:
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
    kind = _KINDS.get(key_type)
    if kind is not None and not may(broker, ctx, AclOperation.DESCRIBE, kind, key):
        return _failed(key, FAILED[kind])
    if key_type == _GROUP:
        topic, index = GROUP_METADATA_TOPIC, broker.groups.partition_for(key)
    elif key_type == _TRANSACTION:
        topic, index = TRANSACTION_STATE_TOPIC, broker.transactions.partition_for(key)
    else:
        return _failed(key, ErrorCode.INVALID_REQUEST)
    snapshot = broker.metadata.snapshot
    if snapshot.topic(topic) is None:
        missing_topics.create_missing(broker, [topic])
        return _failed(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, missing_topics.why_impossible(broker, topic))
    leader = _leader(broker, TopicPartition(topic, index))
    endpoint = None if leader is None else snapshot.endpoint(leader, ctx.listener_name)
    if leader is None or endpoint is None:
        return _failed(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return Coordinator(
        key=key,
        node_id=leader,
        host=endpoint.host,
        port=endpoint.port,
        error_code=ErrorCode.NONE,
        error_message="" if ctx.api_version >= 4 else "NONE",
    )


def _leader(broker: Broker, tp: TopicPartition) -> int | None:
    """Return the newest leader that this broker knows: LeaderAndIsr reaches its replicas before the metadata."""
    partition = broker.metadata.snapshot.partition(tp.topic, tp.partition)
    if partition is None:
        return None
    hosted = broker.replicas.partitions.get(tp)
    if hosted is not None and hosted.leader_epoch > partition.leader_epoch:
        return hosted.leader
    return partition.leader


def _failed(key: str, error: ErrorCode, why: str | None = None) -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=error, error_message=why or _MESSAGES[error])


API = Api(
    FindCoordinatorRequest, FindCoordinatorResponse, versions=(0, 6), plane=Plane.DATA, handle=handle, is_read=True
)
