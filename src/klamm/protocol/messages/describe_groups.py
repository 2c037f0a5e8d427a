"""DescribeGroups (key 15), versions 0-5, flexible from 5.

State, protocol and members of consumer groups.
"""

from __future__ import annotations

from klamm.protocol.wire import (
    Array,
    Bool,
    Bytes,
    Int16,
    Int32,
    Message,
    NullableString,
    String,
    Struct,
    message,
    since,
)


@message
class DescribeGroupsRequest(Message):
    KEY = 15
    FLEXIBLE = 5
    VERSIONS = range(0, 6)

    groups: Array[String] = ()
    include_authorized_operations: Bool = since(3, default=False)


@message
class DescribedGroupMember(Struct):
    member_id: String
    group_instance_id: NullableString = since(4, default=None)
    client_id: String
    client_host: String
    member_metadata: Bytes
    member_assignment: Bytes


@message
class DescribedGroup(Struct):
    error_code: Int16
    group_id: String
    group_state: String
    protocol_type: String
    protocol_data: String
    members: Array[DescribedGroupMember]
    authorized_operations: Int32 = since(3, default=-2147483648)


@message
class DescribeGroupsResponse(Message):
    KEY = 15
    FLEXIBLE = 5
    VERSIONS = range(0, 6)

    throttle_time_ms: Int32 = since(1, default=0)
    groups: Array[DescribedGroup]
