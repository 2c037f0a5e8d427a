"""Broker keys of request traces. Kafka does not have them."""

from __future__ import annotations

from klamm.config.definition import Importance, UpdateMode, boolean, double, int16, int32, int64, strings
from klamm.config.values import INT_MAX, at_least, between

CLUSTER_WIDE = UpdateMode.CLUSTER_WIDE


class TraceKeys:
    klamm_request_trace_sample = int32(
        "klamm.request.trace.sample",
        0,
        "Trace one request in this many, on average: its phases, its waits and what ended them. 0 is off, 1 traces "
        "every request that the filters admit.",
        check=between(0, INT_MAX),
        update=CLUSTER_WIDE,
    )
    klamm_request_trace_apis = strings(
        "klamm.request.trace.apis", (), "APIs to trace, such as Produce,Fetch; empty for all.", update=CLUSTER_WIDE
    )
    klamm_request_trace_client_ids = strings(
        "klamm.request.trace.client.ids",
        (),
        "Client ids whose traces are kept; a name may end with *; empty for all.",
        update=CLUSTER_WIDE,
    )
    klamm_request_trace_topics = strings(
        "klamm.request.trace.topics",
        (),
        "Topics whose requests are kept; a name may end with *; empty for all requests.",
        update=CLUSTER_WIDE,
    )
    klamm_request_trace_slower_than_ms = double(
        "klamm.request.trace.slower.than.ms",
        0.0,
        "Traces of faster requests are not kept.",
        check=at_least(0),
        update=CLUSTER_WIDE,
    )
    klamm_request_trace_topic_enable = boolean(
        "klamm.request.trace.topic.enable",
        False,
        "Whether traces are also written to __klamm_request_log; otherwise the last 1,000 stay in memory.",
        update=CLUSTER_WIDE,
    )
    klamm_request_trace_topic_retention_ms = int64(
        "klamm.request.trace.topic.retention.ms",
        3_600_000,
        "How long the records of __klamm_request_log are kept, at its creation.",
        check=at_least(1_000),
    )
    klamm_request_trace_topic_replication_factor = int16(
        "klamm.request.trace.topic.replication.factor",
        3,
        "Replicas of __klamm_request_log; a cluster that stays smaller has one on each broker.",
        check=at_least(1),
    )
    klamm_request_trace_buffer_records = int32(
        "klamm.request.trace.buffer.records",
        10_000,
        "Traces that wait to be written to the topic; the oldest are dropped.",
        importance=Importance.LOW,
        check=between(1, 1_000_000),
    )
