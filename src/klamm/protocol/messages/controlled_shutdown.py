"""ControlledShutdown (key 7), versions 0-3, flexible from 3.

A broker asks the controller to move leadership away before it stops. v0 is the only request with a header of version 0.
"""

from __future__ import annotations

from klamm.protocol.wire import Array, Int16, Int32, Int64, Message, String, Struct, message, since


@message
class ControlledShutdownRequest(Message):
    KEY = 7
    FLEXIBLE = 3
    VERSIONS = range(0, 4)

    broker_id: Int32
    broker_epoch: Int64 = since(2, default=-1)


@message
class RemainingPartition(Struct):
    topic_name: String
    partition_index: Int32


@message
class ControlledShutdownResponse(Message):
    KEY = 7
    FLEXIBLE = 3
    VERSIONS = range(0, 4)

    error_code: Int16
    remaining_partitions: Array[RemainingPartition]
