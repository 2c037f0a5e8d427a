"""DeleteGroups (key 42), versions 0-2, flexible from 2.

Deletes consumer groups that have no members.
"""

from __future__ import annotations

from klamm.protocol.wire import Array, Int16, Int32, Message, String, Struct, message


@message
class DeleteGroupsRequest(Message):
    KEY = 42
    FLEXIBLE = 2
    VERSIONS = range(0, 3)

    groups_names: Array[String] = ()


@message
class DeletableGroupResult(Struct):
    group_id: String
    error_code: Int16


@message
class DeleteGroupsResponse(Message):
    KEY = 42
    FLEXIBLE = 2
    VERSIONS = range(0, 3)

    throttle_time_ms: Int32 = 0
    results: Array[DeletableGroupResult]
