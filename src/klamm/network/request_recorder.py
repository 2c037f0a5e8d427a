"""RequestRecorder: measure a request when it is over, and log it at DEBUG."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from klamm.network.api_table import ApiTable
from klamm.network.request import Request

_request_log = logging.getLogger("klamm.request")


class RequestRecorder:
    """Writes the rows of `RequestMetrics`."""

    __slots__ = ("_apis",)

    def __init__(self, apis: ApiTable) -> None:
        self._apis = apis

    def record(self, requests: Iterable[Request], flushed_at: float, sent_at: float) -> None:
        """Record the requests of one write: their responses have left, or they have none."""
        is_logged = _request_log.isEnabledFor(logging.DEBUG)
        for request in requests:
            received, dequeued = request.received_at, request.dequeued_at
            local_done, remote_done, turn = request.local_done_at, request.remote_done_at, request.turn_at
            row = (
                (dequeued - received) * 1000,
                (local_done - dequeued) * 1000,
                (remote_done - local_done) * 1000,
                request.throttle_time_ms,
                (turn - remote_done) * 1000,
                (flushed_at - turn) * 1000,
                (sent_at - flushed_at) * 1000,
                (sent_at - received) * 1000,
                request.size_bytes,
            )
            api = request.api
            api.metrics.table.append(row)
            meter = api.requests
            if meter is None:
                meter = api.first_request()
            meter.count += 1
            if request.split_name is not None:
                self._apis.metrics(request.split_name).record(api.version, row)
            if request.trace is not None:
                request.trace.end(request, row)
            if is_logged:
                _log_request(request, row)


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
