"""CreateAcls (key 30), versions 0-3, flexible from 2.

Adds access control entries.
"""

from __future__ import annotations

from klamm.protocol.wire import Array, Int8, Int16, Int32, Message, NullableString, String, Struct, message, since


@message
class AclCreation(Struct):
    resource_type: Int8
    resource_name: String
    resource_pattern_type: Int8 = since(1, default=3)
    principal: String
    host: String
    operation: Int8
    permission_type: Int8


@message
class CreateAclsRequest(Message):
    KEY = 30
    FLEXIBLE = 2
    VERSIONS = range(0, 4)

    creations: Array[AclCreation]


@message
class AclCreationResult(Struct):
    error_code: Int16
    error_message: NullableString


@message
class CreateAclsResponse(Message):
    KEY = 30
    FLEXIBLE = 2
    VERSIONS = range(0, 4)

    throttle_time_ms: Int32 = 0
    results: Array[AclCreationResult]
