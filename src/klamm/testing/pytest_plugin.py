"""pytest fixtures, active wherever klamm is installed.

`klamm_cluster` is a cluster of real broker processes that the tests of one module share. A module that needs more than
one broker, or other settings, says so:

    KLAMM_CLUSTER = {"brokers": 3, "broker_configs": {"min.insync.replicas": 2}}

    def test_orders(klamm_cluster, klamm_topic):
        producer = Producer({"bootstrap.servers": klamm_cluster.bootstrap_servers})
        producer.produce(klamm_topic, b"hello")

The module's dictionary is the keyword arguments of `klamm.testing.LocalCluster`. `klamm_topic` is the name of a topic
with one partition. Every test gets a new one, which is deleted after the test. `klamm_client_config` has the settings
of a client, which a secured cluster requires.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from klamm.local.local_cluster import LocalCluster


@pytest.fixture(scope="module")
def klamm_cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """A cluster of real broker processes that the tests of one module share; it ends after the module's last test.

    Its keyword arguments are the module's `KLAMM_CLUSTER`, such as `{"brokers": 3}`; without it, one broker.
    """
    from klamm.local.local_cluster import LocalCluster

    settings = getattr(request.module, "KLAMM_CLUSTER", {})
    with LocalCluster(**settings) as cluster:
        yield cluster


@pytest.fixture
def klamm_client_config(klamm_cluster: LocalCluster) -> dict[str, Any]:
    """Settings of confluent-kafka for `klamm_cluster`, also if `KLAMM_CLUSTER` secures it: those of a super user."""
    return klamm_cluster.client_config()


@pytest.fixture
def klamm_topic(klamm_cluster: LocalCluster) -> Iterator[str]:
    """The name of a new topic of one partition in `klamm_cluster`; every test has its own, deleted after the test."""
    name = klamm_cluster.unique_topic_name()
    klamm_cluster.create_topic(name)
    yield name
    klamm_cluster.delete_topic(name)
