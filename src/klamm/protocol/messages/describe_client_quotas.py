"""DescribeClientQuotas (key 48), versions 0-1, flexible from 1.

Quotas of users, client ids and addresses that match a filter.
"""

from __future__ import annotations

from klamm.protocol.wire import (
    Array,
    Bool,
    Float64,
    Int8,
    Int16,
    Int32,
    Message,
    NullableArray,
    NullableString,
    String,
    Struct,
    message,
)


@message
class ComponentData(Struct):
    entity_type: String
    match_type: Int8
    match: NullableString


@message
class DescribeClientQuotasRequest(Message):
    KEY = 48
    FLEXIBLE = 1
    VERSIONS = range(0, 2)

    components: Array[ComponentData]
    strict: Bool


@message
class EntityData(Struct):
    entity_type: String
    entity_name: NullableString


@message
class ValueData(Struct):
    key: String
    value: Float64


@message
class EntryData(Struct):
    entity: Array[EntityData]
    values: Array[ValueData]


@message
class DescribeClientQuotasResponse(Message):
    KEY = 48
    FLEXIBLE = 1
    VERSIONS = range(0, 2)

    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: NullableString
    entries: NullableArray[EntryData]
