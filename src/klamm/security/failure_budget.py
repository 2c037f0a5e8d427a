"""FailureBudget: how many failed logins an address may have. Beyond that, its attempts wait for their turn."""

from __future__ import annotations

from typing import Final

BURST: Final = 60
PER_SECOND: Final = 5.0
MAX_ADDRESSES: Final = 10_000
MAX_WAIT_S: Final = 15.0
"""Half the time that an authentication may take by default: an attempt whose turn is the last must not be too late."""
_SPREAD: Final = (5**0.5 - 1) / 2
"""Multiples of the golden ratio, without their whole part, lie evenly between 0 and 1, however many there are."""


class FailureBudget:
    """A bucket per address: each failure takes one token, and `PER_SECOND` return.

    An attempt from an address without tokens waits before its password is checked, so guessing in parallel does not
    pay. It also waits before its TLS handshake. Each waiting attempt has a turn of its own, so that they do not all
    begin when one token returns. Clients with the right password behind the same address wait too, but are not locked
    out: failures beyond `max_wait_s` of waiting are not counted, because thousands of connections can fail in the same
    moment, and attempts for which no turn is left within that time share it evenly.

    Turns end with the failures that caused them: once half of the tokens have returned, no further attempt waits,
    although earlier ones still do. Logins that succeed take no tokens, so any number of them may follow.
    """

    def __init__(self, burst: int = BURST, per_second: float = PER_SECOND, max_wait_s: float = MAX_WAIT_S) -> None:
        self._burst = burst
        self._per_second = per_second
        self.max_wait_s = max_wait_s
        self._full_at: dict[str, float] = {}
        """When the bucket of an address will be full again. Addresses with a full bucket are absent or in the past."""
        self._last_turn: dict[str, float] = {}
        """The time of the last turn that a single attempt has for itself."""
        self._shared_turns = 0

    def wait_s(self, address: str, now: float) -> float:
        """Return how long an attempt of this address waits; 0 for one that has tokens."""
        if address not in self._full_at:
            return 0.0
        lacking = self._missing(address, now) - (self._burst - 1)
        return lacking / self._per_second if lacking > 0 else 0.0

    def begin_at(self, address: str, now: float) -> float:
        """Reserve the turn of an attempt; return when it may begin, `now` if it need not wait.

        An attempt also waits for the turns of earlier ones, although tokens may have returned meanwhile. Without an
        end, attempts that come faster than turns would wait for each other for ever, also those that succeed.
        """
        if self._missing(address, now) <= self._burst / 2:
            return now
        last = self._last_turn.get(address, 0.0)
        wait_s = self.wait_s(address, now)
        if wait_s <= 0 and last <= now:
            return now
        turn = max(now + wait_s, last + 1 / self._per_second)
        if turn <= now + self.max_wait_s:
            self._note_turn(address, turn, now)
            return turn
        self._shared_turns += 1
        return now + self.max_wait_s * (self._shared_turns * _SPREAD % 1)

    def _note_turn(self, address: str, turn: float, now: float) -> None:
        if address not in self._last_turn and len(self._last_turn) >= MAX_ADDRESSES:
            self._last_turn = {address: at for address, at in self._last_turn.items() if at > now}
            if len(self._last_turn) >= MAX_ADDRESSES:
                self._last_turn.clear()
        self._last_turn[address] = turn

    def note_failure(self, address: str, now: float) -> None:
        if address not in self._full_at and len(self._full_at) >= MAX_ADDRESSES:
            self._forget(now)
        full_at = max(now, self._full_at.get(address, 0.0)) + 1 / self._per_second
        self._full_at[address] = min(full_at, now + (self._burst - 1) / self._per_second + self.max_wait_s)

    def _missing(self, address: str, now: float) -> float:
        return max(0.0, self._full_at.get(address, 0.0) - now) * self._per_second

    def _forget(self, now: float) -> None:
        """Forget full buckets; if there are none, all: memory is bounded, and the delay of each failure remains."""
        self._full_at = {address: at for address, at in self._full_at.items() if at > now}
        if len(self._full_at) >= MAX_ADDRESSES:
            self._full_at.clear()
