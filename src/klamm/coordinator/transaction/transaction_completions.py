"""Completes prepared transactions: has their markers written, then stores that they are complete.

The last transition is written until it succeeds or this broker no longer coordinates the transaction.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from klamm.clock import Clock
from klamm.coordinator.scheduler import Scheduler
from klamm.coordinator.transaction import transaction_rules as rules
from klamm.coordinator.transaction.transaction_markers import (
    RETRIES_PER_TURN,
    Locate,
    PendingCompletion,
    TransactionMarkers,
)
from klamm.coordinator.transaction.transaction_metadata import TransactionMetadata
from klamm.coordinator.transaction.transaction_state_manager import (
    TRANSACTIONS_PER_SLICE,
    TransactionPartition,
    TransactionStateManager,
)
from klamm.coordinator.transaction.transaction_waits import TransactionWaits
from klamm.errors import ErrorCode

_log = logging.getLogger("klamm.coordinator.transaction")

APPEND_RETRY_MS: Final = 100


class TransactionCompletions:
    """`wake` is called with a broker that has markers to receive. `max_wait_ms`: see `waits`."""

    def __init__(
        self,
        manager: TransactionStateManager,
        scheduler: Scheduler,
        clock: Clock,
        locate: Locate,
        wake: Callable[[int], None],
        max_wait_ms: int,
    ) -> None:
        self._manager = manager
        self._scheduler = scheduler
        self._clock = clock
        self.waits = TransactionWaits(scheduler, self.now_ms, max_wait_ms)
        self.markers = TransactionMarkers(
            locate, self._is_current, self._on_written, wake, scheduler.wake_at, self.now_ms
        )
        self._retries: deque[tuple[int, PendingCompletion]] = deque()
        """With the time of the next attempt, earliest first."""

    def now_ms(self) -> int:
        """The clock of retries: it never goes back."""
        return round(self._clock.monotonic() * 1000)

    @property
    def append_retry_count(self) -> int:
        return len(self._retries)

    def begin(self, partition: TransactionPartition, txn: TransactionMetadata) -> None:
        """The outcome is stored: write the markers, then complete the transaction.

        Nothing is appended in this turn: the outcome may become known inside of a change of the log.
        """
        completion = PendingCompletion(partition, txn, txn.value, dict(txn.value.partitions))
        self.markers.send(completion)
        if not completion.remaining:
            self._scheduler.spawn(self._complete(completion))

    def _complete(self, completion: PendingCompletion) -> Iterator[None]:
        """Complete a transaction that needs no markers."""
        self.markers.check(completion)
        yield

    def resume(self, partition: TransactionPartition) -> Iterator[None]:
        """Continue the transactions of a loaded partition whose outcome is stored, in slices."""
        for number, txn in enumerate(list(partition.transactions.values())):
            if not self._manager.is_current(partition):
                return
            if txn.state.is_prepared and txn.pending is None:
                self.begin(partition, txn)
            if number % TRANSACTIONS_PER_SLICE == TRANSACTIONS_PER_SLICE - 1:
                yield

    def _is_current(self, completion: PendingCompletion) -> bool:
        """Whether the completion is still the one to finish. One of an earlier term or epoch is not (KAFKA-16352)."""
        return self._manager.is_current(completion.partition) and completion.txn.value is completion.value

    def _on_written(self, completion: PendingCompletion) -> None:
        if completion.txn.pending is None:
            rules.completion(completion.txn, self._manager.timestamp_ms())
            self._store(completion)

    def _store(self, completion: PendingCompletion) -> None:
        def on_stored(error: ErrorCode) -> None:
            if error is ErrorCode.NONE:
                self.waits.release(completion.txn)
                return
            if not self._manager.is_current(completion.partition):
                return
            if error is not ErrorCode.COORDINATOR_NOT_AVAILABLE:
                _log.error("storing the end of %s failed: %s", completion.txn.transactional_id, error.name)
            at_ms = self.now_ms() + APPEND_RETRY_MS
            self._retries.append((at_ms, completion))
            self._scheduler.wake_at(at_ms)

        self._manager.write(completion.partition, completion.txn, keeps_pending=True).then(on_stored)

    def advance(self) -> int | None:
        """Retry what is due, not too much at a time; returns the time of the next retry."""
        now_ms = self.now_ms()
        for _ in range(RETRIES_PER_TURN):
            if not self._retries or self._retries[0][0] > now_ms:
                break
            _, completion = self._retries.popleft()
            if self._is_current(completion):
                self._store(completion)
        next_store_ms = self._retries[0][0] if self._retries else None
        next_ms = next_store_ms, self.markers.advance(now_ms), self.waits.advance(now_ms)
        return min((time_ms for time_ms in next_ms if time_ms is not None), default=None)

    def clear(self) -> None:
        self.waits.end()
        self.markers.clear()
        self._retries.clear()
