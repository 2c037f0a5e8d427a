"""Records the control plane, and writes the records to the topic `__klamm_control_log`.

While the topic is not writable, the buffers fill and drop their oldest records: nothing waits for it, and the writing
is not recorded.
"""

from __future__ import annotations

from typing import Final

from klamm.apis.missing_topics import control_log_topic
from klamm.broker import Broker
from klamm.clock import Clock
from klamm.config import KafkaConfig
from klamm.control_log import NO_CONTROL_LOG, ControlLog, ControlLogBuffer, to_json
from klamm.control_log.encoding import key_of
from klamm.control_log.records import RequestFailed, RoleChanged
from klamm.model import CONTROL_LOG_TOPIC
from klamm.network.request import Request
from klamm.protocol.record_batch import Record
from klamm.replica.replica_manager import Leadership
from klamm.server.log_topic import SLICE_RECORDS, LogTopic, LogTopicWriter

MAX_CHARS: Final = 300
_TOPIC: Final = LogTopic(
    "control log", CONTROL_LOG_TOPIC, lambda config: config.klamm_control_log_replication_factor, control_log_topic
)


class ControlLogWriter:
    """Owns one buffer per loop; lives on the broker loop."""

    def __init__(self, config: KafkaConfig, clock: Clock) -> None:
        capacity = config.klamm_control_log_buffer_records
        names = ("control", "broker") if config.klamm_control_log_enable else ()
        self._buffers = tuple(ControlLogBuffer(name, capacity, clock) for name in names)
        self._broker: Broker | None = None
        self._writer = LogTopicWriter(_TOPIC, self._take)
        self._failures: dict[str, int] = {}

    @property
    def of_control_loop(self) -> ControlLog:
        return self._buffers[0] if self._buffers else NO_CONTROL_LOG

    @property
    def of_broker_loop(self) -> ControlLog:
        return self._buffers[1] if self._buffers else NO_CONTROL_LOG

    @property
    def dropped(self) -> int:
        return self._writer.given_up + sum(buffer.dropped for buffer in self._buffers)

    def start(self, broker: Broker) -> None:
        if not self._buffers:
            return
        self._broker = broker
        metrics, kind = broker.metrics, "ControlLog"
        metrics.gauge("klamm.server", kind, "BufferedRecordCount", lambda: sum(map(len, self._buffers)))
        metrics.gauge("klamm.server", kind, "DroppedRecordCount", lambda: self.dropped)
        broker.replicas.role_listeners.append(self._on_roles)
        self._writer.start(broker)

    async def stop(self) -> None:
        await self._writer.stop()

    def _take(self, broker: Broker) -> list[Record]:
        for buffer in self._buffers:
            if entries := buffer.take(SLICE_RECORDS):
                return [
                    Record(timestamp=entry.at_ms, key=key_of(entry), value=to_json(entry, broker.id, buffer.loop_name))
                    for entry in entries
                ]
        return []

    def _on_roles(self, became_leader: Leadership, became_follower: Leadership, correlation_id: int | None) -> None:
        assert self._broker is not None
        replicas, record = self._broker.replicas, self._buffers[1].record
        for tp, leader_epoch in became_leader:
            record(RoleChanged(replicas.controller_epoch, correlation_id, tp, "leader", leader_epoch))
        for tp, leader_epoch in became_follower:
            role = "follower" if tp in replicas.partitions else "none"
            record(RoleChanged(replicas.controller_epoch, correlation_id, tp, role, leader_epoch))

    def on_failed_request(self, request: Request, error: str) -> None:
        """Record a handler's failure, at growing intervals: a client that repeats a failing request must not fill the
        log.
        """
        if self._broker is None:
            return
        name = request.api.name
        count = self._failures[name] = self._failures.get(name, 0) + 1
        if count.bit_count() == 1:
            epoch, version = self._broker.replicas.controller_epoch, request.api_version
            self._buffers[1].record(
                RequestFailed(
                    epoch,
                    name,
                    version,
                    request.correlation_id,
                    request.client_id and request.client_id[:MAX_CHARS],
                    request.connection_id,
                    error[:MAX_CHARS],
                    count,
                )
            )
