"""Writes control-log records to the topic `__klamm_control_log` in batches, with the lowest priority.

The topic is created through the controller when there is something to write. While it is not writable, the buffers fill
and drop their oldest records: nothing waits for this task, and its own work is not recorded.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final

from klamm.apis.missing_topics import control_log_topic, create_missing
from klamm.apis.produce import ADMIN_CLIENT_ID
from klamm.broker import Broker
from klamm.client.asyncio_connection import BrokerConnection
from klamm.client.patience import CONTROL_LOG
from klamm.clock import Clock
from klamm.config import KafkaConfig
from klamm.control_log import NO_CONTROL_LOG, ControlLog, ControlLogBuffer, to_json
from klamm.control_log.encoding import key_of
from klamm.control_log.records import RequestFailed, RoleChanged
from klamm.errors import ErrorCode
from klamm.log.producer_state import AppendOrigin
from klamm.metadata import PartitionState
from klamm.model import CONTROL_LOG_TOPIC, EndPoint, TopicPartition
from klamm.network.request import Request
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from klamm.protocol.record_batch import Record, build_batch
from klamm.replica.append_path import append_records
from klamm.replica.replica_manager import Leadership
from klamm.security.client_security import ClientSecurity

log = logging.getLogger(__name__)

INTERVAL_S: Final = 1.0
PAUSE_S: Final = 0.25
"""The pauses are long, because every append wakes the followers, which fetch again."""
BATCH_RECORDS: Final = 500
BATCH_BYTES: Final = 256 * 1024
SLICE_RECORDS: Final = 50
"""Records that are encoded at a time. They take less than a millisecond of the broker loop."""
LONGEST_BACKOFF_S: Final = 5.0
FEWER_REPLICAS_AFTER_S: Final = 30.0
"""After this time, a cluster smaller than the replication factor gets the topic anyway."""
STOP_WRITE_S: Final = 0.5
MAX_CHARS: Final = 300
_PRODUCE_VERSION: Final = 7
_TIMEOUT_MS: Final = CONTROL_LOG.request_ms
_PARTITION: Final = TopicPartition(CONTROL_LOG_TOPIC, 0)
_HOPELESS: Final = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
)
"""Errors that a retry of the same batch would repeat."""


class ControlLogWriter:
    """Owns one buffer per loop and the task that empties them; lives on the broker loop."""

    def __init__(self, config: KafkaConfig, clock: Clock) -> None:
        capacity = config.klamm_control_log_buffer_records
        names = ("control", "broker") if config.klamm_control_log_enable else ()
        self._buffers = tuple(ControlLogBuffer(name, capacity, clock) for name in names)
        self._broker: Broker | None = None
        self._task: asyncio.Task[None] | None = None
        self._connection: BrokerConnection | None = None
        self._endpoint: EndPoint | None = None
        self._rows: deque[Record] = deque()
        self._pending: tuple[bytes, int] | None = None
        self._wanted_since_s: float | None = None
        self._failures: dict[str, int] = {}
        self.given_up = 0
        """Records of batches that the topic's leader refused permanently."""

    @property
    def of_control_loop(self) -> ControlLog:
        return self._buffers[0] if self._buffers else NO_CONTROL_LOG

    @property
    def of_broker_loop(self) -> ControlLog:
        return self._buffers[1] if self._buffers else NO_CONTROL_LOG

    @property
    def dropped(self) -> int:
        return self.given_up + sum(buffer.dropped for buffer in self._buffers)

    def start(self, broker: Broker) -> None:
        if not self._buffers:
            return
        self._broker = broker
        metrics, kind = broker.metrics, "ControlLog"
        metrics.gauge("klamm.server", kind, "BufferedRecordCount", lambda: sum(map(len, self._buffers)))
        metrics.gauge("klamm.server", kind, "DroppedRecordCount", lambda: self.dropped)
        broker.replicas.role_listeners.append(self._on_roles)
        self._task = broker.loop.create_task(self._run(broker))

    async def stop(self) -> None:
        """Write the remaining records if that is possible at once."""
        task, self._task = self._task, None
        if task is None or self._broker is None:
            return
        task.cancel()
        await asyncio.wait({task})
        try:
            async with asyncio.timeout(STOP_WRITE_S):
                while await self._write_some(self._broker):
                    pass
        except Exception:
            log.debug("writing the last records of the control log failed")
        self._disconnect()

    def _on_roles(self, became_leader: Leadership, became_follower: Leadership, correlation_id: int | None) -> None:
        assert self._broker is not None
        replicas, record = self._broker.replicas, self._buffers[1].record
        for tp, leader_epoch in became_leader:
            record(RoleChanged(replicas.controller_epoch, correlation_id, tp, "leader", leader_epoch))
        for tp, leader_epoch in became_follower:
            role = "follower" if tp in replicas.partitions else "none"
            record(RoleChanged(replicas.controller_epoch, correlation_id, tp, role, leader_epoch))

    def on_failed_request(self, request: Request, error: str) -> None:
        """Record a handler's failure, with growing distances: a client that repeats a failing request must not fill the
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

    # --- the task ------------------------------------------------------------------------------------------------

    async def _run(self, broker: Broker) -> None:
        failures = 0
        while True:
            try:
                is_written = await self._write_some(broker)
                failures = 0
                pause_s = PAUSE_S if is_written else INTERVAL_S
            except OSError as failure:
                failures += 1
                if failures.bit_count() == 1:
                    log.debug("writing the control log failed (attempt %d): %s", failures, failure)
                pause_s = min(0.1 * (1 << min(failures - 1, 10)), LONGEST_BACKOFF_S)
            except Exception:
                log.exception("writing the control log failed; its batch is dropped")
                self._give_up()
                pause_s = LONGEST_BACKOFF_S
            await asyncio.sleep(pause_s)

    async def _write_some(self, broker: Broker) -> bool:
        """Write one batch; returns False if there was nothing to write. Raises OSError if it must be retried."""
        if self._pending is None:
            await self._fill(broker.id)
            self._pending = self._next_batch()
        if self._pending is None:
            return False
        state = broker.metadata.partition(*_PARTITION)
        if state is None:
            await self._create(broker)
            raise ConnectionError("the topic does not exist yet")
        error = await self._append(broker, state, self._pending[0])
        if error in _HOPELESS:
            log.warning("appending %d records to the control log failed: %s", self._pending[1], error.name)
            self._give_up()
        elif error is not ErrorCode.NONE:
            raise ConnectionError(f"its leader answers {error.name}")
        self._pending = None
        return True

    def _give_up(self) -> None:
        if self._pending is not None:
            self.given_up += self._pending[1]
            self._pending = None

    async def _fill(self, broker_id: int) -> None:
        for buffer in self._buffers:
            while len(self._rows) < BATCH_RECORDS and (entries := buffer.take(SLICE_RECORDS)):
                self._rows.extend(
                    Record(timestamp=entry.at_ms, key=key_of(entry), value=to_json(entry, broker_id, buffer.loop_name))
                    for entry in entries
                )
                await asyncio.sleep(0)

    def _next_batch(self) -> tuple[bytes, int] | None:
        records: list[Record] = []
        size = 0
        while self._rows and len(records) < BATCH_RECORDS and size < BATCH_BYTES:
            records.append(self._rows.popleft())
            size += len(records[-1].value or b"")
        return (build_batch(records), len(records)) if records else None

    async def _append(self, broker: Broker, state: PartitionState, batch: bytes) -> ErrorCode:
        if state.leader == broker.id:
            results = append_records(broker.replicas, -1, True, AppendOrigin.CLIENT, {_PARTITION: batch}, _TIMEOUT_MS)
            return ErrorCode((await results if isinstance(results, asyncio.Future) else results)[_PARTITION].error)
        endpoint = broker.metadata.endpoint(state.leader, broker.config.inter_broker_listener)
        if endpoint is None:
            raise ConnectionError("the topic has no leader now")
        data = [PartitionProduceData(index=0, records=batch)]
        topics = [TopicProduceData(name=CONTROL_LOG_TOPIC, partition_data=data)]
        connection = await self._connected(endpoint, broker.outgoing.of(endpoint.listener))
        response: ProduceResponse = await connection.send(
            ProduceRequest(acks=-1, timeout_ms=_TIMEOUT_MS, topic_data=topics), _PRODUCE_VERSION
        )
        return ErrorCode(response.responses[0].partition_responses[0].error_code)

    async def _connected(self, endpoint: EndPoint, security: ClientSecurity) -> BrokerConnection:
        if self._connection is None or self._connection.is_closed or endpoint != self._endpoint:
            self._disconnect()
            self._connection = await BrokerConnection.connect(
                endpoint.host,
                endpoint.port,
                timeout_ms=_TIMEOUT_MS,
                client_id=ADMIN_CLIENT_ID,
                request_timeout_ms=_TIMEOUT_MS,
                security=security,
            )
            self._endpoint = endpoint
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # --- the topic -----------------------------------------------------------------------------------------------

    async def _create(self, broker: Broker) -> None:
        """The controller's own broker requests it first; the others only if that fails."""
        now_s = broker.loop.time()
        if self._wanted_since_s is None:
            self._wanted_since_s = now_s
        is_late = now_s - self._wanted_since_s > FEWER_REPLICAS_AFTER_S
        alive, replicas = len(broker.metadata.alive_brokers()), broker.config.klamm_control_log_replication_factor
        if not alive or not (is_late or (broker.controller.is_active and alive >= replicas)):
            return
        topic = control_log_topic(broker.config, min(replicas, alive))
        await create_missing(broker, [CONTROL_LOG_TOPIC], lambda _: topic)
