"""DescribeConfigs (key 32), versions 0-4, flexible from 4.

Configuration values of topics and brokers, with their sources, synonyms (v1), types and documentation (v3).
"""

from __future__ import annotations

from klamm.protocol.wire import (
    Array,
    Bool,
    Int8,
    Int16,
    Int32,
    Message,
    NullableArray,
    NullableString,
    String,
    Struct,
    message,
    since,
)


@message
class DescribeConfigsResource(Struct):
    resource_type: Int8
    resource_name: String
    configuration_keys: NullableArray[String] = ()


@message
class DescribeConfigsRequest(Message):
    KEY = 32
    FLEXIBLE = 4
    VERSIONS = range(0, 5)

    resources: Array[DescribeConfigsResource]
    include_synonyms: Bool = since(1, default=False)
    include_documentation: Bool = since(3, default=False)


@message
class DescribeConfigsSynonym(Struct):
    name: String
    value: NullableString
    source: Int8


@message
class DescribeConfigsResourceResult(Struct):
    name: String
    value: NullableString
    read_only: Bool
    is_default: Bool = since(0, until=0, default=False)
    config_source: Int8 = since(1, default=-1)
    is_sensitive: Bool
    synonyms: Array[DescribeConfigsSynonym] = since(1, default=())
    config_type: Int8 = since(3, default=0)
    documentation: NullableString = since(3, default=None)


@message
class DescribeConfigsResult(Struct):
    error_code: Int16
    error_message: NullableString
    resource_type: Int8
    resource_name: String
    configs: Array[DescribeConfigsResourceResult]


@message
class DescribeConfigsResponse(Message):
    KEY = 32
    FLEXIBLE = 4
    VERSIONS = range(0, 5)

    throttle_time_ms: Int32 = 0
    results: Array[DescribeConfigsResult]
