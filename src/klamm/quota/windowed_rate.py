"""Rates over windows and token buckets, with the arithmetic of Kafka's sensors. Times are arguments in milliseconds."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

LONGEST_THROTTLE_MS: Final = 2**31 - 1
"""A throttle time is an int32 in every response."""


class Windows(NamedTuple):
    """`num` windows of `size_ms` each: `quota.window.num` and `quota.window.size.seconds`."""

    num: int = 11
    size_ms: int = 1000

    @property
    def span_ms(self) -> int:
        return self.num * self.size_ms


class WindowedRate:
    """The sum of values in the last windows, and their rate per second. Costs O(1) per value.

    A window begins with the first value after the end of the previous window, so an idle client has no windows. It
    counts until its last value is older than all windows together. The rate assumes at least `num - 1` whole windows: a
    client that has just begun is measured over the same time as the others.
    """

    __slots__ = ("_samples", "_total", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._samples: deque[list[float]] = deque()
        """Start, time of the last value, and sum of each window."""
        self._total = 0.0

    def record(self, value: float, now_ms: float) -> None:
        """Add a value; a negative one undoes what was recorded at the same time."""
        samples = self._samples
        if not samples or now_ms - samples[-1][0] >= self._windows.size_ms:
            self.total(now_ms)  # drops old windows, because some rates are never read
            samples.append([now_ms, now_ms, value])
        else:
            newest = samples[-1]
            newest[1] = now_ms
            newest[2] += value
        self._total += value

    def total(self, now_ms: float) -> float:
        samples = self._samples
        span_ms = self._windows.span_ms
        while samples and now_ms - samples[0][1] >= span_ms:
            self._total -= samples.popleft()[2]
        if not samples:
            self._total = 0.0  # discards rounding errors
        return self._total

    def elapsed_ms(self, now_ms: float) -> float:
        """Return the time over which the rate is measured."""
        self.total(now_ms)
        elapsed_ms = now_ms - self._samples[0][0] if self._samples else 0.0
        num, size_ms = self._windows
        whole = int(elapsed_ms // size_ms)
        return max(elapsed_ms + max(num - 1 - whole, 0) * size_ms, 1.0)

    def per_second(self, now_ms: float) -> float:
        return self.total(now_ms) / self.elapsed_ms(now_ms) * 1000

    def throttle_time_ms(self, limit: float, now_ms: float) -> int:
        """Return the time without new values after which the rate, measured over it as well, is within the limit."""
        rate = self.per_second(now_ms)
        if rate <= limit:
            return 0
        if limit <= 0:
            return self._windows.span_ms
        return _whole_ms((rate - limit) / limit * self.elapsed_ms(now_ms))


class TokenBucket:
    """Tokens that refill at the limit, up to the limit times all windows (KIP-599). It begins full.

    The quota is exceeded while the number of tokens is negative: a single large change passes, and then the
    quota stays exceeded until the tokens have refilled.
    """

    __slots__ = ("_at_ms", "_span_s", "_tokens")

    def __init__(self, windows: Windows, limit: float, now_ms: float) -> None:
        self._span_s = windows.span_ms / 1000
        self._tokens = limit * self._span_s
        self._at_ms = now_ms

    def tokens(self, limit: float, now_ms: float) -> float:
        refilled = self._tokens + limit * (now_ms - self._at_ms) / 1000
        self._tokens = min(limit * self._span_s, refilled)
        self._at_ms = now_ms
        return self._tokens

    def take(self, count: float, limit: float, now_ms: float) -> float:
        """Remove tokens (negative: give them back); return how many are left."""
        self._tokens = min(limit * self._span_s, self.tokens(limit, now_ms) - count)
        return self._tokens

    def throttle_time_ms(self, limit: float, now_ms: float) -> int:
        """Return the time after which the bucket is no longer below zero."""
        tokens = self.tokens(limit, now_ms)
        if tokens >= 0:
            return 0
        return LONGEST_THROTTLE_MS if limit <= 0 else _whole_ms(-tokens / limit * 1000)


def _whole_ms(throttle_ms: float) -> int:
    """Round to a throttle time of the protocol. A limit close to 0 makes the time infinite."""
    return int(throttle_ms + 0.5) if throttle_ms < LONGEST_THROTTLE_MS else LONGEST_THROTTLE_MS
