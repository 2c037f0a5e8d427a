"""FailureBudget: how many failed logins an address may have. Beyond that, its attempts wait for their turn."""

from __future__ import annotations

from typing import Final

BURST: Final = 60
PER_SECOND: Final = 5.0
MAX_ADDRESSES: Final = 10_000
MAX_WAIT_S: Final = 30.0


class FailureBudget:
    """A bucket per address: each failure takes one token, and `PER_SECOND` return.

    An attempt from an address without tokens waits before its password is checked, so guessing in parallel does not
    pay. It also waits before its TLS handshake. Clients with the right password behind the same address wait too, but
    are not locked out: failures beyond `MAX_WAIT_S` of waiting are not counted, because thousands of connections can
    fail in the same moment.
    """

    def __init__(self, burst: int = BURST, per_second: float = PER_SECOND) -> None:
        self._burst = burst
        self._per_second = per_second
        self._full_at: dict[str, float] = {}
        """When the bucket of an address will be full again. Addresses with a full bucket are absent or in the past."""

    def wait_s(self, address: str, now: float) -> float:
        """Return how long an attempt of this address waits; 0 for one that has tokens."""
        if address not in self._full_at:
            return 0.0
        lacking = self._missing(address, now) - (self._burst - 1)
        return lacking / self._per_second if lacking > 0 else 0.0

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
