"""Clusters whose clients reach the brokers through relays, while brokers and tests reach them directly.

The brokers of a divisible cluster reach each other and ZooKeeper through a network that can cut one of them off.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from klamm.local.drill_network import DrillNetwork
from klamm.local.launch import zookeeper_process
from klamm.local.ports import LOOPBACK, ReservedPort
from klamm.testing import LocalCluster
from tests.support.relays import Relays

_TWO_LISTENERS: Final[Mapping[str | int, object]] = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENT:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
}


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
            **_TWO_LISTENERS,
            **broker_configs,
            **{i: _listeners(own[i], own[i], for_clients[i], relays.ports[i]) for i in broker_ids},
        }
        cluster = LocalCluster(brokers, broker_configs=configs, ports=own.values(), **arguments)
        yield stack.enter_context(cluster), relays


@contextmanager
def divisible_cluster(
    brokers: int, broker_configs: Mapping[Any, object], data_dir: Path, timeout_s: float
) -> Iterator[tuple[LocalCluster, Relays, DrillNetwork]]:
    """Like `relayed_cluster`; a cut of the network holds connections to other brokers and to ZooKeeper.

    It does not hold those of clients that start at `Relays.bootstrap_servers`.
    """
    broker_ids = range(1, brokers + 1)
    with ExitStack() as stack:
        own, public, for_clients, to_zookeeper = (
            {i: stack.enter_context(ReservedPort()).number for i in broker_ids} for _ in range(4)
        )
        zookeeper_port = stack.enter_context(ReservedPort()).number
        data_dir.mkdir(parents=True, exist_ok=True)
        zookeeper = zookeeper_process(data_dir, zookeeper_port, is_temporary=True)
        stack.callback(zookeeper.discard)
        zookeeper.spawn()
        zookeeper.wait_ready(time.monotonic() + timeout_s)
        relays = Relays(for_clients)
        stack.callback(relays.close)
        network = DrillNetwork()
        stack.callback(network.close)
        configs: dict[str | int, object] = {**_TWO_LISTENERS, **broker_configs}
        for i in broker_ids:
            network.relay_to_broker(i, public[i], own[i])
            network.relay_to_zookeeper(i, to_zookeeper[i], zookeeper_port)
            listeners = _listeners(own[i], public[i], for_clients[i], relays.ports[i])
            configs[i] = {**listeners, "zookeeper.connect": f"{LOOPBACK}:{to_zookeeper[i]}"}
        cluster = LocalCluster(
            brokers,
            broker_configs=configs,
            ports=own.values(),
            data_dir=data_dir,
            zookeeper=f"{LOOPBACK}:{zookeeper_port}",
            start_timeout_s=timeout_s,
        )
        yield stack.enter_context(cluster), relays, network


def _listeners(port: int, public_port: int, client_port: int, relay_port: int) -> dict[str, object]:
    return {
        "listeners": f"PLAINTEXT://{LOOPBACK}:{port},CLIENT://{LOOPBACK}:{client_port}",
        "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{public_port},CLIENT://{LOOPBACK}:{relay_port}",
    }
