"""SyncGroup (key 14), versions 0-5, flexible from 4.

The leader sends the assignment, and every member receives its own part.
"""

from __future__ import annotations

from klamm.protocol.wire import Array, Bytes, Int16, Int32, Message, NullableString, String, Struct, message, since


@message
class SyncGroupRequestAssignment(Struct):
    member_id: String
    assignment: Bytes


@message
class SyncGroupRequest(Message):
    KEY = 14
    FLEXIBLE = 4
    VERSIONS = range(0, 6)

    group_id: String
    generation_id: Int32
    member_id: String
    group_instance_id: NullableString = since(3, default=None)
    protocol_type: NullableString = since(5, default=None)
    protocol_name: NullableString = since(5, default=None)
    assignments: Array[SyncGroupRequestAssignment]


@message
class SyncGroupResponse(Message):
    KEY = 14
    FLEXIBLE = 4
    VERSIONS = range(0, 6)

    throttle_time_ms: Int32 = since(1, default=0)
    error_code: Int16
    protocol_type: NullableString = since(5, default=None)
    protocol_name: NullableString = since(5, default=None)
    assignment: Bytes
