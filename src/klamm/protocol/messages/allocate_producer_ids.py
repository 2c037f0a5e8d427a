"""AllocateProducerIds (key 67), version 0, always flexible.

A broker asks the controller for a block of producer ids.
"""

from __future__ import annotations

from klamm.protocol.wire import Int16, Int32, Int64, Message, message


@message
class AllocateProducerIdsRequest(Message):
    KEY = 67
    FLEXIBLE = 0
    VERSIONS = range(0, 1)

    broker_id: Int32
    broker_epoch: Int64 = -1


@message
class AllocateProducerIdsResponse(Message):
    KEY = 67
    FLEXIBLE = 0
    VERSIONS = range(0, 1)

    throttle_time_ms: Int32 = 0
    error_code: Int16
    producer_id_start: Int64
    producer_id_len: Int32
