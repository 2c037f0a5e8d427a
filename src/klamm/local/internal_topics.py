"""Creates `__consumer_offsets` before a broker is missing that it needs.

Brokers create the topic for the first consumer group, with `offsets.topic.replication.factor` replicas: as in Kafka,
with fewer live brokers there are no groups. A cluster that is about to lose a broker creates it while all are there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from klamm.errors import ErrorCode
from klamm.local.wire_client import send_request
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

_ANY_GROUP: Final = "klamm"
_LIMIT_S: Final = 30.0
_POLL_S: Final = 0.02
_REQUEST_S: Final = 10.0


class InternalTopics:
    """`answering` gives the addresses of the brokers that run now."""

    def __init__(self, answering: Callable[[], Mapping[int, tuple[str, int]]]) -> None:
        self._answering = answering
        self._is_settled = True

    def request(self) -> None:
        """Asks one broker for a coordinator, which makes the controller create the topic; does not wait for it."""
        self._is_settled = len(self._answering()) < 2
        if not self._is_settled:
            self._is_settled = self._is_there_or_impossible()

    def settle(self) -> None:
        """Waits until the topic exists, or cannot be created. To be called before a broker is stopped."""
        deadline = time.monotonic() + _LIMIT_S
        while not self._is_settled and self._answering() and time.monotonic() < deadline:
            self._is_settled = self._is_there_or_impossible()
            if not self._is_settled:
                time.sleep(_POLL_S)
        self._is_settled = True

    def _is_there_or_impossible(self) -> bool:
        request = FindCoordinatorRequest(key=_ANY_GROUP, key_type=0)
        for address in self._answering().values():
            try:
                answer = send_request(address, request, 1, FindCoordinatorResponse, _REQUEST_S)
            except OSError:
                continue
            is_refused = "cannot be created" in (answer.error_message or "")
            return is_refused or answer.error_code != ErrorCode.COORDINATOR_NOT_AVAILABLE
        return False
