"""The tests of orders.py, on a real cluster of three brokers: `pytest examples/testing`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from klamm.testing import LocalCluster

sys.path.insert(0, str(Path(__file__).parent))
from orders import OrderService, totals

KLAMM_CLUSTER = {"brokers": 3, "broker_configs": {"min.insync.replicas": 2}}
ORDERS = [{"customer": "eva", "amount": 20.0}, {"customer": "tom", "amount": 7.5}, {"customer": "eva", "amount": 5.0}]


@pytest.fixture
def topic(klamm_cluster: LocalCluster) -> str:
    """A topic of three replicas. The fixture `klamm_topic` would have one."""
    name = klamm_cluster.unique_topic_name("orders")
    klamm_cluster.create_topic(name, partitions=1, replication_factor=3)
    return name


def test_orders_are_totalled_per_customer(klamm_cluster: LocalCluster, topic: str) -> None:
    servers = klamm_cluster.bootstrap_servers
    OrderService(servers, topic).accept(ORDERS)
    assert totals(servers, topic, len(ORDERS)) == {"eva": 25.0, "tom": 7.5}


def test_accepted_orders_survive_the_leader(klamm_cluster: LocalCluster, topic: str) -> None:
    servers = klamm_cluster.bootstrap_servers
    service = OrderService(servers, topic)
    service.accept(ORDERS)
    victim = klamm_cluster.leader(topic, 0)
    klamm_cluster.kill(victim)
    service.accept(ORDERS)
    assert totals(servers, topic, 2 * len(ORDERS)) == {"eva": 50.0, "tom": 15.0}
    klamm_cluster.start(victim)
    klamm_cluster.wait_for(lambda: len(klamm_cluster.isr(topic, 0)) == 3, what="all replicas in sync")
