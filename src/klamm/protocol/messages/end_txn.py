"""EndTxn (key 26), versions 0-4, flexible from 3.

Commits or aborts a transaction.
"""

from __future__ import annotations

from klamm.protocol.wire import Bool, Int16, Int32, Int64, Message, String, message


@message
class EndTxnRequest(Message):
    KEY = 26
    FLEXIBLE = 3
    VERSIONS = range(0, 5)

    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    committed: Bool


@message
class EndTxnResponse(Message):
    KEY = 26
    FLEXIBLE = 3
    VERSIONS = range(0, 5)

    throttle_time_ms: Int32 = 0
    error_code: Int16
