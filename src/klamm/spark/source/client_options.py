"""Kafka's client options of a query, and the ClusterClient that they describe."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from klamm.client.cluster_client import ClusterClient
from klamm.client.connection_pool import ClientConfig
from klamm.client.patience import CLUSTER_CALL, DRIVER_CALL, Patience
from klamm.clock import Clock
from klamm.errors import ConfigError
from klamm.model import parse_host_port
from klamm.security.client_security import ClientSecurity
from klamm.spark.source.read_options import OptionError

_NAME: Final = "klamm-spark"


def driver_client(
    servers: str,
    options: Mapping[str, str] | None = None,
    *,
    clock: Clock | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> ClusterClient:
    """Return a client that fails early if no broker was ever reached and all addresses refuse connections."""
    return ClusterClient(client_config(servers, options or {}, DRIVER_CALL), clock=clock, sleep=sleep)


def task_client(servers: str, options: Mapping[str, str] | None = None) -> ClusterClient:
    """Return a client for a task, which may start while the brokers are away."""
    return ClusterClient(client_config(servers, options or {}))


def client_config(servers: str, options: Mapping[str, str], call: Patience = CLUSTER_CALL) -> ClientConfig:
    """Parse Kafka's client options, given without the `kafka.` prefix. Raises OptionError."""
    given = {key.lower(): value for key, value in options.items()}
    assert call.deadline_ms is not None
    patience = replace(
        call,
        deadline_ms=_number(given, "default.api.timeout.ms", call.deadline_ms),
        backoff_ms=_number(given, "retry.backoff.ms", call.backoff_ms),
        request_ms=_number(given, "request.timeout.ms", call.request_ms),
    )
    return ClientConfig(
        bootstrap=parse_addresses(servers),
        client_id=given.get("client.id") or _NAME,
        software_name=_NAME,
        patience=patience,
        receive_buffer_bytes=max(0, _number(given, "receive.buffer.bytes", 0, least=-1)) or None,
        fetch_max_bytes=_number(given, "fetch.max.bytes", 0),
        partition_fetch_bytes=_number(given, "max.partition.fetch.bytes", 0),
        fetch_max_wait_ms=_number(given, "fetch.max.wait.ms", 500),
        fetch_min_bytes=_number(given, "fetch.min.bytes", 1),
        check_crcs=given.get("check.crcs", "true").strip().lower() != "false",
        security=client_security(given),
    )


def client_security(options: Mapping[str, str]) -> ClientSecurity:
    """Parse the security options, given without the `kafka.` prefix. Raises OptionError, which shows no secret."""
    try:
        return ClientSecurity.from_properties(options)
    except ConfigError as error:
        raise OptionError(f"The kafka.* options of security are invalid: {error}") from None


def parse_addresses(text: str) -> tuple[tuple[str, int], ...]:
    """Parse `host:port,[::1]:port`. Raises OptionError."""
    found: list[tuple[str, int]] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        try:
            found.append(parse_host_port(part))
        except ValueError:
            raise OptionError(f"Option 'kafka.bootstrap.servers' is a list of host:port; {part!r} is not.") from None
    if not found:
        raise OptionError("Option 'kafka.bootstrap.servers' names no broker.")
    return tuple(found)


def _number(options: Mapping[str, str], name: str, default: int, *, least: int = 0) -> int:
    value = options.get(name, str(default)).strip()
    try:
        number = int(value)
    except ValueError:
        raise OptionError(f"Option 'kafka.{name}' is a whole number, not {value!r}.") from None
    if number < least:
        raise OptionError(f"Option 'kafka.{name}' must be at least {least}, not {number}.")
    return number
