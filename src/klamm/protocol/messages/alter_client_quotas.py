"""AlterClientQuotas (key 49), versions 0-1, flexible from 1.

Sets or removes quotas.
"""

from __future__ import annotations

from klamm.protocol.wire import Array, Bool, Float64, Int16, Int32, Message, NullableString, String, Struct, message


@message
class EntityData(Struct):
    entity_type: String
    entity_name: NullableString


@message
class OpData(Struct):
    key: String
    value: Float64
    remove: Bool


@message
class EntryData(Struct):
    entity: Array[EntityData]
    ops: Array[OpData]


@message
class AlterClientQuotasRequest(Message):
    KEY = 49
    FLEXIBLE = 1
    VERSIONS = range(0, 2)

    entries: Array[EntryData]
    validate_only: Bool


@message
class ResponseEntryData(Struct):
    error_code: Int16
    error_message: NullableString
    entity: Array[EntityData]


@message
class AlterClientQuotasResponse(Message):
    KEY = 49
    FLEXIBLE = 1
    VERSIONS = range(0, 2)

    throttle_time_ms: Int32 = 0
    entries: Array[ResponseEntryData]
