"""Clusters whose clients reach the brokers through relays, while brokers and tests reach them directly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from klamm.local.ports import LOOPBACK, ReservedPort
from klamm.testing import LocalCluster
from tests.support.relays import Relays


@contextmanager
def relayed_cluster(
    brokers: int, broker_configs: Mapping[Any, object], **arguments: Any
) -> Iterator[tuple[LocalCluster, Relays]]:
    """Clients that start at `Relays.bootstrap_servers` use the relays only; `arguments` are those of LocalCluster."""
    broker_ids = range(1, brokers + 1)
    with ExitStack() as stack:
        own = {i: stack.enter_context(ReservedPort()).number for i in broker_ids}
        for_clients = {i: stack.enter_context(ReservedPort()).number for i in broker_ids}
        relays = Relays(for_clients)
        stack.callback(relays.close)
        configs: dict[str | int, object] = {
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENT:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            **broker_configs,
            **{i: _listeners(own[i], for_clients[i], relays.ports[i]) for i in broker_ids},
        }
        cluster = LocalCluster(brokers, broker_configs=configs, ports=own.values(), **arguments)
        yield stack.enter_context(cluster), relays


def _listeners(port: int, client_port: int, relay_port: int) -> dict[str, object]:
    own = f"PLAINTEXT://{LOOPBACK}:{port},CLIENT://{LOOPBACK}:"
    return {"listeners": f"{own}{client_port}", "advertised.listeners": f"{own}{relay_port}"}
