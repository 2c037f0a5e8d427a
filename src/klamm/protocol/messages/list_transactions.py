"""ListTransactions (key 66), versions 0-1, always flexible.

The transactions that a broker coordinates, filtered by state, producer or age.
"""

from __future__ import annotations

from klamm.protocol.wire import Array, Int16, Int32, Int64, Message, String, Struct, message, since


@message
class ListTransactionsRequest(Message):
    KEY = 66
    FLEXIBLE = 0
    VERSIONS = range(0, 2)

    state_filters: Array[String] = ()
    producer_id_filters: Array[Int64] = ()
    duration_filter: Int64 = since(1, default=-1)


@message
class TransactionState(Struct):
    transactional_id: String
    producer_id: Int64
    transaction_state: String


@message
class ListTransactionsResponse(Message):
    KEY = 66
    FLEXIBLE = 0
    VERSIONS = range(0, 2)

    throttle_time_ms: Int32 = 0
    error_code: Int16
    unknown_state_filters: Array[String] = ()
    transaction_states: Array[TransactionState]
