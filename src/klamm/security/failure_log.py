"""FailureLog: how many lines the failures of one address may write to the broker's log.

A client without credentials can fail as often as it likes, also by broken requests. It must not be able to fill a disk
with log lines.
"""

from __future__ import annotations

from typing import Final

LINES: Final = 100
"""Lines per address and window."""
SAME_LINES: Final = 20
"""Lines with the same reason."""
ALL_LINES: Final = 5_000
"""Lines of all addresses together: in IPv6 one client can have very many of them."""
WINDOW_S: Final = 60.0
MAX_ADDRESSES: Final = 1_000


class _Window:
    __slots__ = ("began_at", "reasons", "skipped", "written")

    def __init__(self, began_at: float) -> None:
        self.began_at = began_at
        self.written = 0
        self.skipped = 0
        self.reasons: dict[str, int] = {}


class FailureLog:
    """Owner: the broker loop. One window per address; it is bounded, as addresses can be many."""

    def __init__(self) -> None:
        self._windows: dict[str, _Window] = {}
        self._began_at = 0.0
        self._written = 0
        """Lines since then."""

    def note(self, address: str, reason: str, now: float) -> str | None:
        """Return what a line about this failure adds about those that were not logged; None if it must not be written.

        The first line after a window with many failures names their number.
        """
        window = self._windows.get(address)
        skipped = 0
        if window is None or now - window.began_at >= WINDOW_S:
            skipped = 0 if window is None else window.skipped
            if window is None and len(self._windows) >= MAX_ADDRESSES:
                self._windows.clear()
            window = self._windows[address] = _Window(now)
        if now - self._began_at >= WINDOW_S:
            self._began_at, self._written = now, 0
        count = window.reasons.get(reason, 0)
        if window.written >= LINES or count >= SAME_LINES or self._written >= ALL_LINES:
            window.skipped += 1
            return None
        self._written += 1
        window.written += 1
        window.reasons[reason] = count + 1
        if skipped:
            return f"; {skipped} more failures of this address were not logged"
        return "; equal failures of this address are not logged for a minute" if count + 1 == SAME_LINES else ""
