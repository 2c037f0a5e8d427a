"""The meters of Fetch: partitions and bytes, for each topic and for all of them."""

from __future__ import annotations

from typing import Final

from klamm.apis.api_declaration import Broker
from klamm.errors import ErrorCode
from klamm.metrics import BrokerTopicMetrics
from klamm.replica.fetch_path import FetchParams, Reads

# A member under a name of its own: Python 3.11 takes ten times as long to find it in its class.
_UNKNOWN_SERVER_ERROR: Final = ErrorCode.UNKNOWN_SERVER_ERROR


def mark(broker: Broker, params: FetchParams, results: Reads) -> None:
    """Count partitions that were looked at, not those that a session holds.

    The meters of a topic are written once for all its successive partitions.
    """
    stats = broker.replicas.topic_stats
    totals = stats.all_topics
    totals.total_fetch_requests.count += len(results)
    hosted = broker.replicas.partitions
    is_from_follower = params.is_from_follower
    size_bytes = count = bytes_before = 0
    topic: BrokerTopicMetrics | None = None
    last: str | None = None
    for partition, read in results:
        tp = partition.tp
        if tp not in hosted:  # no meters of its own: the name may be anything a client sends
            continue
        if tp.topic != last or topic is None:
            if topic is not None:
                _mark_topic(topic, count, 0 if is_from_follower else size_bytes - bytes_before)
            last = tp.topic
            topic = stats.topic(last)
            count, bytes_before = 0, size_bytes
        count += 1
        if read.size_bytes:
            size_bytes += read.size_bytes
            if is_from_follower and (adding := hosted[tp].adding_replicas) and params.replica_id in adding:
                stats.reassignment_bytes_out.count += read.size_bytes
        elif read.error == _UNKNOWN_SERVER_ERROR:
            topic.failed_fetch_requests.mark()
            totals.failed_fetch_requests.mark()
    if topic is not None:
        _mark_topic(topic, count, 0 if is_from_follower else size_bytes - bytes_before)
    if is_from_follower:
        stats.replication_bytes_out.count += size_bytes
    else:
        totals.bytes_out.count += size_bytes


def _mark_topic(topic: BrokerTopicMetrics, count: int, size_bytes: int) -> None:
    topic.total_fetch_requests.count += count
    if size_bytes:
        topic.bytes_out.count += size_bytes
