"""Reads a range of one partition by Fetch: the next request is on its way while the answer before is decoded.

Leaders that move and connections that break cost a retry, not the task. Offsets that are gone are told with their
range and the reason, as an error or, with failOnDataLoss=false, as a warning.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final
from uuid import UUID

import pyarrow as pa

from klamm.clock import Clock, SystemClock
from klamm.protocol.messages.fetch import PartitionData
from klamm.spark.client import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    ClientError,
    ClusterClient,
    OffsetOutOfRangeError,
    PendingFetch,
    RetriableError,
    TopicIdError,
    UnknownTopicError,
)
from klamm.spark.client_connection import Room
from klamm.spark.decode.batch_scan import Aborted, AbortedByMarkers, Chunk, CorruptBatchError, NothingAborted, scan
from klamm.spark.decode.record_columns import RecordDecoder
from klamm.spark.source.data_loss import loss
from klamm.spark.source.read_options import ReadOptions
from klamm.spark.source.source_offsets import OffsetRange

_log = logging.getLogger(__name__)

_BACKOFF_S: Final = 0.1
_MAX_CORRUPT: Final = 3
_GONE_AFTER_S: Final = 5.0
"""A topic counts as deleted, and an offset as lost, when the brokers have said so, and nothing else, for this long."""
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
    """The records of the range. ClientError, DataLossError or CorruptBatchError when they cannot be had.

    With `topic_id` those of that topic, and of no other that has its name now.
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
    """What brokers say that would end the reading, believed only when it is said turn after turn for long enough.

    One that has just started, or has just become the leader, may not know better.
    """

    def __init__(self, clock: Clock, patience_s: float) -> None:
        self._clock = clock
        self.patience_s = patience_s
        self._claim = ""
        self._since = 0.0
        self.is_made = False
        """Whether the turn has brought a claim."""

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
    """Where the reading of one range is, and what is on its way."""

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
        self._max_bytes = client.partition_fetch_bytes or max(options.batch_bytes, _MIN_FETCH_BYTES)
        self._room = Room()
        self._pending: PendingFetch | None = None
        self._progress_at = clock.monotonic()
        self._claims = _Claims(clock, min(_GONE_AFTER_S, options.poll_timeout_ms / 1000))
        self._is_identified = topic_id is None
        self.corrupt = 0
        """How many answers in a row could not be read."""
        self.offset = wanted.start
        self.aborted: Aborted = NothingAborted()

    def close(self) -> None:
        if self._pending is not None:
            self._client.abandon_fetch(self._pending)
            self._pending = None

    def ask_again(self, offset: int, problem: CorruptBatchError) -> None:
        """What came for the offset was damaged. Raises the problem when it stays."""
        self.corrupt += 1
        if self.corrupt >= _MAX_CORRUPT:
            raise problem
        self.close()
        self.offset = offset

    def send_ahead(self) -> None:
        """Asks for what comes next, so that it travels while the rest is decoded. A failure shows later."""
        if self.offset < self._wanted.end and self._pending is None:
            try:
                self._pending = self._start()
            except (OSError, RetriableError, ClientError):
                self._client.lost_leader(self._wanted.tp)

    def next_chunk(self) -> Chunk | None:
        """The next batches, None at the end of the range."""
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
        """None when nothing came, or when the offset has moved over records that are gone."""
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
        """None when the broker waited in vain."""
        pending = self._pending or self._start()
        self._pending = None
        answer = self._client.finish_fetch(pending, self._room)
        self._identify(pending)
        chunk = scan(_records_of(answer), self._wanted.tp, check_crcs=self._client.check_crcs)
        if chunk.is_empty or chunk.next_offset <= self.offset:
            if not len(chunk.data):
                self._skip_lost()  # at the very end of a log that was cut an offset is not out of range
            elif chunk.is_empty:
                self._max_bytes = min(2 * self._max_bytes, 1 << 30)
            return None
        self._progress_at = self._clock.monotonic()
        if self._isolation == READ_COMMITTED:
            aborted = [(txn.producer_id, txn.first_offset) for txn in answer.aborted_transactions or ()]
            self.aborted = AbortedByMarkers(aborted, self._wanted.tp)
        return chunk

    def _identify(self, pending: PendingFetch) -> None:
        """Where the broker has no Fetch by id, the first answer counts only if the name still means this topic."""
        if self._is_identified:
            return
        if pending.topic_id is None and self._is_recreated():
            raise TopicIdError(f"{self._wanted.tp.topic} is another topic now")
        self._is_identified = True

    def _skip_lost(self) -> None:
        """Nothing is at the offset: moves it over what is gone for good."""
        tp, end = self._wanted.tp, self._wanted.end
        if self._is_recreated():
            self._give_up_if_believed("created anew", f"topic {tp.topic} was deleted and created anew")
            return
        first, last = self._limits()
        if self.offset < first:
            why = f"retention or DeleteRecords removed them, the log begins at {first}"
            loss(OffsetRange(tp, self.offset, min(first, end)), why, self._options)
            self.offset = min(first, end)
        elif self.offset >= last:
            why = f"the log ends at {last}: it was cut by an unclean election, or the topic was created anew"
            self._give_up_if_believed("cut", why)

    def _limits(self) -> tuple[int, int]:
        """(log start, high watermark), whatever the isolation: records of an open transaction are not lost."""
        tp = self._wanted.tp
        with _retriable():
            return self._client.earliest([tp])[tp], self._client.latest([tp])[tp]

    def _is_recreated(self) -> bool:
        if self._topic_id is None:
            return False
        with _retriable():
            self._client.metadata([self._wanted.tp.topic])
        return self._client.topic_ids.get(self._wanted.tp.topic, self._topic_id) != self._topic_id

    def _give_up_if_believed(self, claim: str, why: str) -> None:
        if self._claims.is_believed(claim):
            loss(self._rest, why, self._options)
            self.offset = self._wanted.end

    def _wait(self, problem: Exception) -> None:
        timeout_ms = self._options.poll_timeout_ms
        patience_s = timeout_ms / 1000 + (self._claims.patience_s if self._claims.is_made else 0)
        if self._clock.monotonic() - self._progress_at >= patience_s:
            raise ClientError(
                f"{self._wanted.tp} gave no record at offset {self.offset} within {timeout_ms} ms "
                f"(kafkaConsumer.pollTimeoutMs): {problem}"
            ) from problem
        if type(problem) is not ClientError or self._claims.is_made:  # otherwise the broker has waited itself
            self._sleep(_BACKOFF_S)


@contextmanager
def _retriable() -> Iterator[None]:
    """The patience of a question about a problem ends with that of the range, not before."""
    try:
        yield
    except UnknownTopicError:
        raise
    except ClientError as e:
        raise RetriableError(str(e)) from e


def _records_of(answer: PartitionData) -> memoryview:
    data = answer.records
    assert not isinstance(data, tuple), "a decoded response has one piece"
    return memoryview(data or b"")
