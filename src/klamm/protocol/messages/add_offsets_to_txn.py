"""AddOffsetsToTxn (key 25), versions 0-4, flexible from 3.

Adds a group's offsets partition to a transaction.
"""

from __future__ import annotations

from klamm.protocol.wire import Int16, Int32, Int64, Message, String, message


@message
class AddOffsetsToTxnRequest(Message):
    KEY = 25
    FLEXIBLE = 3
    VERSIONS = range(0, 5)

    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    group_id: String


@message
class AddOffsetsToTxnResponse(Message):
    KEY = 25
    FLEXIBLE = 3
    VERSIONS = range(0, 5)

    throttle_time_ms: Int32 = 0
    error_code: Int16
