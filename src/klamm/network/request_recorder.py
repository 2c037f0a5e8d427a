"""RequestRecorder: measure a request when it is over, and log it at DEBUG."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from klamm.network.api_table import ApiTable, ApiTableEntry
from klamm.network.request import Request
from klamm.network.request_metrics import columns_of

_request_log = logging.getLogger("klamm.request")


class RequestRecorder:
    """Writes the rows of `RequestMetrics`."""

    __slots__ = ("_apis",)

    def __init__(self, apis: ApiTable) -> None:
        self._apis = apis

    @property
    def is_logging(self) -> bool:
        return _request_log.isEnabledFor(logging.DEBUG)

    def record_answer(self, api: ApiTableEntry, received_at: float, flushed_at: float, sent_at: float) -> None:
        """Record a request of an authentication, which no handler and no queue has seen."""
        at = received_at
        api.metrics.table.append((at, at, at, at, at, flushed_at, sent_at, 0, 0))
        meter = api.requests
        if meter is None:
            meter = api.first_request()
        meter.count += 1

    def record(self, requests: Iterable[Request], flushed_at: float, sent_at: float) -> None:
        """Record the requests of one write: their responses have left, or they have none."""
        is_logged = _request_log.isEnabledFor(logging.DEBUG)
        for request in requests:
            stamps = (
                request.received_at,
                request.dequeued_at,
                request.local_done_at,
                request.remote_done_at,
                request.turn_at,
                flushed_at,
                sent_at,
                request.throttle_time_ms,
                request.size_bytes,
            )
            api = request.api
            api.metrics.table.append(stamps)
            meter = api.requests
            if meter is None:
                meter = api.first_request()
            meter.count += 1
            if request.split_name is not None:
                self._apis.metrics(request.split_name).record(api.version, stamps)
            if request.trace is not None:
                request.trace.end(request, columns_of(stamps))
            if is_logged:
                _log_request(request, columns_of(stamps))


def _log_request(request: Request, row: tuple[float, ...]) -> None:
    _request_log.debug(
        "Completed request api=%s version=%d correlationId=%d clientId=%s connection=%s listener=%s"
        " securityProtocol=%s principal=%s client=%s/%s responseBytes=%d requestQueueTime=%.3f localTime=%.3f"
        " remoteTime=%.3f throttleTime=%d responseOrderTime=%.3f responseQueueTime=%.3f sendTime=%.3f"
        " totalTime=%.3f requestBytes=%d",
        request.api.name,
        request.api_version,
        request.correlation_id,
        request.client_id,
        request.connection_id,
        request.listener_name,
        request.security_protocol.name,
        request.principal,
        request.client_software_name,
        request.client_software_version,
        request.response_size_bytes,
        *row,
    )
