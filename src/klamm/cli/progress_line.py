"""A line that shows the progress of long work on a terminal. Elsewhere, as in a file or a pipe, nothing is shown."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, TextIO

INTERVAL_S: Final = 0.2
BAR_WIDTH: Final = 24
_ERASE: Final = "\r\x1b[K"


class ProgressLine:
    """Use it in `with`: the line is erased at the end. It is written to standard error, at most five times per second.

    `enabled` False shows nothing, as for commands with `--json`.
    """

    def __init__(self, *, enabled: bool = True, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._is_shown = enabled and self._stream.isatty()
        self._next_s = 0.0
        self._is_drawn = False

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.erase()

    @property
    def is_due(self) -> bool:
        """Whether `show` would draw now. Check it before you compute an expensive text."""
        return self._is_shown and time.monotonic() >= self._next_s

    def show(self, fraction: float | None, text: str) -> None:
        """Draw the line again: a bar if the fraction is known, and the text."""
        if not self.is_due:
            return
        self._next_s = time.monotonic() + INTERVAL_S
        self._is_drawn = True
        print(f"{_ERASE}{bar(fraction)}{text}", end="", file=self._stream, flush=True)

    def count(self, what: str) -> Callable[[int, int], None]:
        """Return a function that shows how much is done, such as `3 of 8 files`, and erases the line after the last."""

        def counted(done: int, total: int) -> None:
            if done >= total:
                self.erase()
            else:
                self.show(done / total, f"{done} of {total} {what}")

        return counted

    def erase(self) -> None:
        """Remove the line, so that a sentence can be printed in its place."""
        if self._is_drawn:
            self._is_drawn = False
            print(_ERASE, end="", file=self._stream, flush=True)


def bar(fraction: float | None) -> str:
    """Return a bar with its percentage; an empty text if the fraction is not known."""
    if fraction is None:
        return ""
    done = min(1.0, max(0.0, fraction))
    full = int(done * BAR_WIDTH)
    return f"[{'#' * full}{'.' * (BAR_WIDTH - full)}] {done:4.0%}  "
