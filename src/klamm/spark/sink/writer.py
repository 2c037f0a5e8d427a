"""Writes rows to topics, at least once: each task sends its rows with an idempotent producer and returns after the
brokers have acknowledged all of them. A retried task sends its rows again, as in Spark's Kafka sink.

The columns are those of that sink: `value` and optionally `key`, `topic`, `partition` and `headers`. Rows of one key
keep their order within a task.

Permanent errors (a record that is too large, a missing partition, a row without a topic) are not raised by the task,
which Spark would retry. They are returned to the driver, and the commit raises them.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)

from klamm.errors import KlammError
from klamm.spark.sink.rows import by_topic
from klamm.spark.sink.write_options import WriterOptions, check_schema, parse
from klamm.spark.sink.writer_errors import DeliveryError, PermanentWriteError, delivery_error, is_unknown_partition
from klamm.spark.source.worker import prepare

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Message, Producer
    from pyspark.sql.types import StructType

CHUNK_ROWS: Final = 10_000
CHUNK_BYTES: Final = 4 << 20
CHUNKS_ON_THE_WAY: Final = 4
"""Maximum number of unacknowledged chunks per task."""

_ANY_PARTITION: Final = -1
_WAIT_S: Final = 1.0
_ASK_S: Final = 10.0


@dataclass
class Written(WriterCommitMessage):
    """Number of rows that a task wrote, or its permanent error."""

    rows: int
    failure: str | None = None


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceWriter:
    """`df.write.format("klamm")`: mode append only, because a log is not overwritten."""
    if overwrite:
        raise KlammError("Save mode overwrite is not allowed for topics: use append.")
    parsed = _checked(options, schema)
    _check_reachable(parsed)
    if not parsed.is_exactly_once:
        return BatchWriter(parsed, schema)
    from klamm.spark.sink.transactional_writer import ExactlyOnceBatchWriter

    return ExactlyOnceBatchWriter(parsed)


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool, *, is_planning: bool = True
) -> DataSourceStreamWriter:
    """`df.writeStream.format("klamm")`. In output mode complete, all rows of the result are appended in every batch.

    `is_planning`: tasks will get the writer. Otherwise it commits a batch, or aborts one.
    """
    parsed = _checked(options, schema)
    if not parsed.is_exactly_once:
        return StreamWriter(parsed, schema)
    from klamm.spark.sink.transactional_writer import ExactlyOnceStreamWriter, stream_claim

    return ExactlyOnceStreamWriter(parsed, stream_claim(parsed) if is_planning else None)


def _checked(options: Mapping[str, str], schema: StructType) -> WriterOptions:
    parsed = parse(options)
    check_schema(schema, parsed)
    return parsed


_REACHED: Final[set[str]] = set()
"""Clusters that this process has reached before: tasks wait for them during an outage."""


def _check_reachable(options: WriterOptions) -> None:
    """Raise UnreachableError early, before every task waits `delivery.timeout.ms` for brokers."""
    from klamm.spark.source.client_options import driver_client

    if options.servers not in _REACHED:
        with driver_client(options.servers, dict(options.security)) as client:
            client.metadata(())
        _REACHED.add(options.servers)


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: WriterOptions, schema: StructType) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return _written(self._options, iterator)

    def commit(self, messages: list[Any]) -> None:
        _raise_failures(messages)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriterOptions, schema: StructType) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return _written(self._options, iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:
        _raise_failures(messages)


def _written(options: WriterOptions, batches: Iterator[pa.RecordBatch]) -> Written:
    try:
        return write_rows(options, batches)
    except PermanentWriteError as error:
        return Written(0, str(error))


def _raise_failures(messages: list[Any]) -> None:
    for message in messages:
        if isinstance(message, Written) and message.failure is not None:
            raise PermanentWriteError(message.failure)


def write_rows(options: WriterOptions, batches: Iterator[pa.RecordBatch]) -> Written:
    """Send all rows and wait for the brokers. Raises KlammError with topic, partition and reason."""
    sender = _sender(options)
    prepare()
    chunk_bytes = min(CHUNK_BYTES, (options.buffer_memory or sys.maxsize) // CHUNKS_ON_THE_WAY)
    rows = 0
    try:
        for batch in batches:
            for topic, part in by_topic(batch, options.topic):
                sender.send(topic, part, chunk_bytes)
            rows += batch.num_rows
        sender.wait()
    except BaseException:
        # Messages still in flight belong to the failed attempt: the next one must start with a new producer.
        _SENDERS.pop(_sender_key(options)).close()
        raise
    return Written(rows)


_SENDERS: Final[dict[tuple[tuple[str, str], ...], Sender]] = {}
"""Producers that later tasks of this worker process reuse: a new one costs several round trips."""


def _sender_key(options: WriterOptions) -> tuple[tuple[str, str], ...]:
    return options.producer + options.security


def _sender(options: WriterOptions) -> Sender:
    key = _sender_key(options)
    if key not in _SENDERS:
        _SENDERS[key] = Sender(options.all_settings)
    return _SENDERS[key]


class Sender:
    """A producer, its messages in flight, and its first error."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        from confluent_kafka import Producer

        self._failure: tuple[str | None, int | None, Any] | None = None
        self._on_the_way: deque[int] = deque(maxlen=CHUNKS_ON_THE_WAY)
        self._producer: Producer = Producer(
            {
                **settings,
                "queue.buffering.max.messages": 10_000_000,
                "queue.buffering.max.kbytes": 2_097_151,
                "delivery.report.only.error": True,
                "log_level": 0,
            }
        )

    def send(self, topic: str, rows: pa.RecordBatch, chunk_bytes: int = CHUNK_BYTES) -> None:
        for partition, part in _by_partition(rows):
            for chunk in _chunks(part, chunk_bytes):
                self._on_the_way.append(chunk.num_rows)
                if "headers" in chunk.schema.names:
                    self._produce_each(topic, partition, chunk)
                else:
                    self._produce_all(topic, partition, chunk)
                self._wait_until_at_most(sum(self._on_the_way))

    def wait(self) -> None:
        while self._producer.flush(_WAIT_S):
            self._raise_failure()
        self._on_the_way.clear()
        self._raise_failure()

    def close(self) -> None:
        self._producer.purge()
        self._producer.flush(_WAIT_S)

    def _produce_all(self, topic: str, partition: int, rows: pa.RecordBatch) -> None:
        messages = _messages(rows)
        queued = self._producer.produce_batch(topic, messages, partition=partition, on_delivery=self._on_delivery)
        if queued < len(messages):
            raise self._error(topic, partition, next(m["_error"] for m in messages if "_error" in m))

    def _produce_each(self, topic: str, partition: int, rows: pa.RecordBatch) -> None:
        """librdkafka's batches of messages have no headers."""
        from confluent_kafka import KafkaException

        for message, headers in zip(_messages(rows), rows.column("headers").to_pylist(), strict=True):
            listed = [_header(header) for header in headers or ()]
            try:
                self._producer.produce(
                    topic, partition=partition, headers=listed, on_delivery=self._on_delivery, **message
                )
            except KafkaException as error:
                raise self._error(topic, partition, error.args[0]) from None

    def _wait_until_at_most(self, limit: int) -> None:
        self._producer.poll(0)
        while len(self._producer) > limit:
            self._producer.poll(0.01)
            self._raise_failure()
        self._raise_failure()

    def _on_delivery(self, error: Any, message: Message) -> None:
        if error is not None and self._failure is None:
            self._failure = message.topic(), message.partition(), error

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._error(*self._failure)

    def _error(self, topic: str | None, partition: int | None, error: Any) -> DeliveryError:
        known = self._partitions(topic) if topic is not None and is_unknown_partition(error) else None
        return delivery_error(topic, partition, error, known)

    def _partitions(self, topic: str) -> int | None:
        """Return the current number of partitions: the producer's metadata may be minutes old."""
        from confluent_kafka import KafkaException

        try:
            return len(self._producer.list_topics(topic, timeout=_ASK_S).topics[topic].partitions) or None
        except (KafkaException, KeyError):
            return None


def _header(header: Mapping[str, Any] | None) -> tuple[str, str | bytes | None]:
    if header is None or header["key"] is None:
        raise PermanentWriteError("A row has a header without a key.")
    return header["key"], header["value"]


def _by_partition(rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each partition, in their order; rows without one are left to the partitioner."""
    import pyarrow.compute as pc

    if "partition" not in rows.schema.names:
        yield _ANY_PARTITION, rows
        return
    column = rows.column("partition")
    if (lowest := pc.min(column).as_py()) is not None and lowest < 0:
        raise PermanentWriteError(
            f"A row has the partition {lowest}: expected 0 or more, or null to leave it to its key."
        )
    column = pc.fill_null(column, _ANY_PARTITION)
    for partition in pc.unique(column).to_pylist():
        yield partition, rows.filter(pc.equal(column, partition))


def _chunks(rows: pa.RecordBatch, chunk_bytes: int) -> Iterator[pa.RecordBatch]:
    size = max(1, rows.nbytes // rows.num_rows)
    step = max(1, min(CHUNK_ROWS, chunk_bytes // size))
    for start in range(0, rows.num_rows, step):
        yield rows.slice(start, step)


def _messages(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    """Yield key and value of each row, as bytes or None."""
    import pyarrow as pa

    values = rows.column("value").cast(pa.binary()).to_pylist()
    if "key" not in rows.schema.names:
        return [{"value": value} for value in values]
    keys = rows.column("key").cast(pa.binary()).to_pylist()
    return [{"value": value, "key": key} for value, key in zip(values, keys, strict=True)]
