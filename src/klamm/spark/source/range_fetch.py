"""Reads a range of one partition by Fetch. The next request is in flight while a response is decoded.

Moved leaders and broken connections cost a retry, not the task. Deleted offsets are reported with their range and the
reason, as an error or, with failOnDataLoss=false, as a warning.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final
from uuid import UUID

import pyarrow as pa

from klamm.client.blocking_connection import ReceiveBuffer
from klamm.client.client_errors import (
    ClientError,
    OffsetOutOfRangeError,
    RetriableError,
    TopicIdError,
    UnknownTopicError,
)
from klamm.client.cluster_client import READ_COMMITTED, READ_UNCOMMITTED, ClusterClient, PendingFetch
from klamm.client.patience import FETCH_BACKOFF_MS, LOST_AFTER_MS, remaining
from klamm.clock import Clock, SystemClock
from klamm.protocol.messages.fetch import PartitionData
from klamm.spark.decode.batch_scan import Aborted, AbortedByMarkers, Chunk, CorruptBatchError, NothingAborted, scan
from klamm.spark.decode.record_columns import RecordDecoder
from klamm.spark.source.data_loss import loss
from klamm.spark.source.read_options import ReadOptions
from klamm.spark.source.source_offsets import OffsetRange

_log = logging.getLogger(__name__)

_MAX_CORRUPT: Final = 3
_MIN_FETCH_BYTES: Final = 1024 * 1024


def fetch_batches(
    client: ClusterClient,
    wanted: OffsetRange,
    decoder: RecordDecoder,
    options: ReadOptions,
    *,
    topic_id: UUID | None = None,
    clock: Clock | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of the range. Raises ClientError, DataLossError or CorruptBatchError.

    `topic_id` excludes a newer topic of the same name.
    """
    reader = _RangeFetcher(client, wanted, options, topic_id, clock or SystemClock(), sleep)
    try:
        while (chunk := reader.next_chunk()) is not None:
            start, reader.offset = reader.offset, chunk.next_offset
            reader.send_ahead()
            is_begun = False
            try:
                for batch in decoder.decode(chunk, start, wanted.end, reader.aborted):
                    is_begun = True
                    yield batch
                reader.corrupt = 0
            except CorruptBatchError as e:
                if is_begun:
                    raise
                reader.ask_again(start, e)
    finally:
        reader.close()


class _Claims:
    """Claims of brokers that would end the read. A claim is accepted only if every turn repeats it for long enough.

    A broker that has just started or just become the leader may have stale knowledge.
    """

    def __init__(self, clock: Clock, patience_s: float) -> None:
        self._clock = clock
        self.patience_s = patience_s
        self._claim = ""
        self._since = 0.0
        self.is_made = False
        """Whether this turn produced a claim."""

    def next_turn(self) -> None:
        if not self.is_made:
            self._claim = ""
        self.is_made = False

    def is_believed(self, claim: str) -> bool:
        now = self._clock.monotonic()
        if claim != self._claim:
            self._claim, self._since = claim, now
        self.is_made = True
        return now - self._since >= self.patience_s


class _RangeFetcher:
    """Position of the read of one range, and its request in flight."""

    def __init__(
        self,
        client: ClusterClient,
        wanted: OffsetRange,
        options: ReadOptions,
        topic_id: UUID | None,
        clock: Clock,
        sleep: Callable[[float], None],
    ) -> None:
        self._client = client
        self._wanted = wanted
        self._options = options
        self._topic_id = topic_id
        self._clock = clock
        self._sleep = sleep
        self._isolation = READ_COMMITTED if options.read_committed else READ_UNCOMMITTED
        self._max_bytes = client.config.partition_fetch_bytes or max(options.batch_bytes, _MIN_FETCH_BYTES)
        self._buffer = ReceiveBuffer()
        self._pending: PendingFetch | None = None
        self._progress_at = clock.monotonic()
        self._claims = _Claims(clock, min(LOST_AFTER_MS, options.poll_timeout_ms) / 1000)
        self._is_identified = topic_id is None
        self.corrupt = 0
        """Consecutive responses that could not be read."""
        self.offset = wanted.start
        self.aborted: Aborted = NothingAborted()

    def close(self) -> None:
        if self._pending is not None:
            self._client.abandon_fetch(self._pending)
            self._pending = None

    def ask_again(self, offset: int, problem: CorruptBatchError) -> None:
        """Handle a corrupt response for the offset. Raises the problem if it persists."""
        self.corrupt += 1
        if self.corrupt >= _MAX_CORRUPT:
            raise problem
        self.close()
        self.offset = offset

    def send_ahead(self) -> None:
        """Send the next request, so that it travels while the rest is decoded. A failure surfaces later."""
        if self.offset < self._wanted.end and self._pending is None:
            try:
                self._pending = self._start()
            except (OSError, RetriableError, ClientError):
                self._client.lost_leader(self._wanted.tp)

    def next_chunk(self) -> Chunk | None:
        """Return the next batches; None at the end of the range."""
        while self.offset < self._wanted.end:
            problem: Exception = ClientError("no records came")
            before = self.offset
            self._claims.next_turn()
            try:
                chunk = self._receive_or_skip()
                if chunk is not None:
                    return chunk
            except UnknownTopicError as e:
                problem = e
                self._give_up_if_believed("deleted", f"the topic or partition {self._wanted.tp} was deleted")
            except CorruptBatchError as e:
                problem = e
                self.ask_again(self.offset, e)
            except (OSError, RetriableError) as e:
                problem = e
                self._client.lost_leader(self._wanted.tp)
            if self.offset == before:
                self._wait(problem)
        return None

    def _receive_or_skip(self) -> Chunk | None:
        """Return None if nothing arrived, or if the offset moved past deleted records."""
        before = self.offset
        try:
            return self._receive()
        except (OffsetOutOfRangeError, TopicIdError) as e:
            self._skip_lost()
            if self.offset == before:
                raise RetriableError(str(e)) from e
            return None

    @property
    def _rest(self) -> OffsetRange:
        return OffsetRange(self._wanted.tp, self.offset, self._wanted.end)

    def _start(self) -> PendingFetch:
        return self._client.start_fetch(
            self._wanted.tp,
            self.offset,
            max_bytes=self._max_bytes,
            isolation=self._isolation,
            topic_id=self._topic_id,
        )

    def _receive(self) -> Chunk | None:
        """Return None if the broker had no new records within its wait."""
        pending = self._pending or self._start()
        self._pending = None
        answer = self._client.finish_fetch(pending, self._buffer)
        self._identify(pending)
        chunk = scan(_records_of(answer), self._wanted.tp, check_crcs=self._client.config.check_crcs)
        if chunk.is_empty or chunk.next_offset <= self.offset:
            if not len(chunk.data):
                self._skip_lost()  # an offset at the exact end of a truncated log is not out of range
            elif chunk.is_empty:
                self._max_bytes = min(2 * self._max_bytes, 1 << 30)
            return None
        self._progress_at = self._clock.monotonic()
        if self._isolation == READ_COMMITTED:
            aborted = [(txn.producer_id, txn.first_offset) for txn in answer.aborted_transactions or ()]
            self.aborted = AbortedByMarkers(aborted, self._wanted.tp)
        return chunk

    def _identify(self, pending: PendingFetch) -> None:
        """Without Fetch by topic id, the first response counts only if the name still refers to this topic."""
        if self._is_identified:
            return
        if pending.topic_id is None and self._is_recreated():
            raise TopicIdError(f"{self._wanted.tp.topic} was deleted and created again")
        self._is_identified = True

    def _skip_lost(self) -> None:
        """Nothing exists at the offset: move it past permanently deleted records."""
        tp, end = self._wanted.tp, self._wanted.end
        if self._is_recreated():
            self._give_up_if_believed("created again", f"topic {tp.topic} was deleted and created again")
            return
        first, last = self._limits()
        if self.offset < first:
            why = f"retention or DeleteRecords removed them, the log begins at {first}"
            loss(OffsetRange(tp, self.offset, min(first, end)), why, self._options)
            self.offset = min(first, end)
        elif self.offset >= last:
            why = f"the log ends at {last}: an unclean election truncated it, or the topic was created again"
            self._give_up_if_believed("cut", why)

    def _limits(self) -> tuple[int, int]:
        """Return (log start, high watermark) for any isolation: records of an open transaction are not lost."""
        tp = self._wanted.tp
        with self._question():
            return self._client.earliest([tp])[tp], self._client.latest([tp])[tp]

    def _is_recreated(self) -> bool:
        if self._topic_id is None:
            return False
        with self._question():
            self._client.metadata([self._wanted.tp.topic])
        return self._client.topic_ids.get(self._wanted.tp.topic, self._topic_id) != self._topic_id

    def _left_s(self) -> float:
        """The time until the deadline of the range. While brokers claim a loss, there is time to confirm it."""
        patience_s = self._options.poll_timeout_ms / 1000 + (self._claims.patience_s if self._claims.is_made else 0)
        return patience_s - (self._clock.monotonic() - self._progress_at)

    @contextmanager
    def _question(self) -> Iterator[None]:
        """Ask about a problem until the deadline of the range; without an answer the range decides what follows."""
        try:
            with self._client.within(remaining(self._client.config.patience, self._left_s())):
                yield
        except UnknownTopicError:
            raise
        except ClientError as e:
            raise RetriableError(str(e)) from e

    def _give_up_if_believed(self, claim: str, why: str) -> None:
        if self._claims.is_believed(claim):
            loss(self._rest, why, self._options)
            self.offset = self._wanted.end

    def _wait(self, problem: Exception) -> None:
        timeout_ms = self._options.poll_timeout_ms
        if self._left_s() <= 0:
            raise ClientError(
                f"{self._wanted.tp} gave no record at offset {self.offset} within {timeout_ms} ms "
                f"(kafkaConsumer.pollTimeoutMs): {problem}"
            ) from problem
        if type(problem) is not ClientError or self._claims.is_made:  # otherwise the broker itself has waited
            self._sleep(FETCH_BACKOFF_MS / 1000)


def _records_of(answer: PartitionData) -> memoryview:
    data = answer.records
    assert not isinstance(data, tuple), "a decoded response has one piece"
    return memoryview(data or b"")
