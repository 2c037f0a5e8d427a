"""IncrementalAlterConfigs (key 44), versions 0-1, flexible from 1.

Sets, deletes, appends to or subtracts from single configuration values.
"""

from __future__ import annotations

from klamm.protocol.wire import Array, Bool, Int8, Int16, Int32, Message, NullableString, String, Struct, message


@message
class AlterableConfig(Struct):
    name: String
    config_operation: Int8
    value: NullableString


@message
class AlterConfigsResource(Struct):
    resource_type: Int8
    resource_name: String
    configs: Array[AlterableConfig]


@message
class IncrementalAlterConfigsRequest(Message):
    KEY = 44
    FLEXIBLE = 1
    VERSIONS = range(0, 2)

    resources: Array[AlterConfigsResource]
    validate_only: Bool


@message
class AlterConfigsResourceResponse(Struct):
    error_code: Int16
    error_message: NullableString
    resource_type: Int8
    resource_name: String


@message
class IncrementalAlterConfigsResponse(Message):
    KEY = 44
    FLEXIBLE = 1
    VERSIONS = range(0, 2)

    throttle_time_ms: Int32 = 0
    responses: Array[AlterConfigsResourceResponse]
