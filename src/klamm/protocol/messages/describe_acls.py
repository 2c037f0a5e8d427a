"""DescribeAcls (key 29), versions 0-3, flexible from 2.

Lists the access control entries that match a filter.
"""

from __future__ import annotations

from klamm.protocol.wire import Array, Int8, Int16, Int32, Message, NullableString, String, Struct, message, since


@message
class DescribeAclsRequest(Message):
    KEY = 29
    FLEXIBLE = 2
    VERSIONS = range(0, 4)

    resource_type_filter: Int8
    resource_name_filter: NullableString
    pattern_type_filter: Int8 = since(1, default=3)
    principal_filter: NullableString
    host_filter: NullableString
    operation: Int8
    permission_type: Int8


@message
class AclDescription(Struct):
    principal: String
    host: String
    operation: Int8
    permission_type: Int8


@message
class DescribeAclsResource(Struct):
    resource_type: Int8
    resource_name: String
    pattern_type: Int8 = since(1, default=3)
    acls: Array[AclDescription]


@message
class DescribeAclsResponse(Message):
    KEY = 29
    FLEXIBLE = 2
    VERSIONS = range(0, 4)

    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: NullableString
    resources: Array[DescribeAclsResource]
