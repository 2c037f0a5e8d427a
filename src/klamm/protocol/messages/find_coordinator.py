"""FindCoordinator (key 10), versions 0-6, flexible from 3.

Returns the broker that coordinates a group or a transactional id. From v4 on one request asks for several keys, and
each is answered.
"""

from __future__ import annotations

from klamm.protocol.wire import Array, Int8, Int16, Int32, Message, NullableString, String, Struct, message, since


@message
class FindCoordinatorRequest(Message):
    KEY = 10
    FLEXIBLE = 3
    VERSIONS = range(0, 7)

    key: String = since(0, until=3, default="")
    key_type: Int8 = since(1, default=0)
    coordinator_keys: Array[String] = since(4, default=())


@message
class Coordinator(Struct):
    key: String
    node_id: Int32
    host: String
    port: Int32
    error_code: Int16
    error_message: NullableString


@message
class FindCoordinatorResponse(Message):
    KEY = 10
    FLEXIBLE = 3
    VERSIONS = range(0, 7)

    throttle_time_ms: Int32 = since(1, default=0)
    error_code: Int16 = since(0, until=3, default=0)
    error_message: NullableString = since(1, until=3, default=None)
    node_id: Int32 = since(0, until=3, default=0)
    host: String = since(0, until=3, default="")
    port: Int32 = since(0, until=3, default=0)
    coordinators: Array[Coordinator] = since(4, default=())
