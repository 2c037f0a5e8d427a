"""DescribeCluster (60): the cluster's id, its controller and its brokers, as seen through the client's listener.

v0-1: the type of endpoint v1; this is a broker's endpoint, so asking for controllers is MISMATCHED_ENDPOINT_TYPE
(114) and for anything else UNSUPPORTED_ENDPOINT_TYPE (115). The authorized operations are 0 without DESCRIBE
on the cluster.
"""

from __future__ import annotations

from typing import Final

from klamm.apis.access import cluster_operations
from klamm.apis.api_declaration import Api, Broker, Plane, RequestContext
from klamm.apis.metadata import CLUSTER_OPERATIONS, NOT_ASKED
from klamm.errors import ErrorCode
from klamm.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

_BROKERS: Final = 1
_CONTROLLERS: Final = 2


def handle(broker: Broker, ctx: RequestContext, req: DescribeClusterRequest) -> DescribeClusterResponse:
    if req.endpoint_type != _BROKERS:
        return _refused(broker, req)
    snapshot = broker.metadata.snapshot
    found = ((node, node.endpoint(ctx.listener_name)) for node in snapshot.brokers.values())
    return DescribeClusterResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        cluster_id=broker.cluster_id,
        controller_id=snapshot.controller_id,
        brokers=[
            DescribeClusterBroker(broker_id=node.id, host=endpoint.host, port=endpoint.port, rack=node.rack)
            for node, endpoint in found
            if endpoint is not None
        ],
        cluster_authorized_operations=(
            cluster_operations(broker, ctx, all_of_them=CLUSTER_OPERATIONS)
            if req.include_cluster_authorized_operations
            else NOT_ASKED
        ),
    )


def _refused(broker: Broker, req: DescribeClusterRequest) -> DescribeClusterResponse:
    is_mismatch = req.endpoint_type == _CONTROLLERS
    return DescribeClusterResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE if is_mismatch else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
        error_message="This is the endpoint of a broker.",
        cluster_id=broker.cluster_id,
        brokers=(),
    )


API = Api(
    DescribeClusterRequest, DescribeClusterResponse, versions=(0, 1), plane=Plane.DATA, handle=handle, is_read=True
)
