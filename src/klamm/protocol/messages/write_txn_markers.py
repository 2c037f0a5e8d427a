"""WriteTxnMarkers (key 27), versions 0-1, flexible from 1.

The transaction coordinator has commit or abort markers written to partitions.
"""

from __future__ import annotations

from klamm.protocol.wire import Array, Bool, Int16, Int32, Int64, Message, String, Struct, message


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


@message
class WriteTxnMarkersRequest(Message):
    KEY = 27
    FLEXIBLE = 1
    VERSIONS = range(0, 2)

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
    VERSIONS = range(0, 2)

    markers: Array[WritableTxnMarkerResult]
