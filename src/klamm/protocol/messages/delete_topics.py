"""DeleteTopics (key 20), versions 0-6, flexible from 4.

Deletes topics by name, and from v6 on by id too.
"""

from __future__ import annotations

from klamm.model import ZERO_UUID
from klamm.protocol.wire import Array, Int16, Int32, Message, NullableString, String, Struct, Uuid, message, since


@message
class DeleteTopicState(Struct):
    name: NullableString = None
    topic_id: Uuid


@message
class DeleteTopicsRequest(Message):
    KEY = 20
    FLEXIBLE = 4
    VERSIONS = range(0, 7)

    topic_names: Array[String] = since(0, until=5, default=())
    topics: Array[DeleteTopicState] = since(6, default=())
    timeout_ms: Int32


@message
class DeletableTopicResult(Struct):
    name: NullableString = since(0, nullable=6)
    topic_id: Uuid = since(6, default=ZERO_UUID)
    error_code: Int16
    error_message: NullableString = since(5, default=None)


@message
class DeleteTopicsResponse(Message):
    KEY = 20
    FLEXIBLE = 4
    VERSIONS = range(0, 7)

    throttle_time_ms: Int32 = since(1, default=0)
    responses: Array[DeletableTopicResult]
