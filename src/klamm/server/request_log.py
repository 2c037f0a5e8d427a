"""Applies the settings of request traces, and writes traces to the topic `__klamm_request_log` while that is on.

While the topic is not writable, the buffer fills and drops its oldest records: no request waits for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from klamm.apis.missing_topics import request_log_topic
from klamm.broker import Broker
from klamm.config import KafkaConfig
from klamm.model import REQUEST_LOG_TOPIC
from klamm.network.request_tracer import RequestTracer, TraceSettings
from klamm.protocol.record_batch import Record
from klamm.request_log import RequestRecord, to_json
from klamm.request_log.trace_encoding import key_of
from klamm.server.log_topic import SLICE_RECORDS, LogTopic, LogTopicWriter

_KEYS: Final = tuple(
    f"klamm.request.trace.{name}"
    for name in ("sample", "apis", "client.ids", "topics", "slower.than.ms", "topic.enable")
)
_TOPIC: Final = LogTopic(
    "request log",
    REQUEST_LOG_TOPIC,
    lambda config: config.klamm_request_trace_topic_replication_factor,
    request_log_topic,
    fewer_replicas_after_s=5.0,
)


def trace_settings(config: KafkaConfig) -> TraceSettings:
    return TraceSettings(
        sample=config.klamm_request_trace_sample,
        apis=config.klamm_request_trace_apis,
        client_ids=config.klamm_request_trace_client_ids,
        topics=config.klamm_request_trace_topics,
        slower_than_ms=config.klamm_request_trace_slower_than_ms,
    )


class RequestLogWriter:
    """Follows the keys `klamm.request.trace.*`. Owns the records that wait to be written."""

    def __init__(self, broker: Broker, tracer: RequestTracer) -> None:
        self._broker = broker
        self._tracer = tracer
        self._buffer: deque[RequestRecord] = deque(maxlen=broker.config.klamm_request_trace_buffer_records)
        self._writer = LogTopicWriter(_TOPIC, self._take)
        self._dropped = 0

    def start(self) -> None:
        broker, tracer = self._broker, self._tracer
        tracer.topic_name = broker.metadata.topic_name
        metrics, kind = broker.metrics, "RequestLog"
        metrics.gauge("klamm.server", kind, "RecordedRequestCount", lambda: tracer.recorded)
        metrics.gauge("klamm.server", kind, "BufferedRecordCount", lambda: len(self._buffer))
        metrics.gauge("klamm.server", kind, "DroppedRecordCount", lambda: self._dropped + self._writer.given_up)
        broker.configs.on_change(_KEYS, lambda _, new: self._apply(new))
        self._apply(broker.config)

    async def stop(self) -> None:
        self._tracer.apply(TraceSettings())
        self._tracer.on_record = None
        await self._writer.stop()

    def _apply(self, config: KafkaConfig) -> None:
        self._tracer.apply(trace_settings(config))
        is_written = config.klamm_request_trace_topic_enable
        self._tracer.on_record = self._add if is_written else None
        # Once it runs, it stays: records that wait are still written after the topic was switched off.
        if is_written and not self._writer.is_running:
            self._writer.start(self._broker)

    def _add(self, record: RequestRecord) -> None:
        self._dropped += len(self._buffer) == self._buffer.maxlen
        self._buffer.append(record)

    def _take(self, broker: Broker) -> list[Record]:
        taken = [self._buffer.popleft() for _ in range(min(SLICE_RECORDS, len(self._buffer)))]
        return [
            Record(timestamp=record.at_ms, key=key_of(record), value=to_json(record, broker.id)) for record in taken
        ]

    def lines(self) -> Iterator[bytes]:
        """Yield the last records as JSON, one per line, in pieces; newest last."""
        records = list(self._tracer.records)
        for start in range(0, len(records), SLICE_RECORDS):
            yield b"".join(to_json(it, self._broker.id) + b"\n" for it in records[start : start + SLICE_RECORDS])
