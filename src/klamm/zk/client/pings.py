"""When a client asks a silent server for a sign of life, and when it gives it up. Sans-IO: the times are the caller's.

Another server takes the session over only while there is one: two thirds of the timeout in silence are enough, as for
ZooKeeper's own clients. Silence alone does not prove a failure, because a process that could not run receives nothing
either: a server is given up only after a ping, and a quarter of the timeout without an answer.
"""

from __future__ import annotations

from typing import Final

CHECKS: Final = 20
"""How often in a timeout somebody has to look."""


class Heartbeat:
    def __init__(self, timeout_s: float, now_s: float) -> None:
        self._timeout_s = timeout_s
        self._heard_s = now_s
        self._asked_s = now_s
        self._is_answered = True

    def hear(self, now_s: float) -> None:
        self._heard_s = now_s
        self._is_answered = True

    def is_due(self, now_s: float, sent_s: float) -> bool:
        """Whether to ping now: for a quarter of the timeout one side has sent nothing."""
        told_s = max(sent_s, self._asked_s)  # a question may wait behind what the server does not take
        if not self._is_answered or now_s - min(self._heard_s, told_s) <= self._timeout_s / 4:
            return False
        self._asked_s = now_s
        self._is_answered = False
        return True

    def is_lost(self, now_s: float) -> bool:
        silence_s, wait_s = now_s - self._heard_s, now_s - self._asked_s
        return not self._is_answered and silence_s > self._timeout_s * 2 / 3 and wait_s > self._timeout_s / 4
