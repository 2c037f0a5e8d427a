"""Which markers are still to be written, by destination: one request in flight per broker, retries per partition.

A transaction is complete once every partition of it has acknowledged its marker. Markers of a transaction that this
broker no longer coordinates are dropped when their turn comes: the new coordinator sends them again.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import Final

from klamm.client.patience import TRANSACTION_MARKER
from klamm.coordinator.transaction.transaction_metadata import (
    TransactionMetadata,
    TransactionState,
    TransactionValue,
)
from klamm.coordinator.transaction.transaction_state_manager import TransactionPartition
from klamm.errors import ErrorCode
from klamm.model import TopicPartition

_log = logging.getLogger("klamm.coordinator.transaction")

MAX_PARTITIONS_PER_REQUEST: Final = 1_000
MAX_TRANSACTIONS_PER_REQUEST: Final = 200
"""A request is chosen, made and encoded in one turn of the loop. Its size matters when thousands of transactions time
out at once.
"""
RETRIES_PER_TURN: Final = 200
"""Transactions whose markers are sent again without giving the loop back."""
WRITES_PER_TURN: Final = 5
"""Transactions whose next state is appended to the log without giving the loop back."""


class Destination(Enum):
    """A partition without a leader that could be asked now."""

    UNKNOWN = "no leader is known"
    DELETED = "the partition does not exist"


Locate = Callable[[TopicPartition], int | Destination]
_GONE: Final = frozenset({ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION})
"""A partition that cannot store markers has no records of the transaction either."""
_USUAL: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
"""Errors that pass with time. Other errors are retried as well, with a warning: a transaction must never stay open
because its coordinator gave up."""


@dataclass(slots=True, eq=False)
class PendingCompletion:
    """A transaction whose markers are being written. `value` is its prepared state, `remaining` has no marker yet."""

    partition: TransactionPartition
    txn: TransactionMetadata
    value: TransactionValue
    remaining: dict[TopicPartition, None] = field(default_factory=dict)
    attempts: int = 0

    @property
    def commit(self) -> bool:
        return self.value.state is TransactionState.PREPARE_COMMIT


@dataclass(slots=True, eq=False)
class MarkerBatch:
    """One request to a broker: the transactions with the partitions to mark, each producer id once."""

    broker_id: int
    entries: dict[int, tuple[PendingCompletion, list[TopicPartition]]] = field(default_factory=dict)

    def parts(self) -> Iterator[MarkerBatch]:
        """Yield small batches with the same entries: the answer to each may complete all its transactions."""
        entries = iter(self.entries.items())
        while part := dict(islice(entries, WRITES_PER_TURN)):
            yield MarkerBatch(self.broker_id, part)


Pool = dict[PendingCompletion, dict[TopicPartition, None]]


class TransactionMarkers:
    """`locate` finds leaders, `is_current` is false for a completion that this broker must drop.

    `on_written` is called when the last marker of a transaction was acknowledged, `wake` when a broker has work, and
    `wake_at` with the time of the next retry.
    """

    def __init__(
        self,
        locate: Locate,
        is_current: Callable[[PendingCompletion], bool],
        on_written: Callable[[PendingCompletion], None],
        wake: Callable[[int], None],
        wake_at: Callable[[int], None],
        now_ms: Callable[[], int],
    ) -> None:
        self._locate = locate
        self._is_current = is_current
        self._on_written = on_written
        self._wake = wake
        self._wake_at = wake_at
        self._now_ms = now_ms
        self._queues: dict[int, Pool] = {}
        self._unknown: Pool = {}
        self._retries: Pool = {}
        self._due: list[tuple[int, int, PendingCompletion]] = []
        """A heap of the times at which the completions in `_unknown` and `_retries` are tried again."""
        self._waiting: dict[PendingCompletion, None] = {}
        """The completions in `_due`."""
        self._retry_number = 0

    @property
    def unknown_destination_count(self) -> int:
        return sum(map(len, self._unknown.values()))

    def send(self, completion: PendingCompletion) -> None:
        """Have all markers of a transaction written."""
        self._route(completion, list(completion.remaining))

    def check(self, completion: PendingCompletion) -> None:
        """Call `on_written` if no marker is missing."""
        if not completion.remaining and self._is_current(completion):
            self._on_written(completion)

    def _route(self, completion: PendingCompletion, partitions: Iterable[TopicPartition]) -> None:
        awake: dict[int, None] = {}
        for tp in partitions:
            where = self._locate(tp)
            if where is Destination.DELETED:
                _log.info("%s: %s does not exist: no marker", completion.txn.transactional_id, tp)
                completion.remaining.pop(tp, None)
            elif isinstance(where, Destination):
                self._unknown.setdefault(completion, {})[tp] = None
                self._retry_later(completion)
            else:
                self._queues.setdefault(where, {}).setdefault(completion, {})[tp] = None
                awake[where] = None
        for broker_id in awake:
            self._wake(broker_id)

    # --- the sender ----------------------------------------------------------------------------------------------

    def take(self, broker_id: int) -> MarkerBatch | None:
        """Return the next request for a broker; None if there is nothing to send."""
        queue = self._queues.get(broker_id, {})
        batch = MarkerBatch(broker_id)
        size = 0
        finished: list[PendingCompletion] = []
        for completion, waiting in queue.items():
            if not self._is_current(completion):
                finished.append(completion)
                continue
            producer_id = completion.value.producer_id
            if producer_id in batch.entries:
                continue  # the answer is by producer id
            partitions = list(islice(waiting, MAX_PARTITIONS_PER_REQUEST - size))
            for tp in partitions:
                del waiting[tp]
            if not waiting:
                finished.append(completion)
            batch.entries[producer_id] = (completion, partitions)
            size += len(partitions)
            if size >= MAX_PARTITIONS_PER_REQUEST or len(batch.entries) >= MAX_TRANSACTIONS_PER_REQUEST:
                break
        for completion in finished:
            del queue[completion]
        if not queue:
            self._queues.pop(broker_id, None)
        return batch if batch.entries else None

    def on_response(self, batch: MarkerBatch, errors: Mapping[int, Mapping[TopicPartition, ErrorCode]]) -> None:
        """Process the answer; a partition that it leaves out is sent again."""
        for producer_id, (completion, partitions) in batch.entries.items():
            results = errors.get(producer_id, {})
            for tp in partitions:
                error = results.get(tp, ErrorCode.UNKNOWN_SERVER_ERROR)
                if error is ErrorCode.NONE or error in _GONE:
                    completion.remaining.pop(tp, None)
                else:
                    self._on_error(completion, tp, error, batch.broker_id)
            self.check(completion)

    def on_failure(self, batch: MarkerBatch) -> None:
        """The broker was not reached or did not answer. The leaders may be others next time."""
        for completion, partitions in batch.entries.values():
            for tp in partitions:
                self._retries.setdefault(completion, {})[tp] = None
            self._retry_later(completion)

    def _on_error(self, completion: PendingCompletion, tp: TopicPartition, error: ErrorCode, broker_id: int) -> None:
        if error not in _USUAL and self._is_current(completion):
            _log.warning(
                "the marker of %s for %s failed on broker %d (attempt %d): %s",
                completion.txn.transactional_id,
                tp,
                broker_id,
                completion.attempts + 1,
                error.name,
            )
        self._retries.setdefault(completion, {})[tp] = None
        self._retry_later(completion)

    # --- retries -------------------------------------------------------------------------------------------------

    def _retry_later(self, completion: PendingCompletion) -> None:
        if completion in self._waiting:
            return
        at_ms = self._now_ms() + TRANSACTION_MARKER.pause_ms(completion.attempts)
        self._waiting[completion] = None
        self._retry_number += 1
        heapq.heappush(self._due, (at_ms, self._retry_number, completion))
        if self._due[0][2] is completion:
            self._wake_at(at_ms)

    def advance(self, now_ms: int) -> int | None:
        """Resend due markers in bounded batches. Return the time of the next retry."""
        for _ in range(RETRIES_PER_TURN):
            if not self._due or self._due[0][0] > now_ms:
                break
            _, _, completion = heapq.heappop(self._due)
            del self._waiting[completion]
            partitions = {**self._unknown.pop(completion, {}), **self._retries.pop(completion, {})}
            if self._is_current(completion):
                completion.attempts += 1
                self._route(completion, partitions)
                self.check(completion)
        return self._due[0][0] if self._due else None

    def clear(self) -> None:
        for pool in (self._queues, self._unknown, self._retries):
            pool.clear()
        self._due.clear()
        self._waiting.clear()
