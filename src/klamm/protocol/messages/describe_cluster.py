"""DescribeCluster (key 60), versions 0-1, always flexible.

The brokers, the controller and the id of the cluster.
"""

from __future__ import annotations

from klamm.protocol.wire import Array, Bool, Int8, Int16, Int32, Message, NullableString, String, Struct, message, since


@message
class DescribeClusterRequest(Message):
    KEY = 60
    FLEXIBLE = 0
    VERSIONS = range(0, 2)

    include_cluster_authorized_operations: Bool
    endpoint_type: Int8 = since(1, default=1)


@message
class DescribeClusterBroker(Struct):
    broker_id: Int32
    host: String
    port: Int32
    rack: NullableString = None


@message
class DescribeClusterResponse(Message):
    KEY = 60
    FLEXIBLE = 0
    VERSIONS = range(0, 2)

    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: NullableString = None
    endpoint_type: Int8 = since(1, default=1)
    cluster_id: String
    controller_id: Int32 = -1
    brokers: Array[DescribeClusterBroker]
    cluster_authorized_operations: Int32 = -2147483648
