"""Which transactions a leader is verifying with their coordinator before their first batch here (KIP-890).

A verification takes a round trip. Meanwhile a marker may end the transaction, and another one may begin: an answer
about the first transaction says nothing about the second. So every verification has a guard, and the first append of a
transaction needs the guard that is still in place. Markers and transactional appends of the producer remove it, and a
newer epoch replaces it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, NamedTuple

from klamm.model import TransactionVersion

MAX_VERIFICATIONS: Final = 20_000
"""How many verifications a log remembers; the oldest are forgotten first, and their producers have to try again."""


class VerificationGuard:
    """One verification of one producer and epoch. Compared by identity."""

    __slots__ = ()


NOT_REQUIRED: Final = VerificationGuard()
"""The guard of an append that needs no verification: `transaction.partition.verification.enable` is off."""


class TransactionCheck(NamedTuple):
    """The rules that a leader applies to an append of a transaction, besides those of any producer.

    `guard` is None if the log had an open transaction of the producer and epoch when the request arrived. A marker that
    `is_of_operator` comes from a client that nobody knows: it ends an open transaction, and raises no epoch.
    """

    version: TransactionVersion
    guard: VerificationGuard | None = None
    is_of_operator: bool = False


@dataclass(slots=True)
class VerificationStateEntry:
    """`lowest_sequence`: a batch with a higher one waits until the producer has sent the lower one again.

    Otherwise the second batch of a producer whose state is not known would be accepted while its first one failed.
    """

    guard: VerificationGuard
    started_ms: int
    producer_epoch: int
    lowest_sequence: int


class VerificationStates:
    """The verifications of one log, by producer id. Owner: the `ProducerStateManager`."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: OrderedDict[int, VerificationStateEntry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, producer_id: int) -> VerificationStateEntry | None:
        return self._entries.get(producer_id)

    def begin(self, producer_id: int, producer_epoch: int, sequence: int, now_ms: int) -> VerificationGuard | None:
        """Return the guard of the verification of this producer and epoch; None if a newer epoch is being verified."""
        entry = self._entries.get(producer_id)
        if entry is not None and producer_epoch < entry.producer_epoch:
            return None
        if entry is None or producer_epoch > entry.producer_epoch:
            entry = VerificationStateEntry(VerificationGuard(), now_ms, producer_epoch, sequence)
            self._entries[producer_id] = entry
            self._entries.move_to_end(producer_id)
            if len(self._entries) > MAX_VERIFICATIONS:
                self._entries.popitem(last=False)
        else:
            entry.lowest_sequence = min(entry.lowest_sequence, sequence)
        return entry.guard

    def end(self, producer_id: int) -> None:
        """A transactional batch or a marker of the producer was appended."""
        self._entries.pop(producer_id, None)

    def refuse(self, producer_id: int, guard: VerificationGuard) -> None:
        """The coordinator refused for good: nothing is left to wait for. Anybody can send a batch with any id."""
        entry = self._entries.get(producer_id)
        if entry is not None and entry.guard is guard:
            del self._entries[producer_id]

    def remove_expired(self, now_ms: int, expiration_ms: int) -> None:
        """Forget verifications that no append followed. The oldest are first."""
        while self._entries:
            producer_id, entry = next(iter(self._entries.items()))
            if now_ms - entry.started_ms < expiration_ms:
                return
            del self._entries[producer_id]

    def clear(self) -> None:
        self._entries.clear()
