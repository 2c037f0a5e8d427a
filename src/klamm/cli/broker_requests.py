"""Requests of the commands to one broker, for what librdkafka cannot ask."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final, TypeVar

from klamm.cli.client import TIMEOUT_S, addresses_by_answer, unreachable
from klamm.cli.command_config import current as command_config
from klamm.cli.output import Failure
from klamm.client.blocking_connection import Address, BlockingConnection, ask_once, connected

if TYPE_CHECKING:
    from collections.abc import Iterable

    from klamm.client.connection_pool import ClientConfig
    from klamm.protocol.messages.describe_configs import DescribeConfigsResult
    from klamm.protocol.wire import Message

R = TypeVar("R", bound="Message")
CLIENT_ID: Final = "klamm-cli"
BROKER: Final = 4
"""The resource type of a broker's configuration."""


def ask(
    address: Address,
    request: Message,
    version: int,
    response: type[R],
    timeout_s: float,
    first_correlation_id: int = 0,
) -> R:
    """Send one request and return the response.

    Raises OSError if the broker is unreachable or does not answer in time, and KlammError if the peer does not speak
    Kafka's protocol.
    """
    return ask_once(
        address,
        request,
        version,
        response,
        timeout_s,
        client_id=CLIENT_ID,
        security=command_config.security,
        first_correlation_id=first_correlation_id,
    )


def broker_settings(
    address: Address, broker_id: int, keys: Iterable[str] | None, timeout_s: float
) -> DescribeConfigsResult:
    """Return settings of the broker at this address, all if `keys` is None. Raises the errors of `ask`."""
    from klamm.protocol.messages.describe_configs import (
        DescribeConfigsRequest,
        DescribeConfigsResource,
        DescribeConfigsResponse,
    )

    names = None if keys is None else list(keys)
    broker = DescribeConfigsResource(resource_type=BROKER, resource_name=str(broker_id), configuration_keys=names)
    request = DescribeConfigsRequest(resources=[broker])
    (result,) = ask(address, request, 1, DescribeConfigsResponse, timeout_s).results
    return result


def connect(address: Address, timeout_s: float) -> AbstractContextManager[BlockingConnection]:
    """Open a connection for several requests. Raises the errors of `ask`."""
    return connected(address, timeout_s, client_id=CLIENT_ID, security=command_config.security)


def ask_any(servers: str, request: Message, version: int, response: type[R]) -> R:
    """Send one request to the first broker of the list that answers. Fails with a sentence if none does."""
    for address in addresses_by_answer(servers):
        try:
            return ask(address, request, version, response, TIMEOUT_S)
        except OSError:
            continue
    raise Failure(unreachable(servers))


def cli_client_config(servers: str, client_id: str = CLIENT_ID) -> ClientConfig:
    """Return the settings of klamm's own client for these servers, with the command's credentials."""
    from klamm.client.connection_pool import ClientConfig

    addresses = tuple(addresses_by_answer(servers))
    return ClientConfig(addresses, client_id=client_id, software_name=client_id, security=command_config.security)
