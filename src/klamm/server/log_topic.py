"""Writes records to an internal topic of one partition in batches, with the lowest priority.

The topic is created through the controller when there is something to write. Nothing waits for this task.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from klamm.apis.missing_topics import create_missing
from klamm.apis.produce import ADMIN_CLIENT_ID
from klamm.broker import Broker
from klamm.client.asyncio_connection import BrokerConnection
from klamm.client.connection_totals import ConnectionTotals, outgoing_totals
from klamm.client.patience import CONTROL_LOG, CONTROL_LOG_END
from klamm.config import KafkaConfig
from klamm.controller.events import CreatableTopic
from klamm.errors import ErrorCode
from klamm.log import AppendOrigin, Log
from klamm.metadata import PartitionState
from klamm.model import EndPoint, TopicPartition
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from klamm.protocol.record_batch import Record, build_batch_in_steps
from klamm.replica.append_path import append_records
from klamm.security.client_security import ClientSecurity

log = logging.getLogger(__name__)

INTERVAL_S: Final = 1.0
PAUSE_S: Final = 0.25
"""The pauses are long, because every append wakes the followers, which fetch again."""
BATCH_RECORDS: Final = 500
BATCH_BYTES: Final = 256 * 1024
SLICE_RECORDS: Final = 10
"""Records that are encoded at a time. They take less than half a millisecond of the broker loop."""
_PRODUCE_VERSION: Final = 7
_TIMEOUT_MS: Final = CONTROL_LOG.request_ms
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


@dataclass(frozen=True, slots=True)
class LogTopic:
    """The topic of a log of this broker. `make` takes the replication factor that the cluster can have."""

    title: str
    name: str
    replication_factor: Callable[[KafkaConfig], int]
    make: Callable[[KafkaConfig, int], CreatableTopic]
    fewer_replicas_after_s: float = 30.0
    """After this time, a cluster smaller than the replication factor gets the topic anyway."""

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.name, 0)


class LogTopicWriter:
    """Owns the task that writes a topic; lives on the broker loop.

    `take` returns the next encoded records, at most `SLICE_RECORDS`, or none.
    """

    def __init__(self, topic: LogTopic, take: Callable[[Broker], list[Record]]) -> None:
        self._topic = topic
        self._take = take
        self._broker: Broker | None = None
        self._task: asyncio.Task[None] | None = None
        self._connection: BrokerConnection | None = None
        self._endpoint: EndPoint | None = None
        self._rows: deque[Record] = deque()
        self._pending: tuple[bytes, int] | None = None
        self._wanted_since_s: float | None = None
        self.given_up = 0
        """Records of batches that the topic's leader refused permanently."""

    @property
    def is_running(self) -> bool:
        return self._task is not None

    def start(self, broker: Broker) -> None:
        self._broker = broker
        self._task = broker.loop.create_task(self._run(broker), name=self._topic.title.replace(" ", "-"))

    async def stop(self) -> None:
        """Write the remaining records if that is possible soon.

        A controlled shutdown has just moved leaders: the new leader of the topic may refuse the first attempt.
        """
        task, self._task = self._task, None
        if task is None or self._broker is None:
            return
        task.cancel()
        await asyncio.wait({task})
        failure: OSError | None = None
        try:
            async with asyncio.timeout(CONTROL_LOG_END.deadline_s):
                while True:
                    try:
                        if not await self._write_some(self._broker):
                            break
                    except TimeoutError:
                        raise
                    except OSError as error:
                        failure = error
                        await asyncio.sleep(CONTROL_LOG_END.pause_s())
        except TimeoutError:
            log.debug("writing the last records of the %s failed: %s", self._topic.title, failure or "timed out")
        except Exception:
            log.exception("writing the last records of the %s failed", self._topic.title)
        self._disconnect()

    async def _run(self, broker: Broker) -> None:
        failures, title = 0, self._topic.title
        while True:
            try:
                is_written = await self._write_some(broker)
                failures = 0
                pause_s = PAUSE_S if is_written else INTERVAL_S
            except OSError as failure:
                failures += 1
                if failures.bit_count() == 1:
                    log.debug("writing the %s failed (attempt %d): %s", title, failures, failure)
                pause_s = CONTROL_LOG.pause_s(failures - 1)
            except Exception:
                log.exception("writing the %s failed; its batch is dropped", title)
                self._give_up()
                pause_s = CONTROL_LOG.longest_pause_ms / 1000
            await asyncio.sleep(pause_s)

    async def _write_some(self, broker: Broker) -> bool:
        """Write one batch; returns False if there was nothing to write. Raises OSError if it must be retried."""
        if self._pending is None:
            await self._fill(broker)
            self._pending = await self._next_batch()
            if self._pending is None:
                return False
            await asyncio.sleep(0)  # the last step of the batch and its append would be one long turn
        state = broker.metadata.partition(*self._topic.partition)
        if state is None:
            await self._create(broker)
            raise ConnectionError("the topic does not exist yet")
        error = await self._append(broker, state, self._pending[0])
        if error in _HOPELESS:
            log.warning("appending %d records to the %s failed: %s", self._pending[1], self._topic.title, error.name)
            self._give_up()
        elif error is not ErrorCode.NONE:
            raise ConnectionError(f"its leader answers {error.name}")
        self._pending = None
        return True

    def _give_up(self) -> None:
        if self._pending is not None:
            self.given_up += self._pending[1]
            self._pending = None

    async def _fill(self, broker: Broker) -> None:
        while len(self._rows) < BATCH_RECORDS and (rows := self._take(broker)):
            self._rows.extend(rows)
            await asyncio.sleep(0)

    async def _next_batch(self) -> tuple[bytes, int] | None:
        """Encode a batch in slices. Its records stay queued until it is complete: the task may be cancelled before."""
        records: list[Record] = []
        size = 0
        for row in self._rows:
            if len(records) >= BATCH_RECORDS or size >= BATCH_BYTES:
                break
            records.append(row)
            size += len(row.value or b"")
        if not records:
            return None
        steps = build_batch_in_steps(records, SLICE_RECORDS)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                batch: bytes = done.value
                break
            await asyncio.sleep(0)
        for _ in records:
            self._rows.popleft()
        return batch, len(records)

    async def _append(self, broker: Broker, state: PartitionState, batch: bytes) -> ErrorCode:
        if state.leader == broker.id:
            tp = self._topic.partition
            results = append_records(broker.replicas, -1, True, _origin(broker, tp), {tp: batch}, _TIMEOUT_MS)
            return ErrorCode((await results if isinstance(results, asyncio.Future) else results)[tp].error)
        endpoint = broker.metadata.endpoint(state.leader, broker.config.inter_broker_listener)
        if endpoint is None:
            raise ConnectionError("the topic has no leader now")
        data = [PartitionProduceData(index=0, records=batch)]
        topics = [TopicProduceData(name=self._topic.name, partition_data=data)]
        totals = outgoing_totals(broker.metrics, self._topic.title.replace(" ", "-"), state.leader)
        connection = await self._connected(endpoint, broker.outgoing.of(endpoint.listener), totals)
        response: ProduceResponse = await connection.send(
            ProduceRequest(acks=-1, timeout_ms=_TIMEOUT_MS, topic_data=topics), _PRODUCE_VERSION
        )
        return ErrorCode(response.responses[0].partition_responses[0].error_code)

    async def _connected(
        self, endpoint: EndPoint, security: ClientSecurity, totals: ConnectionTotals
    ) -> BrokerConnection:
        if self._connection is None or self._connection.is_closed or endpoint != self._endpoint:
            self._disconnect()
            self._connection = await BrokerConnection.connect(
                endpoint.host,
                endpoint.port,
                timeout_ms=_TIMEOUT_MS,
                client_id=ADMIN_CLIENT_ID,
                request_timeout_ms=_TIMEOUT_MS,
                security=security,
                totals=totals,
            )
            self._endpoint = endpoint
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # --- the topic -----------------------------------------------------------------------------------------------

    async def _create(self, broker: Broker) -> None:
        """Request the topic: the controller's own broker does so first, the others only if that fails."""
        now_s = broker.loop.time()
        if self._wanted_since_s is None:
            self._wanted_since_s = now_s
        is_late = now_s - self._wanted_since_s > self._topic.fewer_replicas_after_s
        alive, replicas = len(broker.metadata.alive_brokers()), self._topic.replication_factor(broker.config)
        if not alive or not (is_late or (broker.controller.is_active and alive >= replicas)):
            return
        topic = self._topic.make(broker.config, min(replicas, alive))
        await create_missing(broker, [self._topic.name], lambda _: topic)


def _origin(broker: Broker, tp: TopicPartition) -> AppendOrigin:
    """Return the origin of batches for a topic that this broker leads.

    As a client only if the topic is compacted: then every record needs a key, and some have none. Otherwise, parsing
    500 records that were just encoded would take up to a millisecond for nothing.
    """
    led = broker.replicas.leader_log(tp)
    is_compacted = isinstance(led, Log) and led.config.is_compacted
    return AppendOrigin.CLIENT if is_compacted else AppendOrigin.COORDINATOR
