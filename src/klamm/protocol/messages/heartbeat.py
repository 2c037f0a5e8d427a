"""Heartbeat (key 12), versions 0-4, flexible from 4.

A member reports that it is alive, and learns whether the group rebalances.
"""

from __future__ import annotations

from klamm.protocol.wire import Int16, Int32, Message, NullableString, String, message, since


@message
class HeartbeatRequest(Message):
    KEY = 12
    FLEXIBLE = 4
    VERSIONS = range(0, 5)

    group_id: String
    generation_id: Int32
    member_id: String
    group_instance_id: NullableString = since(3, default=None)


@message
class HeartbeatResponse(Message):
    KEY = 12
    FLEXIBLE = 4
    VERSIONS = range(0, 5)

    throttle_time_ms: Int32 = since(1, default=0)
    error_code: Int16
