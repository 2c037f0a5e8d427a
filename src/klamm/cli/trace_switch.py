"""Switches request traces on at every broker for a while, and restores the earlier settings."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from klamm.cli.broker_requests import BROKER, ask, broker_settings
from klamm.cli.client import TIMEOUT_S
from klamm.cli.output import fail, note
from klamm.cli.right_advice import on_cluster, with_remedy
from klamm.errors import ErrorCode

if TYPE_CHECKING:
    from klamm.protocol.messages.metadata import MetadataResponseBroker
    from klamm.request_log.waterfall import TraceFilter

PREFIX: Final = "klamm.request.trace."
_DYNAMIC_BROKER: Final = 2
_SET, _DELETE = 0, 1
Settings = Mapping[str, str | None]
"""None for a key that is not set at the broker itself."""


@contextmanager
def switched_on(nodes: list[MetadataResponseBroker], sample: int, wanted: TraceFilter) -> Iterator[None]:
    """The settings of a broker override the defaults of all, so they are set for each broker.

    Fails if another command traces: the one that ends last would restore the settings of the other.
    """
    settings: Settings = {
        f"{PREFIX}sample": str(sample),
        f"{PREFIX}apis": ",".join(wanted.apis),
        f"{PREFIX}client.ids": ",".join(wanted.client_ids),
        f"{PREFIX}topics": ",".join(wanted.topics),
        f"{PREFIX}slower.than.ms": str(wanted.slower_than_ms),
        f"{PREFIX}topic.enable": "true",
    }
    found = {node.node_id: _own_settings(node, settings) for node in nodes}
    for node_id, own in found.items():
        _check_unused(node_id, own)
    earlier: dict[int, Settings] = {}
    try:
        for node in nodes:
            earlier[node.node_id] = found[node.node_id]  # before the change, which a signal may interrupt
            problem = _alter(node, settings)
            if problem is not None:
                del earlier[node.node_id]
                fail(f"Broker {node.node_id} does not trace requests: {problem}")
        note(f"Tracing one request in {sample} on all brokers until this command ends.")
        yield
    finally:
        try:
            hold_signals()
        finally:  # also if the first signal arrives before they are held
            _restore(nodes, earlier)


def _check_unused(node_id: int, own: Settings) -> None:
    """A trace command sets all keys at once; people set those that they need."""
    if any(value is None for value in own.values()):
        return
    shown = ", ".join(f"{key.removeprefix(PREFIX)}={value}" for key, value in own.items() if value)
    keys = " ".join(f"--delete {key}" for key in own)
    fail(
        f"Broker {node_id} traces for another klamm trace --on ({shown}). To see its traces, leave out --on. "
        f"If that command was killed, restore each broker: klamm config alter --broker {node_id} {keys}"
    )


def hold_signals() -> None:
    """Let SIGINT and SIGTERM only print a sentence: an interrupted command would leave tracing on."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _report_restoring)


def _report_restoring(*_: object) -> None:
    # Not by print: a signal may arrive during another print.
    os.write(2, b"Restoring the settings of the brokers ...\n")


def _restore(nodes: list[MetadataResponseBroker], earlier: Mapping[int, Settings]) -> None:
    for node in nodes:
        if node.node_id in earlier and (problem := _alter(node, earlier[node.node_id])) is not None:
            note(f"Broker {node.node_id} still traces requests: {problem} See {PREFIX}sample.")


def _own_settings(node: MetadataResponseBroker, keys: Settings) -> Settings:
    result = broker_settings((node.host, node.port), node.node_id, keys, TIMEOUT_S)
    if result.error_code != ErrorCode.NONE:
        reason = _reason(result.error_code, result.error_message)
        problem = f"The configuration of broker {node.node_id}: {reason}"
        fail(with_remedy(problem, on_cluster("DESCRIBE_CONFIGS")))
    own = {it.name: it.value for it in result.configs if it.config_source == _DYNAMIC_BROKER}
    return {key: own.get(key) for key in keys}


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
    resource = AlterConfigsResource(resource_type=BROKER, resource_name=str(node.node_id), configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
    try:
        answer = ask((node.host, node.port), request, 0, IncrementalAlterConfigsResponse, TIMEOUT_S).responses[0]
    except OSError as error:
        return f"{error.strerror or error}."
    if answer.error_code == ErrorCode.NONE:
        return None
    return with_remedy(_reason(answer.error_code, answer.error_message), on_cluster("ALTER_CONFIGS"))


def _reason(code: int, message: str | None) -> str:
    return f"{ErrorCode(code).name}: {message or 'the broker returned no reason.'}"
