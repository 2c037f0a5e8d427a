"""The dynamic defaults of all brokers, over Kafka's protocol: librdkafka cannot name this resource."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

from klamm.cli.client import TIMEOUT_S, unreachable
from klamm.cli.output import Failure, fail, table
from klamm.errors import ErrorCode

if TYPE_CHECKING:
    from klamm.protocol.wire import Message

R = TypeVar("R", bound="Message")
_BROKER: Final = 4
_SET, _DELETE = 0, 1


def describe(servers: str) -> None:
    from klamm.protocol.messages.describe_configs import (
        DescribeConfigsRequest,
        DescribeConfigsResource,
        DescribeConfigsResponse,
    )

    resource = DescribeConfigsResource(resource_type=_BROKER, resource_name="", configuration_keys=None)
    answer = _ask(servers, DescribeConfigsRequest(resources=[resource]), 1, DescribeConfigsResponse).results[0]
    _check(answer.error_code, answer.error_message, "The defaults of the brokers")
    rows = [(entry.name, entry.value, "DYNAMIC_DEFAULT_BROKER_CONFIG", "false") for entry in answer.configs]
    table(("Key", "Value", "Source", "ReadOnly"), rows)


def alter(servers: str, settings: Mapping[str, str], delete: Iterable[str]) -> None:
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
    answer = _ask(servers, request, 0, IncrementalAlterConfigsResponse).responses[0]
    _check(answer.error_code, answer.error_message, "The defaults of the brokers were not changed")


def _ask(servers: str, request: Message, version: int, answer: type[R]) -> R:
    from klamm.cli.broker_requests import ask

    for server in servers.split(","):
        host, _, port = server.strip().rpartition(":")
        if not port.isdecimal():
            fail(f"{server!r} is not host:port.")
        try:
            return ask((host, int(port)), request, version, answer, TIMEOUT_S)
        except OSError:
            continue
    raise Failure(unreachable(servers))


def _check(code: int, message: str | None, what: str) -> None:
    if code != ErrorCode.NONE:
        fail(f"{what}: {ErrorCode(code).name}: {message or 'the broker returned no reason.'}")
