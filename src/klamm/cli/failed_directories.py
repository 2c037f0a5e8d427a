"""Log directories that brokers took offline, with the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.errors import ErrorCode

if TYPE_CHECKING:
    from klamm.protocol.messages.metadata import MetadataResponseBroker


def failed_directories(node: MetadataResponseBroker, timeout_s: float) -> list[str]:
    """Return a sentence per offline directory; none if the broker does not answer or the user may not ask."""
    from klamm.cli.broker_requests import ask
    from klamm.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse

    request = DescribeLogDirsRequest(topics=())
    try:
        answer = ask((node.host, node.port), request, 1, DescribeLogDirsResponse, timeout_s)
    except OSError:
        return []
    return [
        f"Broker {node.node_id} took log directory {result.log_dir} offline: its replicas are not served. Its log "
        "has the reason. If the disk is full, free some space; otherwise replace the disk and restart the broker."
        for result in answer.results
        if result.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    ]
