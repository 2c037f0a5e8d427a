"""LeaveGroup (key 13), versions 0-5, flexible from 4.

Members leave a group: one, named by its id, before v3, and a list of them afterwards.
"""

from __future__ import annotations

from klamm.protocol.wire import Array, Int16, Int32, Message, NullableString, String, Struct, message, since


@message
class MemberIdentity(Struct):
    member_id: String
    group_instance_id: NullableString = None
    reason: NullableString = since(5, default=None)


@message
class LeaveGroupRequest(Message):
    KEY = 13
    FLEXIBLE = 4
    VERSIONS = range(0, 6)

    group_id: String
    member_id: String = since(0, until=2, default="")
    members: Array[MemberIdentity] = since(3, default=())


@message
class MemberResponse(Struct):
    member_id: String
    group_instance_id: NullableString
    error_code: Int16


@message
class LeaveGroupResponse(Message):
    KEY = 13
    FLEXIBLE = 4
    VERSIONS = range(0, 6)

    throttle_time_ms: Int32 = since(1, default=0)
    error_code: Int16
    members: Array[MemberResponse] = since(3, default=())
