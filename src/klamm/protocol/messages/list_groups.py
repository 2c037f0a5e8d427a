"""ListGroups (key 16), versions 0-5, flexible from 3.

The groups that a broker coordinates, filtered by state (v4) or type (v5).
"""

from __future__ import annotations

from klamm.protocol.wire import Array, Int16, Int32, Message, String, Struct, message, since


@message
class ListGroupsRequest(Message):
    KEY = 16
    FLEXIBLE = 3
    VERSIONS = range(0, 6)

    states_filter: Array[String] = since(4, default=())
    types_filter: Array[String] = since(5, default=())


@message
class ListedGroup(Struct):
    group_id: String
    protocol_type: String
    group_state: String = since(4, default="")
    group_type: String = since(5, default="")


@message
class ListGroupsResponse(Message):
    KEY = 16
    FLEXIBLE = 3
    VERSIONS = range(0, 6)

    throttle_time_ms: Int32 = since(1, default=0)
    error_code: Int16
    groups: Array[ListedGroup]
