"""The stacks of the loop's thread during its longest turn: what a row of `broker_turns` consists of."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

from bench.loop_holds.account import Account

INTERVAL_S: Final = 0.0001
DEPTH: Final = 12
"""Innermost frames that are kept."""


_Stack = tuple[tuple[CodeType, int], ...]


@dataclass
class SampledAccount(Account):
    """Also keeps what the main thread, which runs the loop, was doing in the longest turn.

    A signal interrupts the thread up to ten times per millisecond, so turns take a little longer.
    """

    samples: list[_Stack] = field(default_factory=list)
    _stacks: list[_Stack] = field(default_factory=list)

    def install(self) -> None:
        super().install()
        signal.signal(signal.SIGALRM, self._on_signal)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        super().start(loop)
        signal.setitimer(signal.ITIMER_REAL, INTERVAL_S)

    def report(self) -> str:
        """Return the stacks of the longest turn, the most frequent first."""
        gc_ms = 1000 * self.parts.get("gc", 0.0)
        lines = [f"           {count:3} {_text(stack)}" for stack, count in Counter(self.samples).most_common(12)]
        return "\n".join(("", f"           passes of the collector: {gc_ms:.2f} ms", *lines))

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        stack: list[tuple[CodeType, int]] = []
        while frame is not None and len(stack) < DEPTH:
            stack.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back
        self._stacks.append(tuple(stack))
        if self._is_measuring:  # not periodic: a signal must not interrupt the handler of the one before
            signal.setitimer(signal.ITIMER_REAL, INTERVAL_S)

    def _on_turn(self, loop: asyncio.AbstractEventLoop, has_begun: bool = True) -> None:
        super()._on_turn(loop, has_begun)
        self._stacks = []

    def _ended(self, seconds: float) -> None:
        if seconds > self.hold_s:
            self.samples = self._stacks
        super()._ended(seconds)


def _text(stack: _Stack) -> str:
    return " < ".join(f"{Path(code.co_filename).stem}.{code.co_name}:{line}" for code, line in stack)
