"""FailureBudget: how many failed logins an address may have. Beyond that, its attempts wait for their turn."""

from __future__ import annotations

from typing import Final

BURST: Final = 60
PER_SECOND: Final = 5.0
MAX_ADDRESSES: Final = 10_000
MAX_WAIT_S: Final = 30.0
_SPREAD: Final = (5**0.5 - 1) / 2
"""Multiples of the golden ratio, without their whole part, lie evenly between 0 and 1, however many there are."""


class FailureBudget:
    """A bucket per address: each failure takes one token, and `PER_SECOND` return.

    An attempt from an address without tokens waits before its password is checked, so guessing in parallel does not
    pay. It also waits before its TLS handshake. Each waiting attempt has a turn of its own, so that they do not all
    begin when one token returns. Clients with the right password behind the same address wait too, but are not locked
    out: failures beyond `MAX_WAIT_S` of waiting are not counted, because thousands of connections can fail in the same
    moment, and attempts for which no turn is left within that time share it evenly.
    """

    def __init__(self, burst: int = BURST, per_second: float = PER_SECOND) -> None:
        self._burst = burst
        self._per_second = per_second
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

        An attempt also waits for the turns of earlier ones, although tokens may have returned meanwhile.
        """
        last = self._last_turn.get(address, 0.0)
        wait_s = self.wait_s(address, now)
        if wait_s <= 0 and last <= now:
            return now
        turn = max(now + wait_s, last + 1 / self._per_second)
        if turn <= now + MAX_WAIT_S:
            self._note_turn(address, turn, now)
            return turn
        self._shared_turns += 1
        return now + MAX_WAIT_S * (self._shared_turns * _SPREAD % 1)

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
        self._full_at[address] = min(full_at, now + (self._burst - 1) / self._per_second + MAX_WAIT_S)

    def _missing(self, address: str, now: float) -> float:
        return max(0.0, self._full_at.get(address, 0.0) - now) * self._per_second

    def _forget(self, now: float) -> None:
        """Forget full buckets; if there are none, all: memory is bounded, and the delay of each failure remains."""
        self._full_at = {address: at for address, at in self._full_at.items() if at > now}
        if len(self._full_at) >= MAX_ADDRESSES:
            self._full_at.clear()
