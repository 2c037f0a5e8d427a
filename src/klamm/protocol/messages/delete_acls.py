"""DeleteAcls (key 31), versions 0-3, flexible from 2.

Removes the access control entries that match filters.
"""

from __future__ import annotations

from klamm.protocol.wire import Array, Int8, Int16, Int32, Message, NullableString, String, Struct, message, since


@message
class DeleteAclsFilter(Struct):
    resource_type_filter: Int8
    resource_name_filter: NullableString
    pattern_type_filter: Int8 = since(1, default=3)
    principal_filter: NullableString
    host_filter: NullableString
    operation: Int8
    permission_type: Int8


@message
class DeleteAclsRequest(Message):
    KEY = 31
    FLEXIBLE = 2
    VERSIONS = range(0, 4)

    filters: Array[DeleteAclsFilter]


@message
class DeleteAclsMatchingAcl(Struct):
    error_code: Int16
    error_message: NullableString
    resource_type: Int8
    resource_name: String
    pattern_type: Int8 = since(1, default=3)
    principal: String
    host: String
    operation: Int8
    permission_type: Int8


@message
class DeleteAclsFilterResult(Struct):
    error_code: Int16
    error_message: NullableString
    matching_acls: Array[DeleteAclsMatchingAcl]


@message
class DeleteAclsResponse(Message):
    KEY = 31
    FLEXIBLE = 2
    VERSIONS = range(0, 4)

    throttle_time_ms: Int32 = 0
    filter_results: Array[DeleteAclsFilterResult]
