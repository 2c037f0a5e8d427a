"""MetricsLogins: the metrics endpoint delays, counts and logs failed logins as the listeners of the broker do."""

from __future__ import annotations

import logging
from collections.abc import Callable

from klamm.metrics.http import REQUEST_TIMEOUT_S
from klamm.security.failure_budget import FailureBudget
from klamm.security.failure_log import FailureLog

log = logging.getLogger(__name__)


class MetricsLogins:
    """Owner: the broker loop. The listeners have the same limits of log lines per address, and budgets of their own.

    A listener's turn may come later than the time of a scrape ends, and a scraper must not wait for the failures of
    other clients.
    """

    def __init__(self, failures: FailureLog, failure_delay_s: float, monotonic: Callable[[], float]) -> None:
        self.failure_delay_s = failure_delay_s
        self._budget = FailureBudget(max_wait_s=REQUEST_TIMEOUT_S / 2)
        self._failures = failures
        self._monotonic = monotonic

    def turn_wait_s(self, address: str) -> float:
        now = self._monotonic()
        return self._budget.begin_at(address, now) - now

    def on_failure(self, address: str) -> None:
        self._budget.note_failure(address, self._monotonic())
        self.on_refused(address, "the user or the password is wrong")

    def on_refused(self, address: str, reason: str) -> None:
        if (more := self._failures.note(address, f"metrics: {reason}", self._monotonic())) is not None:
            log.info("The metrics endpoint refuses a request of %s: %s%s", address, reason, more)
