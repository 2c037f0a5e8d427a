"""AlterConfigs (key 33), versions 0-2, flexible from 2.

Replaces the whole dynamic configuration of a resource.
"""

from __future__ import annotations

from klamm.protocol.wire import Array, Bool, Int8, Int16, Int32, Message, NullableString, String, Struct, message


@message
class AlterableConfig(Struct):
    name: String
    value: NullableString


@message
class AlterConfigsResource(Struct):
    resource_type: Int8
    resource_name: String
    configs: Array[AlterableConfig]


@message
class AlterConfigsRequest(Message):
    KEY = 33
    FLEXIBLE = 2
    VERSIONS = range(0, 3)

    resources: Array[AlterConfigsResource]
    validate_only: Bool


@message
class AlterConfigsResourceResponse(Struct):
    error_code: Int16
    error_message: NullableString
    resource_type: Int8
    resource_name: String


@message
class AlterConfigsResponse(Message):
    KEY = 33
    FLEXIBLE = 2
    VERSIONS = range(0, 3)

    throttle_time_ms: Int32 = 0
    responses: Array[AlterConfigsResourceResponse]
