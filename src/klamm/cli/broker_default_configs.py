"""The dynamic defaults of all brokers, over Kafka's protocol: librdkafka cannot name this resource."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from klamm.cli.output import fail, table
from klamm.errors import ErrorCode

_BROKER: Final = 4
_SET, _DELETE = 0, 1


def describe(servers: str, *, as_json: bool = False) -> None:
    from klamm.cli.broker_requests import ask_any
    from klamm.protocol.messages.describe_configs import (
        DescribeConfigsRequest,
        DescribeConfigsResource,
        DescribeConfigsResponse,
    )

    resource = DescribeConfigsResource(resource_type=_BROKER, resource_name="", configuration_keys=None)
    answer = ask_any(servers, DescribeConfigsRequest(resources=[resource]), 1, DescribeConfigsResponse).results[0]
    _check(answer.error_code, answer.error_message, "The defaults of the brokers")
    rows = [(entry.name, entry.value, "DYNAMIC_DEFAULT_BROKER_CONFIG", "false") for entry in answer.configs]
    table(("Key", "Value", "Source", "ReadOnly"), rows, as_json=as_json)


def alter(servers: str, settings: Mapping[str, str], delete: Iterable[str]) -> None:
    from klamm.cli.broker_requests import ask_any
    from klamm.protocol.messages.incremental_alter_configs import (
        AlterableConfig,
        AlterConfigsResource,
        IncrementalAlterConfigsRequest,
        IncrementalAlterConfigsResponse,
    )

    configs = [AlterableConfig(name=key, config_operation=_SET, value=value) for key, value in settings.items()]
    configs += [AlterableConfig(name=key, config_operation=_DELETE, value=None) for key in delete]
    resource = AlterConfigsResource(resource_type=_BROKER, resource_name="", configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
    answer = ask_any(servers, request, 0, IncrementalAlterConfigsResponse).responses[0]
    _check(answer.error_code, answer.error_message, "The defaults of the brokers were not changed")


def _check(code: int, message: str | None, what: str) -> None:
    if code != ErrorCode.NONE:
        fail(f"{what}: {ErrorCode(code).name}: {message or 'the broker returned no reason.'}")
