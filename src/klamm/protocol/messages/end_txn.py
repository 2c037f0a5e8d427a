"""EndTxn (key 26), versions 0-5, flexible from 3.

Commits or aborts a transaction.
"""

from __future__ import annotations

from klamm.protocol.wire import Bool, Int16, Int32, Int64, Message, String, message, since


@message
class EndTxnRequest(Message):
    KEY = 26
    FLEXIBLE = 3
    VERSIONS = range(0, 6)

    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    committed: Bool


@message
class EndTxnResponse(Message):
    KEY = 26
    FLEXIBLE = 3
    VERSIONS = range(0, 6)

    throttle_time_ms: Int32 = 0
    error_code: Int16
    producer_id: Int64 = since(5, default=-1)
    producer_epoch: Int16 = since(5, default=-1)
