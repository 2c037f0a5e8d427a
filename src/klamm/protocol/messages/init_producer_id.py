"""InitProducerId (key 22), versions 0-5, flexible from 2.

Gives a producer its id and epoch, and fences older producers with the same transactional id.
"""

from __future__ import annotations

from klamm.protocol.wire import Int16, Int32, Int64, Message, NullableString, message, since


@message
class InitProducerIdRequest(Message):
    KEY = 22
    FLEXIBLE = 2
    VERSIONS = range(0, 6)

    transactional_id: NullableString
    transaction_timeout_ms: Int32
    producer_id: Int64 = since(3, default=-1)
    producer_epoch: Int16 = since(3, default=-1)


@message
class InitProducerIdResponse(Message):
    KEY = 22
    FLEXIBLE = 2
    VERSIONS = range(0, 6)

    throttle_time_ms: Int32 = 0
    error_code: Int16
    producer_id: Int64 = -1
    producer_epoch: Int16
