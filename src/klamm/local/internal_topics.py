"""Creates the internal topics while all the brokers that they need are running.

Brokers create `__consumer_offsets` for the first consumer group, with `offsets.topic.replication.factor` replicas: as
in Kafka, with fewer live brokers there are no groups. A cluster that is about to lose a broker creates the topic before
that. `__transaction_state` needs this only if its factor is set: otherwise it fits the live brokers (decision 0029).
"""

from __future__ import annotations

import time
from typing import Final

from klamm.client.blocking_connection import ask_once
from klamm.client.client_errors import AuthenticationError
from klamm.client.patience import INTERNAL_TOPICS, Deadline
from klamm.clock import SystemClock
from klamm.errors import ErrorCode
from klamm.local.admin import CLIENT_ID, BrokerProcesses
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

_ANY_NAME: Final = "klamm"
_GROUP: Final = 0
_TRANSACTION: Final = 1


class InternalTopics:
    """Creates the internal topics of a local cluster in the background: that of transactions if `with_transactions`."""

    def __init__(self, brokers: BrokerProcesses, *, with_transactions: bool = False) -> None:
        self._brokers = brokers
        self._coordinators = (_GROUP, _TRANSACTION) if with_transactions else (_GROUP,)
        self._is_settled = True

    def request(self) -> None:
        """Ask one broker for coordinators, which makes the controller create the topics; do not wait for them."""
        self._is_settled = len(self._brokers.answering()) < 2
        if not self._is_settled:
            self._is_settled = self._are_there_or_impossible()

    def settle(self) -> None:
        """Wait until each topic exists or cannot be created. Call this before a broker is stopped."""
        deadline = Deadline(INTERNAL_TOPICS, SystemClock())
        while not self._is_settled and self._brokers.answering() and not deadline.has_passed:
            self._is_settled = self._are_there_or_impossible()
            if not self._is_settled:
                time.sleep(INTERNAL_TOPICS.pause_s())
        self._is_settled = True

    def _are_there_or_impossible(self) -> bool:
        """Ask for all of them, so that they are created at the same time."""
        return all([self._is_there_or_impossible(coordinator) for coordinator in self._coordinators])

    def _is_there_or_impossible(self, coordinator: int) -> bool:
        request = FindCoordinatorRequest(key=_ANY_NAME, key_type=coordinator)
        for address in self._brokers.answering().values():
            try:
                timeout_s = INTERNAL_TOPICS.request_ms / 1000
                security = self._brokers.client_security
                answer = ask_once(
                    address, request, 1, FindCoordinatorResponse, timeout_s, client_id=CLIENT_ID, security=security
                )
            except (OSError, AuthenticationError):
                continue
            is_refused = "cannot be created" in (answer.error_message or "")
            return is_refused or answer.error_code != ErrorCode.COORDINATOR_NOT_AVAILABLE
        return False
