"""The state of exactly-once sinks in the compacted topic `__klamm_sink_state`, one key per sink.

A change is a transaction of the sink's driver id: InitProducerId, read the state to the end, write the next record,
commit. If another driver starts a change meanwhile, the first one is fenced, and reads again before it retries.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

import pyarrow as pa

from klamm.client.client_errors import ClientError, ProducerFencedError, RetriableError
from klamm.client.cluster_client import READ_COMMITTED, ClusterClient
from klamm.client.patience import STATE_READ
from klamm.client.transaction_client import Ended, Transaction, TransactionClient
from klamm.client.transactional_producer import RecordSet, TransactionalProducer
from klamm.model import SINK_STATE_TOPIC, TopicPartition
from klamm.protocol.record_batch import Record, encode_record
from klamm.spark.decode.record_columns import RecordDecoder
from klamm.spark.sink.sink_state import SinkState, driver_id, parse_state
from klamm.spark.source.range_fetch import fetch_batches
from klamm.spark.source.read_options import DEFAULT_BATCH_BYTES, parse_read_options
from klamm.spark.source.source_offsets import OffsetRange

T = TypeVar("T")

PARTITIONS: Final = 8
CHANGE_TIMEOUT_MS: Final = 60_000
"""A driver that dies inside a change delays other sinks of its partition for this long."""
_REPLICAS: Final = 3
_CONFIG: Final = {
    "cleanup.policy": "compact",
    "compression.type": "producer",
    # Readers start at the beginning, so the part that is not compacted yet stays small.
    "segment.bytes": str(4 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}
_FENCED_TRIES: Final = 10
_SCHEMA: Final = pa.schema([("key", pa.binary()), ("value", pa.binary())])


class _Known(NamedTuple):
    """The states of a partition up to an offset."""

    offset: int
    states: Mapping[str, SinkState]


_known: dict[tuple[str, TopicPartition, UUID | None], _Known] = {}
"""Kept between the batches that a process drives, so that a read is as long as what was written since."""

Rule = Callable[[SinkState | None], SinkState | None]


class StateTopic:
    """Reads and changes states. `reading` is used for Fetch and Produce, `transactions` for coordinators."""

    def __init__(
        self,
        servers: str,
        transactions: TransactionClient,
        reading: ClusterClient,
        client: Mapping[str, str] | None = None,
    ) -> None:
        self._servers = servers
        self._client = client or {}
        self._transactions = transactions
        self._reading = reading
        self._partitions = 0

    def change(self, sink: str, rule: Rule) -> SinkState | None:
        """Write the record that `rule` derives from the current state, and return it; None: nothing is written.

        The rule runs again if another driver changed the state meanwhile.
        """

        def attempt(change: Transaction) -> SinkState | None:
            state = self.read(sink)
            if (new := rule(state)) is None:
                return None
            if new != state:
                self._write(change, sink, new.to_json().encode())
            return new

        return self._attempt(sink, attempt)

    def remove(self, sink: str) -> None:
        """Remove the state of a sink that nobody will use again. Several drivers may do so at the same time."""
        self._attempt(sink, lambda change: self._write(change, sink, None))

    def read(self, sink: str) -> SinkState | None:
        return self._read(self._partition(sink)).get(sink)

    def read_all(self) -> dict[str, SinkState]:
        """Return the states of all sinks of the cluster."""
        found: dict[str, SinkState] = {}
        for number in range(self._count()):
            found |= self._read(TopicPartition(SINK_STATE_TOPIC, number))
        return found

    # --- inside ---

    def _attempt(self, sink: str, act: Callable[[Transaction], T]) -> T:
        """Act in a transaction of the sink's driver id, again if another driver has fenced it meanwhile."""
        problem: ProducerFencedError | None = None
        for _ in range(_FENCED_TRIES):
            try:
                return act(self._transactions.begin(driver_id(sink), CHANGE_TIMEOUT_MS))
            except ProducerFencedError as error:
                problem = error
        raise ClientError(
            f"The state of the sink {sink} was not written: other drivers of the sink are writing it too ({problem})."
        )

    def _read(self, tp: TopicPartition) -> dict[str, SinkState]:
        """Read a partition to its end. All transactions that began before are over by then, whatever became of them."""
        end = self._reading.latest([tp])[tp]

        def attempt() -> None:
            stable = self._reading.latest([tp], READ_COMMITTED)[tp]
            if stable < end:
                raise RetriableError(f"a transaction is open in {tp} at offset {stable}")

        with self._reading.within(STATE_READ):
            self._reading.retry(f"the committed end of {tp}", attempt)
        known = _known.get(key := (self._servers, tp, self._reading.topic_ids.get(tp.topic)), _Known(0, {}))
        if known.offset > end:
            known = _Known(0, {})
        start = max(known.offset, self._reading.earliest([tp])[tp])
        options = parse_read_options(
            {
                "kafka.bootstrap.servers": self._servers,
                "subscribe": tp.topic,
                "kafka.isolation.level": "read_committed",
            },
            streaming=False,
        )
        decoder = RecordDecoder(tp, _SCHEMA, batch_bytes=DEFAULT_BATCH_BYTES)
        states = dict(known.states)
        for batch in fetch_batches(self._reading, OffsetRange(tp, start, end), decoder, options):
            keys, contents = (column.to_pylist() for column in batch.columns)
            for sink, content in zip(keys, contents, strict=True):
                if content is None:
                    states.pop(sink.decode(), None)
                else:
                    states[sink.decode()] = parse_state(content)
        _known[key] = _Known(end, states)
        return states

    def _write(self, change: Transaction, sink: str, value: bytes | None) -> None:
        record = encode_record(Record(key=sink.encode(), value=value), 0, 0)
        producer = TransactionalProducer(self._transactions, self._reading, change)
        producer.send({self._partition(sink): RecordSet(record, 1)})
        producer.flush()
        if self._transactions.end(change, commit=True) is not Ended.DONE:
            raise ProducerFencedError(f"Another driver has the id {change.transactional_id} now.")

    def _partition(self, sink: str) -> TopicPartition:
        return TopicPartition(SINK_STATE_TOPIC, zlib.crc32(sink.encode()) % self._count())

    def _count(self) -> int:
        if not self._partitions:
            self._partitions = len(self._ensure())
        return self._partitions

    def _ensure(self) -> list[int]:
        """Return the partitions of the topic, which is created if it does not exist."""
        found = self._reading.topics([SINK_STATE_TOPIC]).get(SINK_STATE_TOPIC)
        if not found:
            create_state_topic(self._servers, len(self._reading.addresses()), self._client)

        def attempt() -> list[int]:
            known = self._reading.topics([SINK_STATE_TOPIC]).get(SINK_STATE_TOPIC)
            if not known:
                raise RetriableError("it is not in the metadata yet")
            return known

        return self._reading.retry(f"the topic {SINK_STATE_TOPIC}", attempt)


def state_topic_settings(brokers: int) -> tuple[int, Mapping[str, str]]:
    """Return the replication factor and the configuration, adapted to the size of the cluster."""
    replicas = max(1, min(_REPLICAS, brokers))
    return replicas, {**_CONFIG, "min.insync.replicas": str(max(1, replicas - 1))}


def create_state_topic(servers: str, brokers: int, client: Mapping[str, str]) -> None:
    """Create the topic. One that another driver has created meanwhile is fine."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    from klamm.security.librdkafka import librdkafka_settings
    from klamm.spark.source.client_options import client_security

    replicas, config = state_topic_settings(brokers)
    secured = librdkafka_settings(client_security(client))
    admin = AdminClient({"bootstrap.servers": servers, "client.id": "klamm-spark", "log_level": 0, **secured})
    new = NewTopic(SINK_STATE_TOPIC, PARTITIONS, replicas, config=dict(config))
    try:
        admin.create_topics([new])[SINK_STATE_TOPIC].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise ClientError(f"The topic {SINK_STATE_TOPIC} cannot be created: {error.args[0].str()}.") from None
