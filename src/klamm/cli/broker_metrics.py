"""The metrics of a running broker, read from the endpoint that it reports."""

from __future__ import annotations

import base64
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from klamm.cli import command_config
from klamm.cli.cluster_control import Address
from klamm.model import is_loopback

if TYPE_CHECKING:
    from klamm.protocol.messages.metadata import MetadataResponseBroker

_ANYWHERE: Final = ("", "0.0.0.0", "::")


LOGIN_WRONG: Final = (
    f"the user or the password is wrong. Correct {command_config.METRICS_LOGIN} in the file of {command_config.OPTION}"
)
LOGIN_MISSING: Final = (
    f"they require a password. Set {command_config.METRICS_LOGIN}=USER:PASSWORD in the file of {command_config.OPTION}"
)
_UNAUTHORIZED: Final = 401


class LoginRefused(Exception):
    """The endpoint requires another login. The text is one of the reasons above."""


@dataclass(frozen=True, slots=True)
class MetricsEndpoint:
    """Where a broker serves its metrics."""

    host: str
    port: int
    tls: bool

    def request(self, login: str | None, path: str = "/metrics") -> urllib.request.Request:
        """Return the request. A login crosses the network only if TLS protects it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        request = urllib.request.Request(f"{'https' if self.tls else 'http'}://{host}:{self.port}{path}")
        if login is not None and (self.tls or is_loopback(self.host)):
            request.add_header("Authorization", f"Basic {base64.b64encode(login.encode()).decode()}")
        return request


def read_metrics(
    node: MetadataResponseBroker, addresses: Mapping[int, Address], timeout_s: float, prefixes: tuple[str, ...]
) -> Mapping[str, float]:
    """Return the metrics that start so, by name and tags; none if there is no endpoint or it does not answer.

    The broker is asked for these metrics only: with thousands of partitions, all of them have megabytes.
    """
    with suppress(LoginRefused):
        return read_guarded_metrics(node, addresses, timeout_s, prefixes)
    return {}


def read_guarded_metrics(
    node: MetadataResponseBroker, addresses: Mapping[int, Address], timeout_s: float, prefixes: tuple[str, ...]
) -> Mapping[str, float]:
    """Return the same. Raises LoginRefused."""
    query = urlencode([("name[]", prefix) for prefix in prefixes])
    lines = (_read_page(node, addresses, timeout_s, f"/metrics?{query}") or "").splitlines()
    named = (line.rsplit(" ", 1) for line in lines if line.startswith(prefixes))
    return {name: float(value) for name, value in named}


def read_page(
    node: MetadataResponseBroker, addresses: Mapping[int, Address], timeout_s: float, path: str
) -> str | None:
    """Return a page of the broker's metrics endpoint; None if there is no endpoint, or it refuses or is silent.

    If the endpoint requires TLS and a login, they come from the command's configuration.
    """
    with suppress(LoginRefused):
        return _read_page(node, addresses, timeout_s, path)
    return None


def _read_page(
    node: MetadataResponseBroker, addresses: Mapping[int, Address], timeout_s: float, path: str
) -> str | None:
    """Raises LoginRefused."""
    endpoint = _endpoint(node, addresses.get(node.node_id), timeout_s)
    if endpoint is None:
        return None
    context = command_config.current.metrics_context if endpoint.tls else None
    request = endpoint.request(command_config.current.metrics_login, path)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s, context=context) as answer:
            text: str = answer.read().decode()
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == _UNAUTHORIZED:
            raise LoginRefused(LOGIN_WRONG if request.has_header("Authorization") else LOGIN_MISSING) from None
        return None
    except (OSError, urllib.error.URLError):
        return None
    return text


def _endpoint(node: MetadataResponseBroker, given: Address | None, timeout_s: float) -> MetricsEndpoint | None:
    """Return the endpoint that the broker reports, with a free port that it chose, or at the given address."""
    keys = ("klamm.metrics.host", "klamm.metrics.port", "klamm.metrics.ssl.enable")
    try:
        values = _settings(node, keys, timeout_s)
    except OSError:
        return None if given is None else MetricsEndpoint(*given, tls=False)
    port, host = values.get("klamm.metrics.port", ""), values.get("klamm.metrics.host", "")
    tls = values.get("klamm.metrics.ssl.enable") == "true"
    if given is not None:
        return MetricsEndpoint(*given, tls)
    if not port.isdecimal() or int(port) == 0:
        return None
    return MetricsEndpoint(node.host if host in _ANYWHERE else host, int(port), tls)


def advertised_listeners(node: MetadataResponseBroker, timeout_s: float) -> list[str]:
    """Return the addresses that the broker advertises; none if it does not answer or does not show its settings."""
    try:
        values = _settings(node, ("advertised.listeners", "listeners"), timeout_s)
    except OSError:
        return []
    listed = values.get("advertised.listeners") or values.get("listeners") or ""
    return [address.strip() for address in listed.split(",") if address.strip()]


def _settings(node: MetadataResponseBroker, keys: Sequence[str], timeout_s: float) -> dict[str, str]:
    """Ask the broker for its own settings. Raises OSError."""
    from klamm.cli.broker_requests import broker_settings

    found = broker_settings((node.host, node.port), node.node_id, keys, timeout_s)
    return {config.name: config.value or "" for config in found.configs}
