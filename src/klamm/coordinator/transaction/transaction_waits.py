"""Requests of producers that wait until the previous transaction of their transactional id is complete (decision 0045).

Without the wait, a client gets CONCURRENT_TRANSACTIONS and asks again after 20 ms or more, although the markers usually
take a few milliseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from klamm.coordinator.scheduler import Scheduler
from klamm.coordinator.transaction.transaction_metadata import TransactionMetadata

MOST_WAITS: Final = 5
"""Per transactional id. A producer sends one or two requests at a time; further ones do not wait."""

Decide = Callable[[], None]
"""Decides a request again, now without a wait."""


class TransactionWaits:
    """`max_wait_ms` is the longest wait of a request; 0: requests do not wait."""

    def __init__(self, scheduler: Scheduler, now_ms: Callable[[], int], max_wait_ms: int) -> None:
        self._scheduler = scheduler
        self._now_ms = now_ms
        self._max_wait_ms = max_wait_ms
        self._deadlines: deque[tuple[int, TransactionMetadata, Decide]] = deque()
        """Earliest first, because all requests wait for the same time. Also those that no longer wait."""

    def add(self, txn: TransactionMetadata, decide: Decide) -> bool:
        """Let the request wait if the transaction is being completed, or if others wait; returns whether it does."""
        is_busy = txn.state.is_prepared or bool(txn.waiting)
        if not is_busy or not self._max_wait_ms or len(txn.waiting) >= MOST_WAITS:
            return False
        deadline_ms = self._now_ms() + self._max_wait_ms
        txn.waiting += (decide,)
        self._deadlines.append((deadline_ms, txn, decide))
        self._scheduler.wake_at(deadline_ms)
        return True

    def release(self, txn: TransactionMetadata) -> None:
        """The transaction is complete.

        The requests are decided in a later turn: this one may be inside of a change of the log, and they append to it.
        """
        if txn.waiting:
            self._scheduler.spawn(_decide_all(txn))

    def advance(self, now_ms: int) -> int | None:
        """Decide the requests that have waited long enough; returns the time of the next ones."""
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, txn, decide = self._deadlines.popleft()
            _decide(txn, decide)
        return self._deadlines[0][0] if self._deadlines else None

    def end(self) -> None:
        """Decide all requests: the coordinator no longer answers."""
        while self._deadlines:
            _, txn, decide = self._deadlines.popleft()
            _decide(txn, decide)


def _decide_all(txn: TransactionMetadata) -> Iterator[None]:
    while txn.waiting:
        _decide(txn, txn.waiting[0])
    yield


def _decide(txn: TransactionMetadata, decide: Decide) -> None:
    if decide in txn.waiting:
        txn.waiting = tuple(other for other in txn.waiting if other is not decide)
        decide()
