"""Decides when a client pings a silent server, and when it gives up the server.

Without I/O: the caller passes the time. Another server can take over the session only while it lives, so a server is
given up after two thirds of the timeout, as by ZooKeeper's own clients. Silence alone does not prove a failure, because
a process that was suspended receives nothing either. So a server is given up only after a ping that was not answered
for a quarter of the timeout.
"""

from __future__ import annotations

from typing import Final

CHECKS: Final = 20
"""Minimum number of checks per timeout."""


class Heartbeat:
    def __init__(self, timeout_s: float, now_s: float) -> None:
        self._timeout_s = timeout_s
        self._received_s = now_s
        self._asked_s = now_s
        self._is_answered = True

    def receive(self, now_s: float) -> None:
        self._received_s = now_s
        self._is_answered = True

    def is_due(self, now_s: float, sent_s: float) -> bool:
        """Whether to ping now: one side has sent nothing for a quarter of the timeout."""
        last_sent_s = max(sent_s, self._asked_s)  # a ping may wait behind data that the server does not read
        if not self._is_answered or now_s - min(self._received_s, last_sent_s) <= self._timeout_s / 4:
            return False
        self._asked_s = now_s
        self._is_answered = False
        return True

    def is_lost(self, now_s: float) -> bool:
        silence_s, wait_s = now_s - self._received_s, now_s - self._asked_s
        return not self._is_answered and silence_s > self._timeout_s * 2 / 3 and wait_s > self._timeout_s / 4
