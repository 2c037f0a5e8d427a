"""JoinGroup (key 11), versions 0-9, flexible from 6.

A member enters a group and waits for the generation to form. The leader's answer contains every member's metadata. From
v4 on new members join again with the id that they receive; v5 adds static membership.
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
class JoinGroupRequestProtocol(Struct):
    name: String
    metadata: Bytes


@message
class JoinGroupRequest(Message):
    KEY = 11
    FLEXIBLE = 6
    VERSIONS = range(0, 10)

    group_id: String
    session_timeout_ms: Int32
    rebalance_timeout_ms: Int32 = since(1, default=-1)
    member_id: String
    group_instance_id: NullableString = since(5, default=None)
    protocol_type: String
    protocols: Array[JoinGroupRequestProtocol]
    reason: NullableString = since(8, default=None)


@message
class JoinGroupResponseMember(Struct):
    member_id: String
    group_instance_id: NullableString = since(5, default=None)
    metadata: Bytes


@message
class JoinGroupResponse(Message):
    KEY = 11
    FLEXIBLE = 6
    VERSIONS = range(0, 10)

    throttle_time_ms: Int32 = since(2, default=0)
    error_code: Int16
    generation_id: Int32 = -1
    protocol_type: NullableString = since(7, default=None)
    protocol_name: NullableString = since(0, nullable=7)
    leader: String
    skip_assignment: Bool = since(9, default=False)
    member_id: String
    members: Array[JoinGroupResponseMember]
