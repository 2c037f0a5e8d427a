"""WriteTxnMarkers (key 27), versions 0-2, flexible from 1.

The transaction coordinator has commit or abort markers written to partitions. v2 says which version
of transactions a marker ends (KIP-1228).
"""

from __future__ import annotations

from klamm.protocol.wire import Array, Bool, Int8, Int16, Int32, Int64, Message, String, Struct, message, since


@message
class WritableTxnMarkerTopic(Struct):
    name: String
    partition_indexes: Array[Int32] = ()


@message
class WritableTxnMarker(Struct):
    producer_id: Int64
    producer_epoch: Int16
    transaction_result: Bool
    topics: Array[WritableTxnMarkerTopic]
    coordinator_epoch: Int32
    transaction_version: Int8 = since(2, default=0)


@message
class WriteTxnMarkersRequest(Message):
    KEY = 27
    FLEXIBLE = 1
    VERSIONS = range(0, 3)

    markers: Array[WritableTxnMarker]


@message
class WritableTxnMarkerPartitionResult(Struct):
    partition_index: Int32
    error_code: Int16


@message
class WritableTxnMarkerTopicResult(Struct):
    name: String
    partitions: Array[WritableTxnMarkerPartitionResult]


@message
class WritableTxnMarkerResult(Struct):
    producer_id: Int64
    topics: Array[WritableTxnMarkerTopicResult]


@message
class WriteTxnMarkersResponse(Message):
    KEY = 27
    FLEXIBLE = 1
    VERSIONS = range(0, 3)

    markers: Array[WritableTxnMarkerResult]
