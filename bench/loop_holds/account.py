"""CPU time of the turns of one loop: the longest one, and what it did."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from time import thread_time
from types import GeneratorType
from typing import Any

PARTS = ("decode", "handler", "encode", "free", "gc")


@dataclass
class Account:
    """The longest turn of the loop since the last `reset`, and the longest pass of the collector.

    A turn is everything between two polls of the sockets: a client waits for all of it. CPU time of the loop's thread:
    other processes do not matter.
    """

    hold_s: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    pass_s: float = 0.0
    turns: int = 0
    cpu_s: float = 0.0
    _now: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    _thread: int = 0
    _pass_began: float = 0.0
    _turn_began: float = 0.0
    _is_measuring: bool = False

    def reset(self) -> None:
        self.hold_s = self.pass_s = self.cpu_s = 0.0
        self.turns = 0
        self.parts = {}

    def install(self) -> None:
        self._thread = threading.get_ident()
        gc.callbacks.insert(0, self._on_pass_start)
        gc.callbacks.append(self._on_pass_stop)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Time every turn of this loop until `stop`: a callback runs in each, so the loop does not rest meanwhile."""
        self.reset()
        self._is_measuring = True
        loop.call_soon(self._on_turn, loop, False)

    def stop(self) -> None:
        self._is_measuring = False

    def _on_turn(self, loop: asyncio.AbstractEventLoop, has_begun: bool = True) -> None:
        now = thread_time()
        if has_begun:
            self._ended(now - self._turn_began)
        self._now = dict.fromkeys(PARTS, 0.0)
        self._turn_began = now
        if self._is_measuring:
            loop.call_soon(self._on_turn, loop)

    def _ended(self, seconds: float) -> None:
        self.turns += 1
        self.cpu_s += seconds
        if seconds > self.hold_s:
            self.hold_s, self.parts = seconds, self._now

    def _on_pass_start(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start" and threading.get_ident() == self._thread:
            self._pass_began = thread_time()

    def _on_pass_stop(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "stop" and threading.get_ident() == self._thread:
            seconds = thread_time() - self._pass_began
            self._now["gc"] += seconds
            self.pass_s = max(self.pass_s, seconds)

    def add(self, part: str, began: float, collected: float) -> None:
        """Count the time since `began`, without the passes of the collector meanwhile."""
        self._now[part] += thread_time() - began - (self._now["gc"] - collected)

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, or the generator function, counted as a part."""

        def call(*args: Any, **others: Any) -> Any:
            began, collected = thread_time(), self._now["gc"]
            result = function(*args, **others)
            self.add(part, began, collected)
            return self._steps(part, result) if isinstance(result, GeneratorType) else result

        return call

    def _steps(self, part: str, steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        while True:
            began, collected = thread_time(), self._now["gc"]
            try:
                next(steps)
            except StopIteration as done:
                return done.value
            finally:
                self.add(part, began, collected)
            yield
