"""Writes rows to topics exactly once: each task prepares a transaction, and the driver commits those of all tasks.

A task begins a transaction at its first row, writes, waits for the acknowledgements, and leaves the transaction open.
`exactly_once` has the driver's side, `sink_state` the rules. The identity of a batch comes from properties of the task
that Spark sets for itself: its Python interface does not pass the number of the batch to `write`.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from klamm.client.client_errors import (
    ClientError,
    ProduceError,
    TransactionTimeoutError,
    UnknownTopicError,
    error_name,
)
from klamm.client.cluster_client import ClusterClient
from klamm.client.patience import DELIVERY, Patience
from klamm.client.transaction_client import ONGOING, Transaction, TransactionClient
from klamm.client.transactional_producer import Codec, TransactionalProducer
from klamm.errors import ErrorCode, KlammError
from klamm.protocol.compression import CompressionType
from klamm.spark.sink.exactly_once import Claim, SinkDriver
from klamm.spark.sink.row_batches import RowBatches
from klamm.spark.sink.rows import by_topic
from klamm.spark.sink.sink_state import PreparedBatch, TakenOverError, check_planned, task_id
from klamm.spark.sink.write_options import WriterOptions, parse
from klamm.spark.sink.writer_errors import DeliveryError, PermanentWriteError
from klamm.spark.source.batch_offsets import batch_offsets
from klamm.spark.source.checkpoint_files import CheckpointFiles, newest_batch
from klamm.spark.source.checkpoint_locations import query_id_of
from klamm.spark.source.client_options import task_client
from klamm.spark.source.read_options import OptionError
from klamm.spark.source.worker import prepare

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_PROPERTY: Final = "streaming.sql.batchId"
QUERY_PROPERTY: Final = "sql.streaming.queryId"
RUN_PROPERTY: Final = "spark.jobGroup.id"
_JOB_PREFIX: Final = "klamm-write"
_MEMORY_BYTES: Final = 32 << 20
_BATCH_SHARE: Final = 0.9
"""Records may grow a little when they are compressed, and a batch has a header."""
_TOO_LARGE: Final = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """The batch of a task, and which attempt of which task it is."""

    query: str
    run: str
    batch: int
    partition: int
    attempt: int


@dataclass
class Prepared(WriterCommitMessage):
    """The result of a task: an open transaction, nothing (no rows, or a batch that the topic has), or an error."""

    task: TaskIdentity
    claim: Claim
    rows: int = 0
    transaction: Transaction | None = None
    failure: str | None = None
    is_skipped: bool = False
    has_siblings: bool = False
    """Whether another attempt of the task has begun a transaction, or may have."""


def stream_claim(options: WriterOptions) -> Claim:
    """Claim the sink of a streaming query, once per Spark application."""
    if not (sink := _sink_name(options)):
        raise OptionError(
            "Option 'guarantee': exactly_once needs a name for the sink that stays the same over restarts. Klamm takes "
            "the query's id from a checkpoint on this machine, given as option 'checkpointLocation'. For any other "
            "checkpoint set 'transactionalIdPrefix', to a name that no other query uses."
        )
    if (claim := kept_claim(options)) is None:
        claim = _driver(options).claim(sink)
        _keep_claim(options, claim)
    return claim


def refuse_older_checkpoint(options: Mapping[str, str], files: CheckpointFiles) -> None:
    """Raise CheckpointError if the topic has a later batch of the query than its checkpoint. Call it before a start."""
    if query := files.query_id():
        parsed = parse(options)
        state = _driver(parsed).state(parsed.sink_id or query)
        # Read after the state: another run plans a batch before it commits the batch.
        check_planned(state, query, newest_batch(files))


def _sink_name(options: WriterOptions) -> str:
    """Empty if it is not known here."""
    return options.sink_id or query_id_of(options.checkpoint or "")


class ExactlyOnceStreamWriter(DataSourceStreamArrowWriter):
    """`claim` is None in the process that only commits: the tasks return it."""

    def __init__(self, options: WriterOptions, claim: Claim | None) -> None:
        self.options = options
        self.claim = claim

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Prepared:
        if self.claim is None:
            raise KlammError("Spark sent a writer to a task that was made to commit: exactly once is impossible.")
        return write_task(self.options, self.claim, streaming_task(), iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:
        _commit_batch(self.options, messages, batchId)

    def abort(self, messages: list[Any], batchId: int) -> None:
        _abort_batch(self.options, messages)


class ExactlyOnceBatchWriter(DataSourceArrowWriter):
    """`df.write`: a job with a new name, or a batch of a streaming query inside of foreachBatch."""

    def __init__(self, options: WriterOptions) -> None:
        self._options = options
        self._job = uuid.uuid4().hex
        self._is_batch = options.batch is not None
        if self._is_batch:
            self._claim = stream_claim(options)
        else:
            self._claim = Claim(f"{options.sink_id or _JOB_PREFIX}.{self._job}", 0)
            _driver(options).finish_jobs()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Prepared:
        task = replace(_task(), run=self._job, batch=self._options.batch or 0, query=self._query())
        return write_task(self._options, self._claim, task, iterator)

    def commit(self, messages: list[Any]) -> None:
        if self._is_batch:
            _commit_batch(self._options, messages, self._options.batch or 0)
        elif batch := _prepared_batch(self._options, messages, 0):
            _driver(self._options).commit_job(batch, may_have_leftovers=_has_retries(messages))

    def abort(self, messages: list[Any]) -> None:
        if self._is_batch:
            _abort_batch(self._options, messages)
        else:
            _driver(self._options).abort_job(self._claim.sink, _transactions(messages))

    def _query(self) -> str:
        """Return the streaming query of this task; empty for a job. Only Spark knows it if the checkpoint is remote."""
        if not self._is_batch:
            return ""
        return _property(QUERY_PROPERTY) or query_id_of(self._options.checkpoint or "")


# --- on the driver ---


def _driver(options: WriterOptions) -> SinkDriver:
    return SinkDriver(options.servers, options.transaction_timeout_ms, dict(options.security))


def _commit_batch(options: WriterOptions, messages: list[Any], batch_id: int) -> None:
    if (batch := _prepared_batch(options, messages, batch_id)) is not None:
        try:
            _driver(options).commit(batch, may_have_leftovers=_has_retries(messages))
        except TakenOverError:
            _drop_claim(options, batch.generation)  # if the query is started again here, it claims the sink again
            raise
        prepare()


def _prepared_batch(options: WriterOptions, messages: list[Any], batch_id: int) -> PreparedBatch | None:
    """Return the batch to commit; None if no task had rows. Raises PermanentWriteError if a task could not."""
    for message in messages:
        if message.failure is not None:
            raise PermanentWriteError(message.failure)
    transactions = _transactions(messages)
    if not transactions and not any(message.is_skipped for message in messages):
        return None
    first: Prepared = messages[0]
    return PreparedBatch(
        sink=first.claim.sink,
        query=first.task.query,
        generation=first.claim.generation,
        batch=batch_id,
        transactions=tuple(transactions),
        offsets=batch_offsets(options.checkpoint, batch_id) if first.task.query else None,
    )


def _abort_batch(options: WriterOptions, messages: list[Any]) -> None:
    """If no task has finished, the claim comes from the process that planned the batch."""
    claim = next((message.claim for message in messages if message is not None), None) or kept_claim(options)
    if claim is not None:
        _driver(options).abort(claim.sink, claim.generation, _transactions(messages))


def _claim_file(options: WriterOptions) -> Path:
    """Return the place of a claim that lives as long as the application: Spark removes its directories at the end.

    Spark plans and commits batches in several Python processes, and any of them may get the next batch. They all have
    the directories of the application in their environment.
    """
    directory = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    if not directory:
        raise KlammError("Spark did not name its local directories (SPARK_LOCAL_DIRS): exactly once is impossible.")
    name = hashlib.sha256(f"{options.servers}\0{_sink_name(options)}".encode()).hexdigest()[:16]
    return Path(directory, f"klamm-claim-{name}")


def _keep_claim(options: WriterOptions, claim: Claim) -> None:
    path = _claim_file(options)
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_text(json.dumps(asdict(claim)))
    new.replace(path)


def _drop_claim(options: WriterOptions, generation: int) -> None:
    """Forget a claim that another application has ended, unless this one has claimed the sink again since."""
    claim = kept_claim(options)
    if claim is not None and claim.generation == generation:
        _claim_file(options).unlink(missing_ok=True)


def kept_claim(options: WriterOptions) -> Claim | None:
    """Return the claim of this application, None if it has none yet."""
    try:
        return Claim(**json.loads(_claim_file(options).read_text()))
    except FileNotFoundError:
        return None


def _transactions(messages: list[Any]) -> list[Transaction]:
    return [message.transaction for message in messages if message is not None and message.transaction is not None]


def _has_retries(messages: list[Any]) -> bool:
    """Whether an earlier attempt of a task may have left a transaction open."""
    return any(message.has_siblings for message in messages)


# --- in tasks ---


def _task() -> TaskIdentity:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise KlammError("A write that is exactly once runs inside of a Spark task only.")
    return TaskIdentity("", "", 0, context.partitionId(), context.attemptNumber())


def _property(name: str) -> str | None:
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.getLocalProperty(name) if context is not None else None


def streaming_task() -> TaskIdentity:
    """Return the batch and the attempt of the running task of a streaming query."""
    query, run, batch = (_property(name) for name in (QUERY_PROPERTY, RUN_PROPERTY, BATCH_PROPERTY))
    if query is None or run is None or batch is None:
        raise KlammError(
            "Spark did not name the streaming query and the batch of this task: exactly once is impossible."
        )
    return replace(_task(), query=query, run=run, batch=int(batch))


def write_task(options: WriterOptions, claim: Claim, task: TaskIdentity, batches: Iterator[pa.RecordBatch]) -> Prepared:
    if claim.has(task.query, task.batch):
        # The commit checks that it is the same batch; nothing of it is written again.
        return Prepared(task, claim, rows=sum(batch.num_rows for batch in batches), is_skipped=True)
    try:
        return _written(options, claim, task, batches)
    except PermanentWriteError as error:
        return Prepared(task, claim, failure=str(error))


def _written(options: WriterOptions, claim: Claim, task: TaskIdentity, batches: Iterator[pa.RecordBatch]) -> Prepared:
    rows = 0
    with _TaskTransaction(options, claim, task) as transaction:
        for batch in batches:
            for topic, part in by_topic(batch, options.topic):
                transaction.write(topic, part)
            rows += batch.num_rows
        transaction.finish()
    prepare()
    return Prepared(task, claim, rows, transaction.begun, has_siblings=transaction.attempt > 0)


class _TaskTransaction:
    """The transaction of one task attempt, begun at its first row. An error inside aborts it."""

    def __init__(self, options: WriterOptions, claim: Claim, task: TaskIdentity) -> None:
        self._options = options
        self._claim = claim
        self._task = task
        self.attempt = task.attempt
        self._coordinators = task_client(options.servers, options.client)
        self._brokers = task_client(options.servers, options.client)
        self._client = TransactionClient(self._coordinators)
        self._producer: TransactionalProducer | None = None
        self._rows: RowBatches | None = None
        self._partitions: dict[str, int] = {}
        self.begun: Transaction | None = None

    def __enter__(self) -> _TaskTransaction:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is not None and self.begun is not None:
                self._abort()
        finally:
            self._coordinators.close()
            self._brokers.close()

    def write(self, topic: str, rows: pa.RecordBatch) -> None:
        with _delivery_errors():
            (self._rows or self._begin()).add(topic, rows)

    def finish(self) -> None:
        if self._rows is None or self._producer is None:
            return
        with _delivery_errors():
            self._rows.close()
            self._producer.flush()

    def _begin(self) -> RowBatches:
        try:
            self.begun = self._client.begin(self._free_id(), self._options.transaction_timeout_ms)
        except TransactionTimeoutError as error:
            raise PermanentWriteError(f"{error} Lower kafka.transaction.timeout.ms of the write.") from None
        settings = self._options.settings
        self._producer = TransactionalProducer(
            self._client, self._brokers, self.begun, codec=_codec(settings), patience=_patience(settings)
        )
        batch_bytes = min(int(settings.get("message.max.bytes", "1000000")), int(settings.get("batch.size", "1000000")))
        self._rows = RowBatches(
            self._producer.send,
            self._partition_count,
            batch_bytes=max(1, int(batch_bytes * _BATCH_SHARE)),
            memory_bytes=self._options.buffer_memory or _MEMORY_BYTES,
            ignore_keys=settings.get("partitioner") == "random",
        )
        return self._rows

    def _free_id(self) -> str:
        """Return the id of this attempt, or a later one while another attempt with the same number is open.

        The open attempt belongs to an earlier attempt of the stage, because Spark restarts task attempts at 0. Spark
        may still accept its result.
        """
        while True:
            found = task_id(
                self._claim.sink, self._claim.generation, self._task.run, self._task.partition, self.attempt
            )
            state = self._client.describe([found]).get(found)
            if state is None or state.state != ONGOING:
                return found
            self.attempt += 1

    def _partition_count(self, topic: str) -> int:
        if topic not in self._partitions:
            # The producer's connections may have requests in flight, the coordinator's have none here.
            self._partitions[topic] = _count(self._coordinators, topic)
        return self._partitions[topic]

    def _abort(self) -> None:
        """So that readers need not wait for the driver, which aborts it at the latest with the batch."""
        assert self.begun is not None
        try:
            self._client.end(self.begun, commit=False)
        except (KlammError, OSError):
            return


def _count(client: ClusterClient, topic: str) -> int:
    count = client.partition_count(topic)
    if not count:
        raise UnknownTopicError(f"A record for {topic} was not delivered: UNKNOWN_TOPIC. The topic does not exist.")
    return count


@contextmanager
def _delivery_errors() -> Iterator[None]:
    """Raise errors of the client as errors of the sink: rejected rows are permanent, others may pass."""
    try:
        yield
    except ProduceError as error:
        message = f"A record for {error.tp} was not delivered: {error_name(error.code)}."
        if error.code in _TOO_LARGE:
            message += " Raise kafka.max.request.size of the write, max.message.bytes of the topic, or both."
        raise PermanentWriteError(message) from error
    except ClientError as error:
        raise DeliveryError(str(error)) from error


def _codec(settings: Mapping[str, str]) -> Codec:
    name = settings.get("compression.type", settings.get("compression.codec", "none")).strip().upper()
    level = settings.get("compression.level")
    number = int(level) if level is not None else -1
    return Codec(CompressionType[name], number if number >= 0 else None)


def _patience(settings: Mapping[str, str]) -> Patience:
    return replace(DELIVERY, deadline_ms=int(settings["delivery.timeout.ms"]))
