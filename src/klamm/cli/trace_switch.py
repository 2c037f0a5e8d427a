"""Switches request traces on at every broker for a while, and restores the earlier settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from klamm.cli.broker_requests import ask
from klamm.cli.client import TIMEOUT_S
from klamm.cli.output import fail, note
from klamm.errors import ErrorCode

if TYPE_CHECKING:
    from klamm.protocol.messages.metadata import MetadataResponseBroker
    from klamm.request_log.waterfall import TraceFilter

PREFIX: Final = "klamm.request.trace."
_BROKER: Final = 4
_DYNAMIC_BROKER: Final = 2
_SET, _DELETE = 0, 1
Settings = Mapping[str, str | None]
"""None for a key that is not set at the broker itself."""


@contextmanager
def switched_on(nodes: list[MetadataResponseBroker], sample: int, wanted: TraceFilter) -> Iterator[None]:
    """The settings of a broker override the defaults of all, so they are set for each broker."""
    settings: Settings = {
        f"{PREFIX}sample": str(sample),
        f"{PREFIX}apis": ",".join(wanted.apis),
        f"{PREFIX}client.ids": ",".join(wanted.client_ids),
        f"{PREFIX}topics": ",".join(wanted.topics),
        f"{PREFIX}slower.than.ms": str(wanted.slower_than_ms),
        f"{PREFIX}topic.enable": "true",
    }
    earlier: dict[int, Settings] = {}
    try:
        for node in nodes:
            before = _own_settings(node, settings)
            problem = _alter(node, settings)
            if problem is not None:
                fail(f"Broker {node.node_id} does not trace requests: {problem}")
            earlier[node.node_id] = before
        note(f"Tracing one request in {sample} on all brokers until this command ends.")
        yield
    finally:
        for node in nodes:
            if node.node_id in earlier and (problem := _alter(node, earlier[node.node_id])) is not None:
                note(f"Broker {node.node_id} still traces requests: {problem} See {PREFIX}sample.")


def _own_settings(node: MetadataResponseBroker, keys: Settings) -> Settings:
    from klamm.protocol.messages.describe_configs import (
        DescribeConfigsRequest,
        DescribeConfigsResource,
        DescribeConfigsResponse,
    )

    name = str(node.node_id)
    resource = DescribeConfigsResource(resource_type=_BROKER, resource_name=name, configuration_keys=list(keys))
    address = (node.host, node.port)
    answer = ask(address, DescribeConfigsRequest(resources=[resource]), 1, DescribeConfigsResponse, TIMEOUT_S)
    found: dict[str, str | None] = dict.fromkeys(keys)
    for result in answer.results:
        if result.error_code != ErrorCode.NONE:
            fail(f"The configuration of broker {name}: {_reason(result.error_code, result.error_message)}")
        found |= {it.name: it.value for it in result.configs if it.config_source == _DYNAMIC_BROKER}
    return found


def _alter(node: MetadataResponseBroker, settings: Settings) -> str | None:
    """Set or delete the keys; return the problem."""
    from klamm.protocol.messages.incremental_alter_configs import (
        AlterableConfig,
        AlterConfigsResource,
        IncrementalAlterConfigsRequest,
        IncrementalAlterConfigsResponse,
    )

    configs = [
        AlterableConfig(name=key, config_operation=_DELETE if value is None else _SET, value=value)
        for key, value in settings.items()
    ]
    resource = AlterConfigsResource(resource_type=_BROKER, resource_name=str(node.node_id), configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
    try:
        answer = ask((node.host, node.port), request, 0, IncrementalAlterConfigsResponse, TIMEOUT_S).responses[0]
    except OSError as error:
        return f"{error.strerror or error}."
    return None if answer.error_code == ErrorCode.NONE else _reason(answer.error_code, answer.error_message)


def _reason(code: int, message: str | None) -> str:
    return f"{ErrorCode(code).name}: {message or 'the broker returned no reason.'}"
