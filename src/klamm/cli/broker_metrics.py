"""The metrics of a running broker, read from the endpoint that it reports."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from klamm.cli.cluster_control import Address

if TYPE_CHECKING:
    from klamm.protocol.messages.metadata import MetadataResponseBroker

_ANYWHERE: Final = ("", "0.0.0.0", "::")


def read_metrics(
    node: MetadataResponseBroker, addresses: Mapping[int, Address], timeout_s: float, prefixes: tuple[str, ...]
) -> Mapping[str, float]:
    """Return the metrics that start so, by name and tags; none if there is no endpoint or it does not answer."""
    address = addresses.get(node.node_id) or _metrics_address(node, timeout_s)
    if address is None:
        return {}
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    try:
        with urllib.request.urlopen(f"http://{host}:{address[1]}/metrics", timeout=timeout_s) as answer:
            lines = answer.read().decode().splitlines()
    except (OSError, urllib.error.URLError):
        return {}
    named = (line.rsplit(" ", 1) for line in lines if line.startswith(prefixes))
    return {name: float(value) for name, value in named}


def _metrics_address(node: MetadataResponseBroker, timeout_s: float) -> Address | None:
    """Return the address that the broker reports, which includes a free port that it chose."""
    from klamm.cli.broker_requests import ask
    from klamm.protocol.messages.describe_configs import (
        DescribeConfigsRequest,
        DescribeConfigsResource,
        DescribeConfigsResponse,
    )

    keys = ["klamm.metrics.host", "klamm.metrics.port"]
    broker = DescribeConfigsResource(resource_type=4, resource_name=str(node.node_id), configuration_keys=keys)
    request = DescribeConfigsRequest(resources=[broker])
    try:
        answer = ask((node.host, node.port), request, 1, DescribeConfigsResponse, timeout_s)
    except OSError:
        return None
    values = {config.name: config.value or "" for result in answer.results for config in result.configs}
    port, host = values.get("klamm.metrics.port", ""), values.get("klamm.metrics.host", "")
    if not port.isdecimal() or int(port) == 0:
        return None
    return (node.host if host in _ANYWHERE else host, int(port))
